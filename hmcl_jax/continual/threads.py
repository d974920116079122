"""Threads of the CPU: XLA's, and those of the library that decomposes matrices."""

import os

NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def decompose_in_one_thread() -> None:
    """Has OpenBLAS, which JAX decomposes matrices with on a CPU, use one thread.

    Its own threads wait by spinning and take the cores from XLA's and from other processes: on two
    cores that are busy a decomposition takes three times as long with them, on idle ones 0.8 times
    (``benchmarks/decomposition.py``). Has an effect before the first decomposition of the process
    only; what you have set in the environment stays.

    Example:
      >>> from hmcl_jax.continual.threads import decompose_in_one_thread
      >>> decompose_in_one_thread()
    """
    if not any(name in os.environ for name in NAMES):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
