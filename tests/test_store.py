"""The feature store: round trips, and damage that is named."""

import numpy as np
import pytest
from stores import tasks, write

from hmcl_jax.data.store import StoreError, Task, read_store


@pytest.fixture(params=["store", "store.zip"])
def path(request, tmp_path, rng):
    target = tmp_path / request.param
    write(target, tasks(rng), orders={"backwards": ["sounds", "animals"]})
    return target


def test_round_trip(path, rng):
    store = read_store(path)
    store.validate()
    for task, made in zip(store, tasks(np.random.default_rng(0)), strict=True):
        assert {**vars(task), "arrays": None} == {**vars(made), "arrays": None}
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


@pytest.mark.parametrize("name", ["../evil", "", ".hidden", "x" * 65, "manifest.json", 3])
def test_task_names_cannot_leave_the_store(tmp_path, rng, name):
    made = tasks(rng)
    made[0] = Task(**{**vars(made[0]), "name": name})
    with pytest.raises(StoreError, match="Task name"):
        write(tmp_path / "a", made)


def test_a_truncated_array_is_named(tmp_path, rng):
    write(tmp_path / "a", tasks(rng))
    victim = tmp_path / "a" / "animals" / "train_features.npy"
    victim.write_bytes(victim.read_bytes()[:-9])
    with pytest.raises(StoreError, match=r"animals/train_features\.npy does not match"):
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
