"""Mutated stores and configs: refused with our own errors, or read and unchanged."""

import json
import random
import shutil

import numpy as np
import pytest
from fuzzing import OUTSIDE, as_json, mutate_bytes, mutate_tree, sign
from stores import tasks, write

from hmcl_jax._files import json_sha256
from hmcl_jax.continual import ConfigError
from hmcl_jax.continual.experiment import read_experiment, read_order
from hmcl_jax.data.store import MANIFEST, NAME, StoreError, read_store

TOML = [
    *("-1", "0", "1e308", "nan", "inf", "-inf", "true", '""', "[]", "{}", "[[1]]", "1979-05-27"),
    *("9" * 400, "9" * 5000, "0x" + "f" * 5000, "2147483648", '"\\u0000"'),
    *("[" * 5000, "[" * 40 + "]" * 40, f'"{OUTSIDE}"', '"/dev/zero"', '"/etc/passwd"'),
    *(f'"{"x" * 5000}"', "{a = {b = 1}}", "'é'"),
]
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


def content(store):
    """All that is in a store."""
    arrays = [{name: x.tolist() for name, x in task.arrays.items()} for task in store]
    fields = [{**vars(task), "arrays": None} for task in store]
    return [arrays, fields, {key: value for key, value in vars(store).items() if key != "tasks"}]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store, plain or as int8, as a directory or one file, and what is in it."""
    folder, wholes = tmp_path_factory.mktemp("whole"), {}
    for features in (None, "int8"):
        for form in ("", ".zip"):
            whole = folder / f"whole-{features}{form}"
            write(whole, tasks(np.random.default_rng(0)), features=features)
            wholes[whole] = content(read_store(whole))
    return wholes


def damaged_store(chance, wholes, victim):
    """Reads a damaged store, half of the time with checksums that are right all the same."""
    whole, signed = chance.choice(list(wholes)), False
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
            signed = True
            try:
                manifest["sha256"] = json_sha256(manifest)
            except ValueError:  # not even JSON
                manifest["sha256"] = ""
        target.write_bytes(as_json(manifest))
    else:
        target.write_bytes(mutate_bytes(chance, data))
        if target.suffix == ".npy" and chance.random() < 0.5:
            signed = True
            sign(victim)
    verify = chance.random() < 0.5
    store = read_store(victim, verify)
    store.validate()
    store.describe()
    assert all(NAME.fullmatch(task.name) for task in store)
    assert signed or not verify or content(store) == wholes[whole]


def damaged_config(chance, _, victim):
    """Reads a config file with a damaged line, and single settings as of the command line."""
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


def fuzz(case, seed, count, wholes, folder):
    inside = folder / "a" / "b" / "inside"
    inside.mkdir(parents=True)
    refused = 0
    for number in range(count):
        victim = inside / f"case{number}"
        try:
            case(random.Random(seed * 1_000_003 + number), wholes, victim)
        except (StoreError, ConfigError):
            refused += 1
        if victim.is_dir():
            shutil.rmtree(victim)
        else:
            victim.unlink(missing_ok=True)
    assert refused > count / 3
    names = sorted(path.name for path in folder.rglob("*"))
    assert names == ["a", "b", "inside"], "something was written outside"


@pytest.mark.filterwarnings("ignore")  # of numpy, on numbers that only damage brings
@pytest.mark.parametrize(
    ("seed", "count"), [(0, 200), pytest.param(1, 3200, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", [damaged_store, damaged_config])
def test_mutations(tmp_path, stores, case, count, seed):
    fuzz(case, seed, count, stores, tmp_path)
