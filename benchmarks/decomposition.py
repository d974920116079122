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
import time
from contextlib import contextmanager

import numpy as np

from timing import claim, print_json, print_table

SIZE = 512
NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def decompose(calls: int) -> list[float]:
    """Seconds of decompositions in this process."""
    import jax
    import jax.numpy as jnp

    x = jax.random.normal(jax.random.key(0), (SIZE, SIZE))
    matrix = jnp.matmul(x, x.T)
    eigh = jax.jit(jnp.linalg.eigh)
    jax.block_until_ready(eigh(matrix))
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        jax.block_until_ready(eigh(matrix))
        seconds.append(time.perf_counter() - start)
    return seconds


def multiply() -> None:
    """Keeps all cores busy until it is ended."""
    import jax
    import jax.numpy as jnp

    product = jax.jit(jnp.matmul)
    x = jnp.ones((1024, 1024))
    print("ready", flush=True)
    while True:
        jax.block_until_ready(product(x, x))


def start(role: str, threads: int = 1) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment[NAMES[0]] = str(threads)
    command = [sys.executable, __file__, "--role", role]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@contextmanager
def neighbour(busy: bool):
    if not busy:
        yield
        return
    other = start("multiply")
    assert other.stdout is not None
    other.stdout.readline()
    try:
        yield
    finally:
        other.kill()
        other.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one round")
    parser.add_argument("--role", choices=["decompose", "multiply"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "multiply":
        multiply()
    if arguments.role == "decompose":
        print(json.dumps(decompose(20)))
        return
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(1 if arguments.short else arguments.rounds):
        for busy in (False, True):
            for name, threads in (("all", os.cpu_count() or 1), ("one", 1)):
                with neighbour(busy):
                    text, _ = start("decompose", threads).communicate()
                key = ("busy" if busy else "idle", name)
                found.setdefault(key, []).extend(json.loads(text))
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
