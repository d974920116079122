"""What the benchmarks share: sides that take turns, medians, paired ratios, table and JSON line."""

import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hmcl_jax._versions import versions
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.report.results import markdown_rows

decompose_in_one_thread()  # as the experiments do

Sides = Mapping[str, Callable[[], Any]]


def interleave(
    sides: Sides, repeats: int, warmup: int = 1, settle: bool = False
) -> dict[str, np.ndarray]:
    """Seconds of each side in each round.

    A round calls every side once and waits for what it returns. The order turns by one place from
    round to round and every other round runs backwards, so that no side always follows the same.

    Args:
      sides: functions by name.
      repeats: rounds that are counted.
      warmup: rounds before them, for compilation and caches.
      settle: call a side twice in its turn and count the second. Threads of another library spin
        for a while before they sleep, and would take this side's cores.

    Returns:
      ``{name: (repeats,)}``.
    """
    names = list(sides)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmup, repeats):
        turn = number % len(names)
        order = names[turn:] + names[:turn]
        for name in order[:: -1 if number % 2 else 1]:
            if settle:
                jax.block_until_ready(sides[name]())
            start = time.perf_counter()
            jax.block_until_ready(sides[name]())
            if number >= 0:
                times[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in times.items()}


def fast(function: Callable[[], Any], least: float = 0.02) -> Callable[[], Any]:
    """`function` as often in one call as takes `least` seconds; see :func:`per_call`."""
    jax.block_until_ready(function())
    start = time.perf_counter()
    jax.block_until_ready(function())
    calls = max(1, round(least / (time.perf_counter() - start)))

    def many() -> None:
        for _ in range(calls):
            jax.block_until_ready(function())

    many.calls = calls  # type: ignore[attr-defined]
    return many


def per_call(sides: Sides, repeats: int) -> dict[str, np.ndarray]:
    """As :func:`interleave`, for sides that are too short for the clock: seconds of one call."""
    many = {name: fast(function) for name, function in sides.items()}
    times = interleave(many, repeats)
    return {name: values / many[name].calls for name, values in times.items()}  # type: ignore[attr-defined]


def time_run(words: Sequence[str], caches: str | Path, out: str | Path) -> tuple[float, dict]:
    """Seconds of `hmcl run` in a process of its own, and what results.json says about it."""
    # A folder that a user keeps programs in would hide what the first start costs.
    ours = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment["XDG_CACHE_HOME"] = str(caches)
    command = [sys.executable, "-m", "hmcl_jax", "run", *words, "--out", str(out)]
    start = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - start
    return seconds, json.loads((Path(out) / "results.json").read_text("utf8"))["about"]


def median(values: np.ndarray) -> float:
    return float(np.median(values))


def undisturbed(values: np.ndarray) -> float:
    """Mean of the fastest quarter: what else runs on a machine only ever adds time."""
    return float(np.sort(values)[: max(1, len(values) // 4)].mean())


def ratio(times: Mapping[str, np.ndarray], side: str, base: str) -> dict[str, float]:
    """`side` / `base`: undisturbed, and the median over rounds with a 95 % bootstrap interval."""
    paired = times[side] / times[base]
    # Pairs of one round, because what else runs on the machine slows both of them.
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(paired, (4000, len(paired))), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    fastest = undisturbed(times[side]) / undisturbed(times[base])
    return {"undisturbed": fastest, "ratio": median(paired), "low": float(low), "high": float(high)}


def shown(found: Mapping[str, float], digits: int = 3) -> str:
    """A ratio with the median over rounds and its interval, for a table."""
    interval = f"[{found['low']:.{digits}f}, {found['high']:.{digits}f}]"
    return f"{found['undisturbed']:.{digits}f}; {found['ratio']:.{digits}f} {interval}"


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """p of the fit y ~ x^p."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def claim(text: str, value: float, *, most: float = np.inf, least: float = -np.inf) -> dict:
    """A bound that should hold, printed with what was found."""
    holds = bool(least <= value <= most)
    bound = f"at most {most:g}" if np.isfinite(most) else f"at least {least:g}"
    print(f"{text}: {value:.5g}, should be {bound}: {'holds' if holds else 'DOES NOT HOLD'}")
    return {"claim": text, "value": value, "bound": bound, "holds": holds}


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A Markdown table; numbers with three significant digits."""
    cells = [[f"{x:.3g}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    print(f"\n{markdown_rows([list(header), *cells])}\n", flush=True)


def peak_mib() -> float:
    """Peak of this process's resident memory so far, mapped pages of files included."""
    status = Path("/proc/self/status")
    if status.exists():  # a new process starts at 0 there, not so in getrusage
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cores = getattr(os, "process_cpu_count", os.cpu_count)()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    device = jax.devices()[0]
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": cores,
        "backend": jax.default_backend(),
        "device": device.device_kind,
    }


def print_json(benchmark: str, **numbers: Any) -> None:
    """Everything on one line, with versions and machine; the last line of a benchmark."""
    found = {"benchmark": benchmark, "versions": versions(), "machine": machine(), **numbers}
    print(json.dumps(found, default=float))
