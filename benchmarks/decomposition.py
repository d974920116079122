"""What do OpenBLAS's own threads do to a decomposition?

    python benchmarks/decomposition.py
    python benchmarks/decomposition.py --short

Eigenvectors of a symmetric matrix of size 512 in JAX on a CPU, with one thread of OpenBLAS per
core, as it takes by itself, and with one in all (`hmcl_jax.continual.threads`), while the machine
is idle and beside a process that multiplies matrices. Each side has a process of its own; they take
turns.
"""

import argparse
import json
import os
import subprocess
import sys

import numpy as np

from timing import claim, print_json, print_table

SIZE = 512
NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


CODES = {
    "decompose": f"""
import json, time, jax, jax.numpy as jnp
x = jax.random.normal(jax.random.key(0), ({SIZE}, {SIZE}))
matrix, eigh, seconds = jnp.matmul(x, x.T), jax.jit(jnp.linalg.eigh), []
for _ in range(21):
    start = time.perf_counter()
    jax.block_until_ready(eigh(matrix))
    seconds.append(time.perf_counter() - start)
print(json.dumps(seconds[1:]))
""",
    "multiply": """
import jax, jax.numpy as jnp
product, x = jax.jit(jnp.matmul), jnp.ones((1024, 1024))
print("ready", flush=True)
while True:
    jax.block_until_ready(product(x, x))
""",
}


def start(role: str, threads: int = 1) -> subprocess.Popen:
    """A process that decomposes, or that keeps all cores busy until it is ended."""
    # The libraries read these when they are loaded, so each side is a new process.
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment[NAMES[0]] = str(threads)
    command = [sys.executable, "-c", CODES[role]]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def decompose(threads: int, busy: bool) -> list[float]:
    """Seconds of decompositions, perhaps beside a busy process."""
    other = start("multiply") if busy else None
    try:
        if other is not None and other.stdout is not None:
            other.stdout.readline()  # "ready": it has compiled and keeps all cores busy
        return json.loads(start("decompose", threads).communicate()[0])
    finally:
        if other is not None:
            other.kill()
            other.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one round")
    arguments = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(1 if arguments.short else arguments.rounds):
        for busy in (False, True):
            for name, threads in (("all", os.cpu_count() or 1), ("one", 1)):
                key = ("busy" if busy else "idle", name)
                found.setdefault(key, []).extend(decompose(threads, busy))
    print_table(
        ["machine", "threads", "median (ms)", "largest (ms)"],
        [[*key, 1e3 * float(np.median(x)), 1e3 * max(x)] for key, x in found.items()],
    )
    medians = {key: float(np.median(values)) for key, values in found.items()}
    claims = [
        claim(
            f"one thread / all, {state}",
            medians[state, "one"] / medians[state, "all"],
            most=1.5,
        )
        for state in ("idle", "busy")
    ]
    rows = {" ".join(key): values for key, values in found.items()}
    print_json("decomposition", size=SIZE, seconds=rows, claims=claims)


if __name__ == "__main__":
    main()
