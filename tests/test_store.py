"""The feature store: round trips, and damage that is named."""

import json

import numpy as np
import pytest
from stores import plant, tasks, write

from hmcl_jax._files import json_sha256
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


def test_nothing_is_overwritten(tmp_path, rng):
    made = tasks(rng)
    write(tmp_path / "a", made)
    with pytest.raises(StoreError, match="exists already"):
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


@pytest.mark.parametrize(
    ("which", "name", "edit", "message"),
    [
        (0, "train_features", plant((7, 2), np.nan), "'animals': train_features row 7 is not f"),
        (0, "test_labels", plant(4, 3), r"test_labels row 4 is 3, outside of \[0, 3\)"),
        (1, "train_pairs", plant((3, 1), 6), r"train_pairs, general row 3 is 6, outside"),
        (1, "test_pairs", plant((1,), [0, 2]), "test_specific row 1 is in no pair"),
        (1, "train_pairs", lambda a: np.concatenate([a, a[2:3]]), r"repeats the pair \[2 2\]"),
        (1, "thumbnail_rows", plant(1, 3), "thumbnail_rows row 1 is 3"),
        (1, "thumbnail_ends", plant(1, 5), "thumbnail_ends must grow up to 6"),
        (0, "test_labels", lambda a: a[:4], r"test_labels must have shape \(5,\)"),
        (0, "train_features", lambda a: a[:, :5], r"train_features must have shape \(n, 8\)"),
        (1, "test_specific", lambda a: a[:0], "test_specific must have shape"),
        (0, "train_features", lambda a: np.float32(a) * 1e6, "row 0 has radius"),
        (0, "train_labels", lambda a: a + 0.5, "train_labels must be whole numbers"),
        (0, "train_labels", lambda a: np.int64(a) + 2**32, "row 0 is .*beyond int32"),
    ],
)
def test_the_array_and_the_row_are_named(tmp_path, rng, which, name, edit, message):
    made = tasks(rng)
    made[which].arrays[name] = edit(np.array(made[which].arrays[name]))
    with pytest.raises(StoreError, match=message):
        write(tmp_path / "a", made)
    assert not list(tmp_path.iterdir())


def test_other_mistakes_in_writing_are_named(tmp_path, rng):
    first, second = tasks(rng)

    def refused(message, *made, **more):
        with pytest.raises(StoreError, match=message):
            write(more.pop("path", tmp_path / "a.zip"), made, **more)
        assert not list(tmp_path.iterdir())

    def with_(task, **changes):
        return Task(**{**vars(task), **changes})

    refused("K must be a finite number, got nan", first, K=float("nan"))
    refused("tau must be a finite number, got 'x'", first, tau="x")
    refused("score zero_shot must be a finite", with_(first, scores={"zero_shot": float("nan")}))
    refused("must not name 'canonical'", first, orders={"canonical": ["animals"]})
    refused("order 'all' does not hold every task", first, orders={"all": ["animals", "cows"]})
    refused("occurs twice", first, first)
    refused("needs tasks")
    refused("has no classes, got 2", with_(second, classes=("a", "b")))
    refused("not known: spare", with_(first, arrays={**first.arrays, "spare": np.zeros((1, 8))}))
    for name in ("thumbnail_ends", "train_pairs"):
        fewer = {key: x for key, x in second.arrays.items() if key != name}
        refused(f"missing: {name}", with_(second, arrays=fewer))
    for tree, message in (
        ((("cat", "a"), ("cat", "b")), "two parents"),
        ((("a", "b"), ("b", "a")), "cycle, .'a'"),
    ):
        refused(message, with_(first, tree=tree))
    for name in ("../evil", "", ".hidden", "x" * 65, "manifest.json", 3):
        refused("Task name", with_(first, name=name))
    refused("features must be None .* got 'int4'", first, features="int4")
    write(tmp_path / "b.zip", [with_(first, name="packed")])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m["tasks"][0]["arrays"].pop("test_labels"), "missing: test_labels"),
        (lambda m: m["tasks"].clear(), "needs tasks"),
        (lambda m: m["orders"].clear(), "canonical order"),
        (lambda m: m.update(schema=True), "schema must be 1, got True"),
        (lambda m: m.update(tau=-1.0), "must be positive, got .*'tau': -1.0"),
        (lambda m: m.update(K="big"), "K must be a finite number, got 'big'"),
    ],
)
def test_manifests_that_are_signed_but_wrong_are_refused(tmp_path, rng, edit, message):
    write(tmp_path / "a", tasks(rng))
    path = tmp_path / "a" / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    manifest["sha256"] = json_sha256(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=message):
        read_store(tmp_path / "a")
