"""From collections to a store: right features, and the same bytes however often it was stopped."""

import dataclasses
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from collections_made import write, write_table
from PIL import Image
from rich.console import Console

from hmcl_jax.backbones.extract import ExtractError, Options, Step, extract_store
from hmcl_jax.cli.progress import ExtractView
from hmcl_jax.data.feature_arrays import read_features
from hmcl_jax.data.image_datasets import open_collection
from hmcl_jax.data.store import read_store

DIM, SIZE = 6, 8
CLASSES = ("cat", "dog", "owl")


class Plain:
    """An encoder that multiplies by fixed matrices."""

    name, K, tau, image_size, dimension = "plain/test", 10.0, 0.1, SIZE, DIM
    dtype, fingerprint = "float32", "0" * 64

    def __init__(self, scale: float = 1.0) -> None:
        rng = np.random.default_rng(0)
        self.scale, self.calls = scale, 0
        self.of_pixels = rng.normal(size=(SIZE * SIZE * 3, DIM)) / 40
        self.of_tokens = rng.normal(size=(256, DIM)) / 4

    def tokenize(self, texts):
        rows = [list(text.encode())[:24] for text in texts]
        return np.array([row + [0] * (24 - len(row)) for row in rows], np.int32)

    def texts(self, *texts: str) -> np.ndarray:
        return self.encode_texts(self.tokenize(texts))

    def encode_images(self, pixels: np.ndarray) -> np.ndarray:
        self.calls += 1
        assert pixels.dtype == np.uint8
        flat = pixels.reshape(len(pixels), -1) / 255
        return (self.scale * flat @ self.of_pixels).astype(np.float32)

    def encode_texts(self, tokens: np.ndarray) -> np.ndarray:
        return (self.scale * self.of_tokens[tokens].mean(axis=1)).astype(np.float32)

    def prototypes(self, tokens: np.ndarray, classes: np.ndarray) -> np.ndarray:
        points = self.encode_texts(tokens)
        return np.stack([points[classes == c].mean(axis=0) for c in range(classes.max() + 1)])


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (SIZE, SIZE, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Pictures by class, and pictures with captions."""
    numbers = itertools.count()
    for split, count in (("train", 5), ("test", 3)):
        for name, place in itertools.product(CLASSES, range(count)):
            write(tmp_path / "animals" / split / name / f"{place}.png", picture(next(numbers)))
    for split, count in (("train", 7), ("test", 4)):
        rows = []
        for place in range(count):
            name = f"pictures/{split}{place}.png"
            write(tmp_path / "pairs" / name, picture(next(numbers)))
            rows += [{"image": name, "caption": f"{split} {place} {k}"} for k in range(2)]
        write_table(tmp_path / "pairs" / f"{split}.jsonl", rows)
    return tmp_path


def sources(data: Path):
    animals = open_collection(data / "animals", prompts=("a {}.", "the {}."))
    return [animals, open_collection(data / "pairs")]


def contents(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file()}


SMALL = Options(batch=2, shard=2, dtype="float32")


def extract(data: Path, out: str, options: Options = SMALL, **others):
    encoder = others.pop("encoder", None) or Plain()
    options = dataclasses.replace(options, resume=others.pop("resume", False))
    return extract_store(data / out, sources(data), encoder, name="tiny", options=options, **others)


def test_features_are_the_encoders(data):
    fingerprint = extract(data, "store")
    store = read_store(data / "store")
    assert store.fingerprint == fingerprint
    assert (store.backbone, store.K, store.tau) == ("plain/test", 10.0, 0.1)
    encoder, animals = Plain(), store["animals"]
    assert animals.classes == CLASSES
    for split, count in (("train", 5), ("test", 3)):
        places = itertools.product(CLASSES, range(count))
        files = [data / "animals" / split / name / f"{k}.png" for name, k in places]
        expected = encoder.encode_images(np.stack([np.asarray(Image.open(f)) for f in files]))
        np.testing.assert_allclose(animals.arrays[f"{split}_features"], expected, rtol=1e-6)
        labels = np.repeat(np.arange(3), count)
        np.testing.assert_array_equal(animals.arrays[f"{split}_labels"], labels)
    for row, name in enumerate(CLASSES):
        expected = encoder.texts(f"a {name}.", f"the {name}.").mean(axis=0)
        np.testing.assert_allclose(animals.arrays["prototypes"][row], expected, rtol=1e-5)
    pairs = store["pairs"].arrays
    texts = encoder.texts(*(f"test {i} {k}" for i in range(4) for k in range(2)))
    np.testing.assert_array_equal(*(pairs["test_pairs"] // [1, 2]).T)
    np.testing.assert_allclose(pairs["test_general"], texts, rtol=1e-6)


def stopped(data: Path, out: str, when, resume: bool = False) -> None:
    """Starts an extraction and stops it at the first step for which `when` is true."""

    def stop(step):
        if when(step):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(data, out, listener=stop, resume=resume)
    assert not (data / out).exists()


def test_stopped_and_resumed_it_is_the_same_store(data):
    extract(data, "whole")
    stopped(data, "again", lambda step: step.done > 5)
    stopped(data, "again", lambda step: step.task == "pairs", resume=True)
    with pytest.raises(ExtractError, match="--resume"):
        extract(data, "again")
    encoder = Plain()
    extract(data, "again", resume=True, encoder=encoder)
    assert encoder.calls == 4 + 2  # 7 + 4 pictures of pairs in batches of 2
    assert contents(data / "again") == contents(data / "whole")


def test_damaged_shards_are_made_again(data):
    extract(data, "whole")
    stopped(data, "store", lambda step: (step.task, step.part) == ("pairs", "test pictures"))
    parts = data / "store.partial" / "tasks" / "animals"
    arrays = sorted(parts.rglob("*.npy"))
    arrays[0].unlink()
    arrays[1].with_suffix(".json").write_text("{")
    changed = bytearray(arrays[2].read_bytes())
    changed[-1] ^= 1
    arrays[2].write_bytes(changed)
    extract(data, "store", resume=True)
    assert contents(data / "store") == contents(data / "whole")


def test_resuming_with_something_else_is_refused(data):
    stopped(data, "store", lambda step: True)
    with pytest.raises(ExtractError, match="another options"):
        extract(data, "store", dataclasses.replace(SMALL, batch=3), resume=True)
    (data / "animals" / "train" / "cat" / "9.png").write_bytes(picture(99))
    with pytest.raises(ExtractError, match="another tasks"):
        extract(data, "store", resume=True)


def test_other_files_are_not_overwritten(data):
    first = extract(data, "store")
    with pytest.raises(ExtractError, match="exists already"):
        extract(data, "store")
    assert extract(data, "store", resume=True) == first
    write(data / "other.partial" / "letter.txt", "dear")
    with pytest.raises(ExtractError, match="in the way"):
        extract(data, "other", resume=True)


def test_bad_pictures_are_refused_or_skipped_and_counted(data):
    (data / "animals" / "train" / "dog" / "1.png").write_bytes(b"not a picture")
    (data / "pairs" / "pictures" / "test1.png").write_bytes(picture(3)[:60])
    with pytest.raises(ValueError, match=r"dog.1\.png"):
        extract(data, "refused")
    # Some shards hold a bad picture alone.
    extract(data, "store", dataclasses.replace(SMALL, on_error="skip", batch=1, shard=1))
    store = read_store(data / "store")
    animals, pairs = store["animals"], store["pairs"]
    np.testing.assert_array_equal(animals.arrays["train_labels"], np.repeat([0, 1, 2], [5, 4, 5]))
    assert animals.provenance["skipped_train"].startswith("1 of 15 pictures")
    assert pairs.provenance["skipped_test"].startswith("1 of 4 pictures")
    expected = [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4], [2, 5]]
    np.testing.assert_array_equal(pairs.arrays["test_pairs"], expected)
    texts = Plain().texts(*(f"test {i} {k}" for i in (0, 2, 3) for k in range(2)))
    np.testing.assert_allclose(pairs.arrays["test_general"], texts, rtol=1e-6)


def test_thumbnails_show_test_samples(data):
    extract(data, "store", dataclasses.replace(SMALL, thumbnails=4))
    animals = read_store(data / "store")["animals"]
    rows = animals.arrays["thumbnail_rows"]
    assert Image.open(io.BytesIO(animals.thumbnail(int(rows[1])))).size == (96, 96)


def feature_folder(folder: Path, dimension: int) -> Path:
    """Features of six sounds that another encoder made."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for split in ("train", "test"):
        features = rng.normal(size=(6, dimension)).astype(np.float32)
        np.save(folder / f"{split}_features.npy", features)
        np.save(folder / f"{split}_labels.npy", np.arange(6, dtype=np.int32) % 2)
    (folder / "classes.txt").write_text("bell\nrain\n")
    (folder / "collection.toml").write_text('specific = "audio"\nspace = "points"\n')
    return folder


def test_features_of_another_encoder(tmp_path):
    source = read_features(feature_folder(tmp_path / "x", DIM), prompts=("the sound of {}.",))
    extract_store(tmp_path / "store", [source], Plain(), name="sound", options=SMALL)
    task = read_store(tmp_path / "store").tasks[0]
    assert task.specific == "audio"
    expected = Plain().texts("the sound of bell.", "the sound of rain.")
    np.testing.assert_allclose(task.arrays["prototypes"], expected, rtol=1e-6)


def test_one_process_extracts_and_removes_what_a_crash_left(data):
    left = data / ".store.partial-12345"
    left.mkdir()

    def start_another(step):
        with pytest.raises(ExtractError, match="in use"):
            extract(data, "store")

    extract(data, "store", listener=start_another)
    assert not left.exists()


def test_what_cannot_be_told_apart_read_or_stored_is_refused(data):
    source = open_collection(data / "animals", prompts=("a very, very long beginning of {}.",))
    with pytest.raises(ExtractError, match="'cat' and 'dog' have the same prompts"):
        extract_store(data / "store", [source], Plain(), name="x", options=SMALL)
    for path in (data / "animals" / "train" / "dog").iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(ExtractError, match="'dog'"):
        extract(data, "skipped", dataclasses.replace(SMALL, on_error="skip"))
    with pytest.raises(ExtractError, match="float16"):
        extract(data, "half", Options(batch=2, shard=2), encoder=Plain(scale=1e7))


def test_sources_that_cannot_become_a_store_are_refused_at_once(data, tmp_path):
    animals, pairs = sources(data)
    wide = read_features(feature_folder(tmp_path / "wide", DIM + 1))
    for wrong, match in (
        ([], "at least one task"),
        ([dataclasses.replace(animals, prompts=())], "animals: no prompts"),
        ([pairs, pairs], "'pairs' is given twice"),
        ([dataclasses.replace(animals, name="manifest.json")], r"manifest\.json"),
        ([animals, wide], r"dimension \[7\].* 6;"),
    ):
        with pytest.raises(ExtractError, match=match):
            extract_store(data / "store", wrong, Plain(), name="x", options=SMALL)
    assert not (data / "store.partial").exists()


def test_progress_says_rate_and_time_left():
    file = io.StringIO()
    with ExtractView(Console(file=file), every=0.0) as view:
        view(Step("cats", "train pictures", 100, 1000, 50, 10.0))
        view(Step("cats", "train pictures", 1000, 1000, 950, 190.0))
        view(Step("cats", "train pictures", 1000, 1000, 950, 190.0))
        view(Step("cats", "test pictures", 10, 10, 0, 0.0))
    assert file.getvalue().splitlines() == [
        "cats: train pictures 100/1000, 5.0/s, left 0:03:00",
        "cats: train pictures 1000/1000, 5.0/s",
        "cats: test pictures 10/10, kept",
    ]
