"""Features from other encoders: three spaces, two file formats, and what is wrong is named."""

import numpy as np
import pytest
from collections_made import write
from stores import plant

from hmcl_jax import lorentz
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.feature_arrays import read_features
from hmcl_jax.data.store import ARRAYS, read_store, write_store

DIM = 6


def classification(rng):
    return {
        "train_features": rng.normal(size=(9, DIM)).astype(np.float32),
        "train_labels": np.arange(9) % 3,
        "test_features": rng.normal(size=(4, DIM)).astype(np.float32),
        "test_labels": np.array([0, 1, 2, 2], np.uint8),
        "prototypes": rng.normal(size=(3, DIM)).astype(np.float32),
    }


def retrieval(rng):
    return {
        "train_specific": rng.normal(size=(2, DIM)).astype(np.float16),
        "train_general": rng.normal(size=(3, DIM)),
        "train_pairs": np.array([[0, 0], [1, 1], [1, 2]]),
        "test_specific": rng.normal(size=(2, DIM)).astype(np.float32),
        "test_general": rng.normal(size=(2, DIM)).astype(np.float32),
        "test_pairs": np.array([[0, 1], [1, 0]]),
    }


def make(root, arrays, toml='space = "points"\n', classes="cat\ndog\nowl\n", packed=False):
    root.mkdir(exist_ok=True)
    if packed:
        from safetensors.numpy import save_file

        save_file(arrays, root / "features.safetensors")
    else:
        for name, array in arrays.items():
            np.save(root / f"{name}.npy", array)
    if classes:
        write(root / "classes.txt", classes)
    write(root / "collection.toml", toml)
    return root


@pytest.mark.parametrize("packed", [False, True])
def test_points_are_taken_as_they_are(tmp_path, rng, packed):
    made = classification(rng)
    found = read_features(make(tmp_path / "sounds", made, packed=packed), specific="audio")
    assert (found.name, found.kind) == ("sounds", "classification")
    assert (found.general, found.specific, found.K) == ("text", "audio", 10.0)
    assert found.classes == ("cat", "dog", "owl")
    assert found.prompts == ("a photo of a {}.",)
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(array, made[name])
        assert array.dtype == (np.int32 if name.endswith("labels") else np.float32)
    np.testing.assert_array_equal(found.prototypes, made["prototypes"])
    if not packed:
        assert isinstance(found.arrays["train_features"].base, np.memmap)


def test_what_collection_toml_states(tmp_path, rng):
    toml = """
        name = "heat"
        general = "words"
        specific = "thermal"
        space = "tangent"
        K = 4
        prompts = ["a thermal picture of a {}."]
        fit = "crop"
        licence = "CC0"
        provenance = "measured"
        """
    found = read_features(make(tmp_path / "x", classification(rng), toml))
    assert (found.name, found.general, found.specific, found.K) == ("heat", "words", "thermal", 4.0)
    assert found.prompts == ("a thermal picture of a {}.",)
    notes = {"layout": "features", "space": "tangent", "fit": "crop", "licence": "CC0"}
    assert found.provenance == {**notes, "source": "measured"}
    told = read_features(tmp_path / "x", "cold", space="points", K=2.0, general="text")
    assert (told.name, told.general, told.K) == ("cold", "text", 2.0)
    assert told.provenance["space"] == "points"


@pytest.mark.parametrize("K", [1.0, 10.0])
def test_spaces(tmp_path, rng, K, monkeypatch):
    made = classification(rng)
    made["train_features"][2:4] *= [[1e3], [1e-30]]  # directions of any length
    root = make(tmp_path / "x", made, "")
    monkeypatch.setattr("hmcl_jax.data.feature_arrays.BLOCK", 4)  # 9 rows are two blocks and a rest
    euclidean = read_features(root, space="euclidean", norm=1.5, K=K)
    made["train_features"][2] /= 1e3
    tangent = read_features(make(root, made, ""), space="tangent", K=K)
    for name in ("train_features", "test_features", "prototypes"):
        raw = made[name]
        expected = np.asarray(lorentz.exp_map0(raw, K=K))
        np.testing.assert_array_equal(tangent.arrays[name], expected)
        unit = raw / np.linalg.norm(raw.astype(np.float64), axis=1, keepdims=True)
        radii = np.asarray(lorentz.distance_to_origin(euclidean.arrays[name], K=K))
        np.testing.assert_allclose(radii, 1.5, rtol=1e-5)
        length = np.sqrt(K) * np.sinh(1.5 / np.sqrt(K))
        np.testing.assert_allclose(euclidean.arrays[name], unit * length, rtol=1e-5, atol=1e-6)
    assert euclidean.provenance["space"] == "euclidean, norm 1.5"


def test_a_task_of_a_store(tmp_path, rng):
    classes = classification(rng)
    del classes["prototypes"]
    found = read_features(make(tmp_path / "a", classes, classes="missile\ncat\nmissile\n"))
    assert found.prototypes is None
    with pytest.raises(IngestError, match="a: prototypes are not known"):
        found.task()
    first = found.task(np.zeros((3, DIM), np.float32))
    assert first.classes == ("missile", "cat", "missile (2)")
    pairs = read_features(make(tmp_path / "b", retrieval(rng), classes=""))
    assert (pairs.kind, pairs.classes, pairs.prompts) == ("retrieval", (), ())
    assert set(pairs.arrays) == set(ARRAYS["retrieval"])
    assert pairs.arrays["train_specific"].dtype == np.float16
    assert pairs.arrays["train_general"].dtype == np.float32
    tasks = [first, pairs.task()]
    write_store(tmp_path / "store", tasks, name="two", backbone="ear", K=10.0, tau=0.1)
    assert [task.name for task in read_store(tmp_path / "store")] == ["a", "b"]


@pytest.mark.parametrize(
    ("array", "change", "complaint"),
    [
        ("test_features", plant(1, np.inf), "test_features row 1 (is not finite|has length)"),
        ("train_features", lambda a: a[:, 0], r"train_features must have shape \(n, d\), got \(9,"),
        ("train_features", np.int32, "must be floating-point numbers, got dtype int"),
        ("train_labels", plant(2, 2**40), "train_labels row 2 is .* beyond int32"),
        ("prototypes", lambda a: a[:2], "prototypes has 2 rows for 3 classes"),
        ("audio_features", lambda a: np.zeros(3), "not known: audio_features"),
        ("train_pairs", lambda a: np.zeros((1, 2), int), "retrieval needs the arrays"),
    ],
)
def test_what_arrays_must_not_hold(tmp_path, rng, array, change, complaint):
    made = classification(rng)
    made[array] = change(made.get(array))
    make(tmp_path / "x", made)
    for space in ("points", "tangent"):
        with pytest.raises(IngestError, match=complaint):
            read_features(tmp_path / "x", space=space)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "got space = None and norm = None"),
        ({"space": "euclidean"}, "norm is needed for Euclidean features"),
        ({"space": "points", "norm": 1.0}, "got space = 'points' and norm = 1.0"),
        ({"space": "points", "K": float("nan")}, "K must be a positive number"),
        ({"space": "euclidean", "norm": 40.0}, "row 0 has length 40 in the tangent space"),
        ({"space": "euclidean", "norm": 1.0}, "train_features row 5 .*must not be zero"),
    ],
)
def test_settings_are_checked(tmp_path, rng, settings, complaint):
    made = classification(rng)
    made["train_features"][5] = 0
    make(tmp_path / "x", made, "")
    with pytest.raises(IngestError, match=complaint):
        read_features(tmp_path / "x", **settings)


def test_files_that_are_missing_or_damaged(tmp_path, rng):
    root = make(tmp_path / "x", classification(rng))
    with pytest.raises(TypeError, match=r"sapce must be one of name, .*space"):
        read_features(root, sapce="points")

    def refused(complaint):
        with pytest.raises(IngestError, match=complaint):
            read_features(root)

    write(root / "collection.toml", 'space = "points"\nsplits = { train = "train" }\n')
    refused(r"unknown keys: 'splits'; known are name, .* space")
    write(root / "collection.toml", 'space = "points"\n')
    (root / "classes.txt").unlink()
    refused("needs class names")
    write(root / "classes.txt", "a\nb\nc\n")
    victim = root / "test_labels.npy"
    whole = victim.read_bytes()
    for damage in (whole[:-1], whole[:20], b"", b"PK\x03\x04", whole.replace(b"|u1", b"|O8")):
        victim.write_bytes(damage)
        refused(r"test_labels\.npy cannot be read")
    np.save(victim, np.array([print, 1, 2, 3], object), allow_pickle=True)  # never unpickled
    refused(r"test_labels\.npy cannot be read")
    victim.unlink()
    refused("missing: test_labels; not known: none")
    write(root / "features.safetensors", b"\xff" * 40)
    refused("or one .safetensors file")
    for file in root.glob("*.npy"):
        file.unlink()
    refused(r"features\.safetensors cannot be read")
