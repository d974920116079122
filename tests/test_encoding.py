"""Features as int8: what it costs, and that everything reads them as it reads plain arrays."""

import json
import pickle

import numpy as np
import pytest
from stores import plant, sign, tasks, write

from hmcl_jax import entailment, lorentz
from hmcl_jax.data.encoding import Arrays, decode, encode_features
from hmcl_jax.data.store import StoreError, read_store

K, TAU = 1.0, 0.012


def points(rng, count, shared):
    """Float16 points with a large component in common and entries of norm 0.5 beside it."""
    found = rng.normal(size=(count, 512))
    found *= 0.5 / np.linalg.norm(found, axis=1, keepdims=True)
    found[:, 0] += shared
    return found.astype(np.float16)


def coded(values, dtype=np.float32):
    """The array after it was encoded with its mean as offset."""
    found, _ = encode_features({"prototypes": values})["prototypes"]
    return decode(found, dtype)


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_distances_and_angles_change_little(rng, dtype):
    texts, pictures = points(rng, 50, 0.35), points(rng, 500, 0.9)
    decoded = [coded(x, dtype) for x in (texts, pictures)]
    for measure, typical, largest in (
        (lorentz.pairwise_distance, 0.02 * TAU, 0.1 * TAU),
        (entailment.pairwise_exterior_angle, np.radians(0.03), np.radians(0.15)),
    ):
        before, after = (
            np.asarray(measure(np.float32(x), np.float32(y), K))
            for x, y in ((texts, pictures), decoded)
        )
        assert rms(after - before) < typical
        assert np.abs(after - before).max() < largest


@pytest.mark.parametrize("spread", [1e-30, 1.0, 1e30])
def test_entries_are_off_by_at_most_half_a_scale(rng, spread):
    values = (spread * rng.normal(size=(9000, 3)) * rng.uniform(size=(9000, 1))).astype(np.float32)
    found, _ = encode_features({"train_features": values})["train_features"]
    off = np.abs(np.float64(decode(found, np.float32)) - values)
    limit = (0.5 + 1e-4) * found.scales[:, None]
    assert (off <= limit).all()
    assert np.abs(found.codes).max() == 127


@pytest.mark.parametrize("row", [[0.0, 0.0], [1e-45, -1e-45], [1e38, -1e38], [0.1, 7.0]])
def test_equal_rows_of_any_size_are_exact(row):
    values = np.array([row] * 3, np.float32)
    np.testing.assert_allclose(coded(values), values, rtol=1e-6)


@pytest.mark.parametrize("form", ["coded", "coded.zip"])
def test_a_store_reads_what_was_encoded(tmp_path, rng, form):
    made = tasks(rng)
    made[1].arrays["train_specific"] = np.float32(made[1].arrays["train_specific"])
    write(tmp_path / form, made, features="int8")
    store = read_store(tmp_path / form)
    store.validate()
    for task, given in zip(store, made, strict=True):
        assert set(task.arrays) == set(given.arrays)
        expected = Arrays({**given.arrays, **encode_features(given.arrays)})
        for name, array in given.arrays.items():
            found = task.arrays[name]
            np.testing.assert_array_equal(found, expected[name])
            if array.dtype.kind == "f":
                assert found.dtype == array.dtype
                assert 0 < np.abs(np.float32(found) - array).max() < 0.02
            assert found is task.arrays[name]
            assert not found.flags.writeable
            assert found.flags.aligned
    assert "two: 2 tasks" in store.describe()
    assert store["sounds"].thumbnail(0) == b"two"
    again = pickle.loads(pickle.dumps(read_store(tmp_path / form)["sounds"]))
    for name, array in store["sounds"].arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


def test_equal_rows_of_one_side_stay_equal(tmp_path, rng):
    made = tasks(rng)[1]
    side = made.arrays["train_general"]
    made.arrays["test_general"][1] = side[4]
    write(tmp_path / "coded", [made], features="int8")
    arrays = read_store(tmp_path / "coded")["sounds"].arrays
    assert np.array_equal(arrays["test_general"][1], arrays["train_general"][4])
    assert not np.array_equal(arrays["test_general"][1], side[4])


def test_only_what_is_asked_for_is_decoded(tmp_path, rng, monkeypatch):
    decoded = []

    def watched(encoded, dtype):
        decoded.append(encoded.codes.shape)
        return decode(encoded, dtype)

    write(tmp_path / "coded", tasks(rng), features="int8")
    monkeypatch.setattr("hmcl_jax.data.encoding.decode", watched)
    task = read_store(tmp_path / "coded")["animals"]
    assert "tree_features" in task.arrays
    assert "thumbnails" not in task.arrays
    assert len(task.arrays) == 6
    assert task.size("train") == 12
    assert not decoded
    assert task.arrays["train_features"].shape == task.arrays.get("train_features").shape
    assert decoded == [(12, 8)]


def save(part, edit):
    """Changes a part of an encoded array, and its entry with it."""

    def fault(folder, entry):
        file = folder / f"train_features.{part}.npy"
        values = edit(np.load(file))
        np.save(file, values)
        entry[part] |= {"shape": list(values.shape), "dtype": values.dtype.str}

    return fault


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (save("scales", plant(3, np.nan)), "train_features row 3 is not finite"),
        (save("offset", plant(2, np.inf)), "train_features row 0 is not finite"),
        (save("offset", lambda a: a[:7]), r"got .*\(7,\)"),
        (save("codes", lambda a: a[0]), r"needs parts of shape \(n, d\)"),
        (lambda _, e: e.update(encoding="int4"), "'int4'.* known is int8"),
        (lambda _, e: e.update(dtype="<i4"), "train_features has the encoding"),
        (lambda _, e: e.pop("scales"), "not a readable store: KeyError: 'scales'"),
        (lambda folder, _: (folder / "train_features.offset.npy").unlink(), "offset.npy"),
    ],
)
def test_damage_that_is_signed_is_refused(tmp_path, rng, fault, message):
    path = tmp_path / "coded"
    write(path, tasks(rng), features="int8")
    manifest = json.loads((path / "manifest.json").read_text())
    arrays = manifest["tasks"][0]["arrays"]
    plain = [name for name, entry in arrays.items() if "encoding" not in entry]
    assert plain == ["test_labels", "train_labels"]
    fault(path / "animals", arrays["train_features"])
    (path / "manifest.json").write_text(json.dumps(manifest))
    if (path / "animals" / "train_features.offset.npy").exists():
        sign(path)
    for verify in (True, False):
        with pytest.raises(StoreError, match=message):
            read_store(path, verify).validate()
