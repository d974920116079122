"""Does a long stream stay as cheap as it began? Memory, time per task and programs, task by task.

    python benchmarks/long_stream.py
    python benchmarks/long_stream.py --short

Learns a stream of many small tasks, checkpoints included, and compares the last quarter with the
second (the first one compiles). Evaluation goes over all tasks seen, as the protocol wants, so its
time per task seen is compared; a checkpoint holds all scores so far, packed.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from hmcl_jax.continual import Event, Schedule, TrainConfig, run_stream
from hmcl_jax.continual.cache import CompileTime
from hmcl_jax.data.synthetic import synthetic_stream
from timing import claim, print_json, print_table


def resident_mib() -> float:
    """Memory of this process now."""
    # The second field counts resident pages.
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--method", default="hmcl_ca")
    parser.add_argument("--short", action="store_true", help="24 tasks")
    arguments = parser.parse_args()
    tasks = 24 if arguments.short else arguments.tasks
    store = synthetic_stream(tasks=tasks, classes=4, dimension=16, train=64, test=16)
    config = TrainConfig(classification=Schedule(2, 1e-3), batch=32)
    compiling = CompileTime()
    memory, programs, ends = [], [], []

    def look(event: Event) -> None:
        if event.kind == "scores":
            memory.append(resident_mib())
            programs.append(compiling.programs)
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as out:
        name = arguments.method
        result = run_stream(store, [name], [0, 1], config, out=out, listener=look)[name]
        sizes = [
            sum(file.stat().st_size for file in step.rglob("*") if file.is_file()) / 2**10
            for step in sorted((Path(out) / name / "steps").iterdir(), key=lambda p: int(p.name))
        ]
    learn = np.array([s["learn"] for s in result.seconds])
    seen = np.array([s["evaluate"] for s in result.seconds]) / np.arange(1, tasks + 1)
    rest = np.diff(ends) - np.array([sum(s.values()) for s in result.seconds[1:]])
    rest = np.concatenate([rest[:1], rest])  # saving, and calling the listener
    quarters = [slice(i * tasks // 4, (i + 1) * tasks // 4) for i in range(4)]
    rows = []
    for number, part in enumerate(quarters):
        rows.append(
            [
                f"{part.start + 1} to {part.stop}",
                float(np.median(learn[part])),
                float(np.median(seen[part])),
                float(np.median(rest[part])),
                float(np.max(memory[part])),
                programs[part.stop - 1] - (programs[part.start - 1] if number else 0),
                float(sizes[part.stop - 1]),
            ]
        )
    header = ["tasks", "learning (s)", "evaluating a seen task (s)", "saving (s)"]
    print_table([*header, "memory (MiB)", "new programs", "checkpoint (KiB)"], rows)
    second, last = rows[1], rows[3]
    claims = [
        claim("learning, last / second quarter", last[1] / second[1], most=1.25),
        claim("evaluating a seen task, last / second quarter", last[2] / second[2], most=1.25),
        claim("saving, last / second quarter", last[3] / second[3], most=1.25),
        claim("memory, last / second quarter", last[4] / second[4], most=1.05),
        claim("programs compiled in the last half", rows[2][5] + last[5], most=0),
    ]
    print_json("long_stream", tasks=tasks, method=arguments.method, quarters=rows, claims=claims)


if __name__ == "__main__":
    main()
