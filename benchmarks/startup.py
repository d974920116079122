"""How long does the package import, and a stream compile, at its first start and at the next?

    python benchmarks/startup.py
    python benchmarks/startup.py --short

First, fresh processes that import JAX and Optax take turns with such that import hmcl_jax besides.
Then `hmcl run` in fresh processes, first with an empty folder of kept programs, then with what the
first has left there. Seconds of compiling, loading of kept programs included, are what JAX reports
in the process; wall time is that of the whole command, training included.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import claim, print_json, print_table, time_run


def imports(rounds: int) -> dict[str, float]:
    """Seconds of importing, the least of some fresh processes, which take turns."""
    codes = {"jax, optax": "import jax, optax", "hmcl_jax": "import jax, optax, hmcl_jax"}
    found: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(rounds):
        for name, code in codes.items():
            timed = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
            done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True)
            found[name].append(float(done.stdout))
    # The least: what else runs on the machine only ever adds time.
    return {name: min(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--starts", type=int, default=3, help="how many in all")
    parser.add_argument("--short", action="store_true", help="one method, one seed, one epoch")
    arguments = parser.parse_args()
    options = ["--config", "pocket"]
    if arguments.short:
        options += ["--methods", "hmcl_ca", "--seeds", "42"]
        options += ["--set", "train.classification.epochs=1", "--set", "train.retrieval.epochs=1"]
        arguments.starts = 2
    imported = imports(3 if arguments.short else 15)
    print_table(["import", "s"], [list(row) for row in imported.items()])
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for number in range(arguments.starts):
            seconds, about = time_run(options, f"{folder}/caches", f"{folder}/run{number}")
            said = {name: about[name] for name in ("compile_seconds", "programs", "programs_kept")}
            found.append({**said, "wall_seconds": seconds})
        kept = list((Path(folder) / "caches").rglob("*-cache"))
        size = sum(path.stat().st_size for path in kept) / 2**20
    print_table(
        ["start", "compiling (s)", "programs", "of them kept", "wall (s)"],
        [
            [number + 1, s["compile_seconds"], s["programs"], s["programs_kept"], s["wall_seconds"]]
            for number, s in enumerate(found)
        ],
    )
    print(f"{len(kept)} programs are kept, {size:.1f} MiB.")
    first, second = found[0]["compile_seconds"], found[1]["compile_seconds"]
    more = imported["hmcl_jax"] - imported["jax, optax"]
    claims = [
        claim("seconds of importing hmcl_jax beyond jax and optax", more, most=0.1),
        claim("compiling, first / second start", first / second, least=3),
    ]
    print_json("startup", imports=imported, starts=found, kept_mib=size, claims=claims)


if __name__ == "__main__":
    main()
