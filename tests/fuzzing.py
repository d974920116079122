"""Mutated files, each read in a process with a limit of memory and a clock; see test_fuzz.py.

    python tests/fuzzing.py store 0 1000

Prints how many were refused, with an error of our own, and how many were read. Anything else ends
the process: another error, a case of more than 20 seconds, more memory than a little above what the
process has at its start, or a file that was written beside the folder it works in.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

MEMORY = 512 * 2**20
SECONDS = 20
OUTSIDE = "../../../outside"
DEEP = "[" * 5000
JUNK = [
    *(None, True, -1, 0, 3.5, 1e308, 2**31, 2**63, 10**30, 10**400, "", "O", "|O8", "\ud800"),
    *(OUTSIDE, "/etc/passwd", "a\x00b", "x" * 5000, [], {}, [[]], [10**12, 10**12], {"a": {}}),
]
TOML = [
    *("-1", "0", "1e308", "nan", "inf", "-inf", "true", '""', "[]", "{}", "[[1]]", "1979-05-27"),
    *(
        "9" * 400,
        "9" * 5000,
        "0x" + "f" * 5000,
        DEEP,
        "[" * 40 + "]" * 40,
        "2147483648",
        '"\\u0000"',
    ),
    *(f'"{OUTSIDE}"', '"/dev/zero"', '"/etc/passwd"', f'"{"x" * 5000}"', "{a = {b = 1}}", "'é'"),
]


def mutate_bytes(chance: random.Random, data: bytes) -> bytes:
    """A flipped bit, a cut, an insertion, or a stretch of noise."""
    at = chance.randrange(len(data) + 1)
    kind = chance.randrange(4)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    noise = chance.randbytes(chance.randint(1, 40))
    return data[:at] + noise + data[at if kind == 2 else at + len(noise) :]


def mutate_tree(chance: random.Random, tree):
    """A JSON value with one random part replaced or removed."""
    if isinstance(tree, dict) and tree and chance.random() < 0.85:
        key = chance.choice(sorted(tree))
        if chance.random() < 0.15:
            return {k: v for k, v in tree.items() if k != key}
        if chance.random() < 0.05:
            return {OUTSIDE if k == key else k: v for k, v in tree.items()}
        return {**tree, key: mutate_tree(chance, tree[key])}
    if isinstance(tree, list) and tree and chance.random() < 0.85:
        at = chance.randrange(len(tree))
        return [*tree[:at], mutate_tree(chance, tree[at]), *tree[at + 1 :]]
    return chance.choice(JUNK)


def as_json(tree) -> bytes:
    return json.dumps(tree).encode("utf8", "surrogatepass")


def sign(store: Path) -> None:
    """Gives the manifest the checksums of the files as they are."""
    from hmcl_jax._files import file_sha256, json_sha256
    from hmcl_jax.data.store import MANIFEST

    manifest = json.loads((store / MANIFEST).read_bytes())
    for task in manifest["tasks"]:
        for array, entry in task["arrays"].items():
            parts = {f".{key}": x for key, x in entry.items() if isinstance(x, dict)}
            for suffix, part in (parts or {"": entry}).items():
                file = store / task["name"] / f"{array}{suffix}.npy"
                part["sha256"] = file_sha256(file)
    manifest["sha256"] = json_sha256(manifest)
    (store / MANIFEST).write_bytes(as_json(manifest))


class Stores:
    """A store, plain or as int8, as a directory or one file; also with checksums that are right."""

    def __init__(self, folder: Path) -> None:
        from stores import tasks, write

        self.wholes = []
        for features in (None, "int8"):
            for form in ("", ".zip"):
                self.wholes.append(folder / f"whole-{features}{form}")
                write(self.wholes[-1], tasks(np.random.default_rng(0)), features=features)

    def case(self, chance: random.Random, victim: Path) -> None:
        from hmcl_jax._files import json_sha256
        from hmcl_jax.data.store import MANIFEST, NAME, read_store

        whole = chance.choice(self.wholes)
        if whole.is_dir():
            shutil.copytree(whole, victim)
            files = sorted(path for path in victim.rglob("*") if path.is_file())
            target = victim / MANIFEST if chance.random() < 0.6 else chance.choice(files)
        else:
            target = victim
            shutil.copy(whole, victim)
        data = target.read_bytes()
        if target.name == MANIFEST and chance.random() < 0.8:
            manifest = mutate_tree(chance, json.loads(data))
            if isinstance(manifest, dict) and chance.random() < 0.8:
                try:
                    manifest["sha256"] = json_sha256(manifest)
                except ValueError:  # not even JSON
                    manifest["sha256"] = ""
            target.write_bytes(as_json(manifest))
        else:
            target.write_bytes(mutate_bytes(chance, data))
            if target.suffix == ".npy" and chance.random() < 0.5:
                sign(victim)
        store = read_store(victim, verify=chance.random() < 0.5)
        store.validate()
        store.describe()
        assert all(NAME.fullmatch(task.name) for task in store)


BASE = """
stream = "pocket"
seeds = [1, 2]
order = "canonical"
[train]
batch = 64
step = "epoch"
weight_decay = 0.1
on_bad = "stop"
spike = 10.0
mesh = "1x1"
reset_optimizer = true
classification = {epochs = 2, learning_rate = 0.1}
[methods.vanilla]
[methods.early]
method = "hmcl_mr"
placement = "pre"
beta = 0.1
[methods.early.train]
batch = 32
[methods.gem]
margin = 0.5
"""


class Configs:
    """A config file, and single settings as of the command line."""

    def __init__(self, folder: Path) -> None:
        del folder

    def case(self, chance: random.Random, victim: Path) -> None:
        from hmcl_jax.continual.experiment import read_experiment, read_order

        lines, overrides = BASE.strip().splitlines(), []
        at = chance.randrange(len(lines))
        key, equals, _ = lines[at].partition(" = ")
        kind = chance.random()
        if kind < 0.5 and equals:
            lines[at] = f"{key} = {chance.choice(TOML)}"
        elif kind < 0.6:
            lines[at] = f'[methods."{OUTSIDE}"]\nmethod = "vanilla"'
        elif kind < 0.7:
            lines[at] = f"{key}x = {chance.choice(TOML)}"
        elif kind < 0.8:
            del lines[at]
        elif kind < 0.9:
            place = chance.choice(["train.batch", "train", "methods.gem.margin", "seeds", "order"])
            overrides = [f"{place}={chance.choice(TOML)}"]
        data = "\n".join(lines).encode()
        victim.write_bytes(mutate_bytes(chance, data) if kind >= 0.9 else data)
        experiment = read_experiment(victim, overrides)
        read_order(experiment.order, ["canonical"])
        assert all("/" not in name for name in experiment.methods)


class Runs:
    """The file that says what run a directory holds."""

    def __init__(self, folder: Path) -> None:
        from run_directories import saved

        self.whole = folder / "whole"
        saved(self.whole, steps=1)

    def case(self, chance: random.Random, victim: Path) -> None:
        from run_directories import IDENTITY

        from hmcl_jax.continual.checkpoint import check_neighbours, open_run

        shutil.copytree(self.whole, victim / "hmcl")
        file = victim / "hmcl" / "run.json"
        tree = json.loads(file.read_bytes())
        kind = chance.random()
        if kind < 0.6:
            file.write_bytes(as_json(mutate_tree(chance, tree)))
        elif kind < 0.65:
            file.write_bytes(DEEP.encode())
        else:
            file.write_bytes(mutate_bytes(chance, file.read_bytes()))
        check_neighbours(victim, IDENTITY)
        with open_run(victim / "hmcl", IDENTITY, resume=True) as run:
            assert run.latest() == 1


class Steps:
    """A checkpoint; its note also with a checksum that is right."""

    def __init__(self, folder: Path) -> None:
        from run_directories import saved

        self.whole = folder / "whole"
        self.states = saved(self.whole, steps=1)
        self.case(random.Random(0), folder / "first", unharmed=True)

    def case(self, chance: random.Random, victim: Path, unharmed: bool = False) -> None:
        from run_directories import assert_same, resumed

        from hmcl_jax._files import json_sha256

        shutil.copytree(self.whole, victim)
        step = victim / "steps" / "1"
        note = step / "_CHECKPOINT_METADATA"
        files = sorted(path for path in step.rglob("*") if path.is_file() and path.stat().st_size)
        target = note if chance.random() < 0.6 else chance.choice(files)
        sealed = False
        if unharmed:
            pass
        elif target == note and chance.random() < 0.8:
            tree = json.loads(note.read_bytes())
            sealed = chance.random() < 0.8
            if sealed:
                kept = mutate_tree(chance, tree["custom_metadata"])
                tree["custom_metadata"] = kept
                if isinstance(kept, dict):
                    kept["sha256"] = json_sha256(kept)
            else:
                tree = mutate_tree(chance, tree)
            note.write_bytes(as_json(tree))
        else:
            target.write_bytes(mutate_bytes(chance, target.read_bytes()))
        with resumed(victim) as run:
            state, _ = run.restore(self.states[1])
        assert_same(state, self.states[1])


class Records:
    """What a finished run tells of its tasks, with checksums that are right."""

    def __init__(self, folder: Path) -> None:
        from hmcl_jax.continual import Schedule, TrainConfig
        from hmcl_jax.data.synthetic import synthetic_stream

        self.store = synthetic_stream(tasks=2, classes=2, dimension=4, train=8, test=8)
        self.config = TrainConfig(classification=Schedule(1, 0.01), batch=8)
        self.whole = folder / "whole"
        self.go(self.whole, resume=False)
        self.case(random.Random(0), folder / "first", unharmed=True)

    def go(self, out: Path, resume: bool) -> None:
        from hmcl_jax.continual import read_runs, run_stream

        found = run_stream(self.store, ["hmcl_mr"], [0, 1], self.config, out=out, resume=resume)[
            "hmcl_mr"
        ]
        assert np.isfinite(found.scores[:, [0, 1, 1], [0, 0, 1]]).all()
        saved = read_runs(out, self.store)["hmcl_mr"]
        saved.stopped()
        saved.heads(2)

    def case(self, chance: random.Random, victim: Path, unharmed: bool = False) -> None:
        from hmcl_jax._files import json_sha256
        from hmcl_jax.continual.history import pack, unpack

        shutil.copytree(self.whole, victim)
        file = victim / "hmcl_mr" / "steps" / "2" / "_CHECKPOINT_METADATA"
        tree = json.loads(file.read_bytes())
        note = tree["custom_metadata"]
        record, kind = note["record"], chance.random()
        if not unharmed and kind < 0.5:
            at = chance.randrange(2)
            record["history"][at] = pack(mutate_tree(chance, unpack(record["history"][at])))
        elif not unharmed and kind < 0.7:
            at = chance.randrange(2)
            text = mutate_bytes(chance, record["history"][at].encode())
            record["history"][at] = text.decode("latin1")
        elif not unharmed and kind < 0.9:
            place, seed = chance.choice(JUNK), chance.choice([0, *JUNK])
            report = {"place": place, "seed": seed, "task": "task1", "epoch": 1, "quantity": "loss"}
            report |= {"modalities": ["text"], "value": None}
            record["stopped"] = [mutate_tree(chance, report) if chance.random() < 0.5 else report]
        elif not unharmed:
            note["record"] = mutate_tree(chance, record)
        note["sha256"] = json_sha256(note)
        file.write_bytes(as_json(tree))
        self.go(victim, resume=True)


KINDS = {"store": Stores, "config": Configs, "run": Runs, "step": Steps, "record": Records}


def listing(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if "inside" not in path.parts)


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> None:
    kind, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    from hmcl_jax.continual import ConfigError, RunError
    from hmcl_jax.data.store import StoreError

    outcomes = {"refused": 0, "read": 0}
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        inside = base / "a" / "b" / "inside"
        inside.mkdir(parents=True)
        os.chdir(inside)
        fuzzed = KINDS[kind](inside)
        before = listing(base)
        resource.setrlimit(resource.RLIMIT_AS, (memory() + MEMORY, resource.RLIM_INFINITY))
        for number in range(count):
            victim = inside / f"case{number}"
            chance = random.Random(seed * 1_000_003 + number)
            signal.alarm(SECONDS)
            try:
                fuzzed.case(chance, victim)
                outcomes["read"] += 1
            except (StoreError, ConfigError, RunError) as error:
                if not str(error):
                    raise
                outcomes["refused"] += 1
            except BaseException:
                print(f"{kind} {seed} {number}", file=sys.stderr)
                raise
            finally:
                signal.alarm(0)
            if victim.is_dir():
                shutil.rmtree(victim)
            else:
                victim.unlink(missing_ok=True)
        assert listing(base) == before, "something was written outside"
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
