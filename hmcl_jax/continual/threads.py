"""Threads of the CPU: XLA's, and those of the library that decomposes matrices."""

import os

NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def decompose_in_one_thread() -> None:
    """Limits OpenBLAS, with which JAX decomposes matrices on a CPU, to one thread.

    Its threads wait by spinning and take the cores from XLA and from other processes: on two busy
    cores a decomposition takes three times as long with them, on idle ones 0.8 times
    (``benchmarks/decomposition.py``). Call it before the first decomposition of the process.
    """
    if not any(name in os.environ for name in NAMES):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
