"""The feature store: round trips, damage that is named, and 2,000 mutations."""

import contextlib
import json
import shutil

import numpy as np
import pytest
from stores import tasks, write

from hmcl_jax._files import json_sha256
from hmcl_jax.data.store import MANIFEST, Store, StoreError, Task, read_store, write_store
from hmcl_jax.data.synthetic import synthetic_stream


@pytest.fixture(params=["store", "store.zip"])
def path(request, tmp_path, rng):
    target = tmp_path / request.param
    write(target, tasks(rng), orders={"backwards": ["sounds", "animals"]})
    return target


def same(a: Store, b: Store) -> bool:
    def plain(store):
        return [
            {**vars(task), "arrays": {k: v.tolist() for k, v in task.arrays.items()}}
            for task in store
        ]

    fields = ("name", "backbone", "K", "tau", "dimension", "orders", "fingerprint", "provenance")
    return plain(a) == plain(b) and all(getattr(a, f) == getattr(b, f) for f in fields)


def test_round_trip(path, rng):
    store = read_store(path)
    store.validate()
    for task, made in zip(store, tasks(np.random.default_rng(0)), strict=True):
        assert {k: v for k, v in vars(task).items() if k != "arrays"} == {
            k: v for k, v in vars(made).items() if k != "arrays"
        }
        for name, array in made.arrays.items():
            np.testing.assert_array_equal(task.arrays[name], array)
            assert not task.arrays[name].flags.writeable
            assert task.arrays[name].flags.aligned
    assert store.modalities == ("audio", "image", "text")
    assert store.orders == {
        "canonical": ("animals", "sounds"),
        "backwards": ("sounds", "animals"),
    }
    assert store["sounds"].size("train") == 6
    assert [store["sounds"].thumbnail(row) for row in range(3)] == [b"two", None, b"one"]
    assert store["animals"].thumbnail(0) is None
    assert store["animals"].chance == 1 / 3
    with pytest.raises(KeyError, match=r"'birds'.*\['animals', 'sounds'\]"):
        store["birds"]


def test_directory_and_file_have_one_fingerprint(tmp_path, rng):
    made = tasks(rng)
    assert write(tmp_path / "a", made) == write(tmp_path / "b.zip", made)
    write(tmp_path / "c.zip", made)
    assert (tmp_path / "b.zip").read_bytes() == (tmp_path / "c.zip").read_bytes()


def test_describe_is_a_table_with_every_task(path):
    text = read_store(path).describe()
    assert "two: 2 tasks, d = 8, K = 10, tau = 0.07" in text
    for word in ("animals", "sounds", "classification", "text > audio", "33.3%", "50.0%", "mean"):
        assert word in text


def test_nothing_is_overwritten_and_nothing_left_behind(tmp_path, rng):
    made = tasks(rng)
    write(tmp_path / "a", made)
    with pytest.raises(StoreError, match="exists already"):
        write(tmp_path / "a", made)
    made[0].arrays["train_labels"][3] = 7
    with pytest.raises(StoreError, match="train_labels row 3"):
        write(tmp_path / "b", made)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "x" * 65, "a\x00b"])
def test_task_names_cannot_leave_the_store(tmp_path, rng, name):
    made = tasks(rng)
    made[0] = Task(**{**vars(made[0]), "name": name})
    with pytest.raises(StoreError, match="Task name"):
        write(tmp_path / "a", made)


def test_a_truncated_array_is_named(tmp_path, rng):
    write(tmp_path / "a", tasks(rng))
    victim = tmp_path / "a" / "animals" / "train_features.npy"
    victim.write_bytes(victim.read_bytes()[:-9])
    with pytest.raises(
        StoreError, match=r"animals/train_features\.npy does not match its checksum"
    ):
        read_store(tmp_path / "a")
    with pytest.raises(StoreError, match=r"animals/train_features\.npy has .* truncated"):
        read_store(tmp_path / "a", verify=False)


def test_missing_stores_and_members_are_named(tmp_path, rng):
    with pytest.raises(StoreError, match=r"no store at .*nowhere"):
        read_store(tmp_path / "nowhere")
    write(tmp_path / "a", tasks(rng))
    (tmp_path / "a" / "sounds" / "test_pairs.npy").unlink()
    with pytest.raises(StoreError, match="test_pairs"):
        read_store(tmp_path / "a")


def mutate_json(rng, value):
    """Replaces, removes or wraps one random part of a JSON value."""
    junk = [None, -1, 1e308, 10**30, "", "../../x", [], {}, True, "\ud800", [[]], 3.5, "O", "|O8"]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: mutate_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.integers(len(value))
        return [*value[:at], mutate_json(rng, value[at]), *value[at + 1 :]]
    return junk[rng.integers(len(junk))]


@pytest.mark.parametrize("trials", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutations_are_refused_or_harmless(tmp_path, trials):

    rng = np.random.default_rng(0)
    outcomes = {"refused": 0, "unchanged": 0}
    forms = {"store": None, "store.zip": None, "coded": "int8"}
    for form, features in forms.items():
        whole = tmp_path / form
        write(whole, tasks(np.random.default_rng(0)), features=features)
        original = read_store(whole)
        for trial in range(trials):
            victim = tmp_path / f"victim-{form}"
            if whole.is_dir():
                shutil.rmtree(victim, ignore_errors=True)
                shutil.copytree(whole, victim)
                files = sorted(p for p in victim.rglob("*") if p.is_file())
                target = files[rng.integers(len(files))] if trial % 2 else victim / MANIFEST
            else:
                shutil.copy(whole, victim)
                target = victim
            data = bytearray(target.read_bytes())
            if target.name == MANIFEST and trial % 4 == 0:
                manifest = mutate_json(rng, json.loads(data))
                if isinstance(manifest, dict) and trial % 8 == 0:  # an attacker fixes the checksum
                    with contextlib.suppress(ValueError, TypeError):
                        manifest["sha256"] = json_sha256(manifest)
                text = json.dumps(manifest)
                target.write_text(text, encoding="utf8", errors="surrogatepass")
            else:
                kind = rng.integers(4)
                at = int(rng.integers(len(data)))
                if kind == 0:
                    data[at] ^= 1 << int(rng.integers(8))
                elif kind == 1:
                    del data[at:]
                elif kind == 2:
                    data[at:at] = rng.bytes(int(rng.integers(1, 40)))
                else:
                    data[at : at + 16] = rng.bytes(16)
                target.write_bytes(bytes(data))
            try:
                found = read_store(victim)
                found.validate()
            except StoreError:
                outcomes["refused"] += 1
                continue
            if not (target.name == MANIFEST and trial % 8 == 0):
                assert same(found, original), (form, trial)
            outcomes["unchanged"] += 1
    print(outcomes)
    assert sum(outcomes.values()) == len(forms) * trials
    assert outcomes["refused"] > 0.75 * len(forms) * trials


def test_synthetic_streams_can_be_written(tmp_path):
    stream = synthetic_stream(tasks=2, train=16, test=8)
    write_store(tmp_path / "s.zip", stream.tasks, name="s", backbone="b", K=stream.K, tau=0.1)
    assert len(read_store(tmp_path / "s.zip")) == 2
