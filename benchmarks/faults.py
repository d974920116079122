"""Is anything lost, or silently wrong, when machines fail? Runs with random faults.

    python benchmarks/faults.py --runs 200
    python benchmarks/faults.py --short

Every run is experiments/run_stream.py on a small stream, disturbed in one way: killed at random
moments (SIGKILL, SIGTERM, SIGINT, several times), on a full disk (RLIMIT_FSIZE), in a directory
that cannot be written, with a newest checkpoint that is truncated or has a flipped bit, with a
store that is gone or damaged, with a lock file of a dead process, or twice at a time in one
directory. Then the fault is mended as the message says, and the run goes on with --resume. It must
end bitwise equal to the run that nothing disturbed: every array of the last checkpoint by its
SHA-256, and all scores and losses.

Processes are forked from one that has imported everything but has not started JAX.
"""

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("vanilla", "hmcl_ca")
TASKS = 3
CRASH = 70
PATIENCE = 1800.0  # seconds; machines may be busy
# Arrays that fail after the first one, which ended the save: Orbax prints them.
STRAGGLERS = ("RuntimeError: Event loop is closed", "was never retrieved")
DONE = re.compile(r"(\w+: task \d+/\d+) \S+ done")
# What messages must say, after which the fault is mended.
REMEDIES = (
    "--resume",
    "resume the run",
    "delete the directory",
    "choose another directory",
    "wait for it",
    "--stream must be",
    "is not a readable store",
    "does not match its checksum",
    "cannot be used",
)


class Child:
    """A forked process that runs the command; its output goes to a file."""

    def __init__(self, arguments: list[str], log: Path, before: Callable[[], None]) -> None:
        self.log = log
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            run_command(arguments, log, before)
        self.code: int | None = None

    def wait(self) -> int:
        """Its exit code, negative for a signal."""
        end = time.monotonic() + PATIENCE
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.code = CRASH
                with open(self.log, "a") as log:
                    log.write("\nIT HUNG\n")
            else:
                time.sleep(0.005)
        return self.code

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def said(self) -> str:
        return self.log.read_text("utf8", "replace") if self.log.exists() else ""

    def done(self) -> set[str]:
        """The tasks that it said were done, which it says after they are saved."""
        return set(DONE.findall(self.said()))


def run_command(arguments: list[str], log: Path, before: Callable[[], None]) -> None:
    """What a forked process does; never returns."""
    code, said = CRASH, ""
    try:
        try:
            import run_stream  # type: ignore[import-not-found]

            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # even if started with &
            before()
            sys.argv = ["run_stream.py", *arguments]
            run_stream.main()
            code = 0
        except SystemExit as stop:
            code, said = (
                (1, f"{stop.code}\n") if isinstance(stop.code, str) else (stop.code or 0, "")
            )
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            said = traceback.format_exc()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # the log may have come to its end
        os.write(2, said.encode())
    finally:  # whatever happens: what is above in the stack is the parent's
        os._exit(code)


def without_rights() -> None:
    """Takes root's right to write where the mode forbids it; for others it does nothing."""
    if os.geteuid() != 0:
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capget(header, data) == 0:
        for part in (0, 1):
            data[part] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.capset(header, data)


def small_files(limit: int) -> Callable[[], None]:
    def before() -> None:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))

    return before


def nothing() -> None:
    pass


class Case:
    """One run with one kind of fault, and what became of it."""

    def __init__(self, folder: Path, reference: Path, seed: int, duration: float) -> None:
        self.folder, self.reference, self.duration = folder, reference, duration
        self.store, self.out = folder / "store", folder / "out"
        self.chance = random.Random(seed)
        self.children = 0
        self.redone: set[str] = set()  # tasks that a damaged step has lost, to be learned again
        self.known: set[str] = set()  # tasks that were done and saved
        self.lost: set[str] = set()
        self.figures = {"disturbed": 0, "warned": 0, "explained": 0}
        self.wrong: list[str] = []
        folder.mkdir()
        shutil.copytree(reference.parent / "store", self.store)

    def start(self, before: Callable[[], None] = nothing) -> Child:
        self.children += 1
        log = self.folder / f"log{self.children}.txt"
        return Child(command(self.store, self.out), log, before)

    def look(self, child: Child, expected: tuple[int, ...] = (0,)) -> int:
        """Waits for a process and takes down what it did."""
        code, said = child.wait(), child.said()
        done = child.done()
        self.lost |= (done & self.known) - self.redone
        self.redone -= done
        self.known |= done
        self.figures["warned"] += "is damaged and was renamed" in said
        tracebacks = said.count("Traceback") - sum(said.count(text) for text in STRAGGLERS)
        if code == 1 and any(text in said for text in REMEDIES) and tracebacks <= 0:
            self.figures["explained"] += 1
        # A Ctrl-C that strikes while Python collects garbage is printed and forgotten.
        elif code not in expected or tracebacks > said.count("Exception ignored in"):
            self.wrong.append(f"code {code}: {said[-1500:]}")
        return code

    def partial(self) -> int:
        """A run that was killed after some task, made from the undisturbed one."""
        shutil.copytree(self.reference, self.out)
        for name in ("results.json", "table.md", "table.tex"):
            (self.out / name).unlink()
        finished = self.chance.randint(1, TASKS * len(METHODS) - 1)
        for place, method in enumerate(METHODS):
            kept = min(max(finished - place * TASKS, 0), TASKS)
            for number in range(1, TASKS + 1):
                if number <= kept:
                    self.known.add(f"{method}: task {number}/{TASKS}")
                else:
                    shutil.rmtree(self.out / method / "steps" / str(number))
        return finished

    def newest(self) -> tuple[str, Path]:
        """A method that has begun, and its newest step."""
        begun = [m for m in METHODS if steps(self.out, m)]
        method = self.chance.choice(begun)
        return method, self.out / method / "steps" / str(max(steps(self.out, method)))

    # Faults

    def signals(self, number: signal.Signals, codes: tuple[int, ...]) -> None:
        for _ in range(self.chance.randint(1, 3)):
            child = self.start()
            if self.chance.random() < 0.5:
                time.sleep(self.chance.uniform(0, self.duration))
            else:
                wanted = self.chance.randint(0, TASKS * len(METHODS) - 1)
                while not child.ended() and len(child.done()) < wanted:
                    time.sleep(0.005)
                time.sleep(self.chance.uniform(0, self.duration / 4))
            if not child.ended():
                os.kill(child.pid, number)
            code = self.look(child, (0, *codes))
            self.figures["disturbed"] += code in codes
            if code in codes and code > 0 and "--resume" not in child.said():
                self.wrong.append(f"no word of --resume: {child.said()}")

    def full_disk(self) -> None:
        if self.chance.random() < 0.5:
            self.partial()
        code = self.look(self.start(small_files(self.chance.choice([2048, 4096, 8192, 16384]))))
        self.figures["disturbed"] += code != 0

    def read_only(self) -> None:
        if self.chance.random() < 0.3:
            self.out.mkdir()
        else:
            self.partial()
        folders = [self.out, *(path for path in self.out.rglob("*") if path.is_dir())]
        for path in folders:
            path.chmod(0o555)
        code = self.look(self.start(without_rights))
        for path in folders:
            path.chmod(0o755)
        self.figures["disturbed"] += code != 0

    def damaged(self, damage: Callable[[bytes], bytes]) -> None:
        self.partial()
        method, step = self.newest()
        files = sorted(path for path in step.rglob("*") if path.is_file())
        sizes = [path.stat().st_size for path in files]  # every byte is hit as likely
        file = self.chance.choices(files, sizes)[0]
        file.write_bytes(damage(file.read_bytes()))
        self.figures["disturbed"] += 1
        self.redone.add(f"{method}: task {step.name}/{TASKS}")
        child = self.start()
        if self.look(child) == 1 and f"delete the directory {step}" in child.said():
            shutil.rmtree(step)

    def truncated(self) -> None:
        self.damaged(lambda data: data[: self.chance.randrange(len(data))])

    def flipped(self) -> None:
        def flip(data: bytes) -> bytes:
            at = self.chance.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << self.chance.randrange(8)]) + data[at + 1 :]

        self.damaged(flip)

    def store_gone(self) -> None:
        self.partial()
        away = self.folder / "away"
        if self.chance.random() < 0.5:  # before it starts
            if self.chance.random() < 0.5:
                self.store.rename(away)
            else:
                shutil.copytree(self.store, away)
                files = sorted(self.store.rglob("*.*"))
                file = self.chance.choice([path for path in files if path.is_file()])
                file.write_bytes(file.read_bytes()[:-1])
            code = self.look(self.start())
            self.figures["disturbed"] += code != 0
            shutil.rmtree(self.store, ignore_errors=True)
            away.rename(self.store)
        else:  # while it runs: it has the arrays mapped
            child = self.start()
            time.sleep(self.chance.uniform(0, self.duration))
            self.store.rename(away)
            self.look(child)
            away.rename(self.store)
            self.figures["disturbed"] += 1

    def stale_lock(self) -> None:
        self.partial()
        for method in METHODS:
            pid = self.chance.choice([os.getpid(), 1, 99999999, -1])
            (self.out / method / "run.lock").write_text(str(pid))
        self.figures["disturbed"] += 1

    def two_at_once(self) -> None:
        first = self.start()
        time.sleep(self.chance.uniform(0, self.duration))
        code = self.look(self.start())
        self.look(first)
        self.figures["disturbed"] += code != 0

    def finish(self, expected: Any) -> dict[str, Any]:
        """Resumes the mended run to its end, and compares."""
        code = self.look(self.start())
        found = digest(self.out) if code == 0 else None
        return {
            **self.figures,
            "processes": self.children,
            "equal": found == expected,
            "different": code == 0 and found != expected,
            "lost": sorted(self.lost),
            "wrong": self.wrong + ([] if code == 0 else ["did not come to its end"]),
        }


KINDS: dict[str, Callable[[Case], None]] = {
    "SIGKILL": lambda case: case.signals(signal.SIGKILL, (-9,)),
    "SIGTERM": lambda case: case.signals(signal.SIGTERM, (-15,)),
    "flipped bit": Case.flipped,
    "full disk": Case.full_disk,
    "two at once": Case.two_at_once,
    "read-only": Case.read_only,
    "SIGINT": lambda case: case.signals(signal.SIGINT, (130, -2)),
    "truncated": Case.truncated,
    "store gone": Case.store_gone,
    "stale lock": Case.stale_lock,
}


def command(store: Path, out: Path) -> list[str]:
    return [
        *("--stream", str(store), "--out", str(out), "--methods", ",".join(METHODS)),
        *("--seeds", "0,1", "--set", "train.batch=32", "--resume"),
        *("--set", "train.classification={epochs=2, learning_rate=0.02}"),
    ]


def steps(out: Path, method: str) -> list[int]:
    folder = out / method / "steps"
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


def digest(out: Path) -> dict[str, Any]:
    """All that a run has come to, by method."""
    results = json.loads((out / "results.json").read_text("utf8"))["methods"]
    found = {}
    for method in METHODS:
        note = out / method / "steps" / str(TASKS) / "_CHECKPOINT_METADATA"
        leaves = json.loads(note.read_text("utf8"))["custom_metadata"]["leaves"]
        hashes = {name: leaf["sha256"] for name, leaf in leaves.items()}
        found[method] = [hashes, *(results[method][key] for key in ("scores", "losses", "details"))]
    return found


def make_store(path: Path) -> None:
    from hmcl_jax.data.store import write_store
    from hmcl_jax.data.synthetic import synthetic_stream

    store = synthetic_stream(tasks=TASKS, classes=4, dimension=8, train=40, test=20)
    write_store(path, store.tasks, name="s", backbone="synthetic", K=store.K, tau=store.tau)


def campaign(folder: Path, runs: int, seed: int, log: Path | None) -> list[dict[str, Any]]:
    """All runs, each with the next kind of fault."""
    make_store(folder / "store")
    for attempt in ("first", "reference"):  # the first one compiles
        begun = time.monotonic()
        child = Child(command(folder / "store", folder / attempt), folder / "log.txt", nothing)
        if child.wait():
            sys.exit(f"faults: the undisturbed run failed.\n{child.said()}")
        duration = time.monotonic() - begun
    reference, expected = folder / "reference", digest(folder / "reference")
    if digest(folder / "first") != expected:
        sys.exit("faults: two undisturbed runs differ.")
    found = []
    names = list(KINDS)
    for number in range(runs):
        kind = names[number % len(names)]
        case = Case(folder / f"case{number}", reference, seed * 1_000_003 + number, duration)
        KINDS[kind](case)
        found.append({"kind": kind, "number": number, **case.finish(expected)})
        if found[-1]["wrong"] or found[-1]["lost"] or found[-1]["different"]:
            print(f"run {number}, {kind}: {json.dumps(found[-1])}", flush=True)
        shutil.rmtree(case.folder)
        if (number + 1) % 10 == 0:
            print(f"{number + 1} of {runs} runs", file=sys.stderr, flush=True)
        if log:
            log.write_text(json.dumps({"seed": seed, "runs": found}, indent=1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="one run of every kind")
    parser.add_argument("--out", type=Path, help="a JSON file for what became of every run")
    arguments = parser.parse_args()
    runs = len(KINDS) if arguments.short else arguments.runs
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": f"{name}/programs"}
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        sys.path.insert(0, str(ROOT / "experiments"))
        import run_stream  # noqa: F401
        from orbax.checkpoint import v1  # noqa: F401

        found = campaign(Path(name), runs, arguments.seed, arguments.out)
    minutes = (time.monotonic() - begun) / 60
    rows = []
    for kind in [*KINDS, "all"]:
        own = [run for run in found if kind in (run["kind"], "all")]
        if own:
            sums = (sum(run[key] for run in own) for key in ("disturbed", "warned", "explained"))
            counts = (sum(bool(run[key]) for run in own) for key in ("equal", "different", "wrong"))
            lost = sum(len(run["lost"]) for run in own)
            equal, different, wrong = counts
            rows.append([kind, len(own), *sums, equal, lost, different, wrong])
    header = ["fault", "runs", "faults that struck", "warnings", "errors with a remedy"]
    header += ["ended equal", "lost tasks", "silent differences", "anything else"]
    from timing import print_json, print_table

    print_table(header, rows)
    print(f"{minutes:.1f} minutes, {sum(run['processes'] for run in found)} processes")
    totals = dict(zip(header[1:], rows[-1][1:], strict=True))
    print_json("faults", seed=arguments.seed, minutes=minutes, **totals)
    if any(rows[-1][6:]) or rows[-1][5] != len(found):
        sys.exit("faults: something was lost, different or unexplained; see above.")


if __name__ == "__main__":
    main()
