"""Pictures: the pixels of Pillow and torchvision, damaged files, and batches read in threads."""

import dataclasses
import io
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from odd_pictures import damaged_pictures, saved, sound_pictures, texture, turned
from PIL import Image

from hmcl_jax.backbones.images import PictureError, read_batches, read_picture

SOUND = sound_pictures()
DAMAGED = damaged_pictures()
SIZE = 24
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")  # about the odd files


@dataclasses.dataclass(frozen=True)
class File:
    key: str
    data: bytes | Callable[[], bytes]

    def read(self):
        return self.data if isinstance(self.data, bytes) else self.data()


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("pictures")]


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    assert not threads()


def reference(data, size, fit):
    """The calls that torchvision makes of Pillow: Resize, CenterCrop."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if fit == "squash":
        return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))
    w, h = image.size
    ow, oh = (size, int(size * h / w)) if w <= h else (int(size * w / h), size)
    image = image.resize((ow, oh), Image.Resampling.BICUBIC)
    top = int(round((oh - size) / 2.0))  # noqa: RUF046, as it is written there
    left = int(round((ow - size) / 2.0))  # noqa: RUF046
    return np.asarray(image.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("size", [1, SIZE])
def test_pixels_are_those_of_pillow(fit, size):
    for name, data in SOUND.items():
        expected = reference(data, size, fit)
        np.testing.assert_array_equal(read_picture(data, size, fit), expected, name, strict=True)


def test_rotation_only_where_it_is_asked_for():
    plain = texture(40, 40)
    ways = Image.Transpose
    undo = [ways.FLIP_LEFT_RIGHT, ways.ROTATE_180, ways.FLIP_TOP_BOTTOM, ways.TRANSPOSE]
    undo += [ways.ROTATE_270, ways.TRANSVERSE, ways.ROTATE_90]
    as_stored = read_picture(turned(plain, 1), 40, "squash")
    for orientation, way in enumerate(undo, 2):
        data = turned(plain, orientation)
        np.testing.assert_array_equal(read_picture(data, 40, "squash"), as_stored)
        upright = np.asarray(Image.fromarray(as_stored).transpose(way))
        (batch,) = read_batches([File("a", data)], 40, "squash", 4, upright=True)
        np.testing.assert_array_equal(batch.pixels[0], upright)


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_pictures_are_refused(name):
    reasons = "is empty|in none of the formats|cannot be decoded"
    with pytest.raises(PictureError, match=rf"Picture 'the key' .*({reasons}).*\.$"):
        read_picture(DAMAGED[name], SIZE, "crop", key="the key")


def test_large_pictures_are_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(PictureError, match=r"too large: .*2040 pixels.*2000 pixels"):
        read_picture(saved(texture(40, 51), "PNG"), 5, "crop")
    narrow = saved(texture(2, 200), "PNG")
    with pytest.raises(PictureError, match=r"too narrow.*\(2, 200\).*\(10, 1000\).*2000 pixels"):
        read_picture(narrow, 10, "crop", key="narrow")
    assert read_picture(narrow, 10, "squash").shape == (10, 10, 3)


def test_mutated_files_give_pixels_or_an_error(rng):
    outcomes = []
    names = [name for name in SOUND if len(SOUND[name]) < 20_000]
    for trial in range(150):
        data = bytearray(SOUND[names[trial % len(names)]])
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        if trial % 3 == 0:
            del data[int(rng.integers(1, len(data))) :]
        try:
            outcomes.append(read_picture(bytes(data), 8, "squash", upright=True).shape)
        except PictureError:
            outcomes.append(None)
    assert set(outcomes) == {None, (8, 8, 3)}


def test_batches_keep_the_order(rng):
    def slowly(data):
        time.sleep(rng.random() * 0.004)
        return data

    files = [File(name, lambda d=data: slowly(d)) for name, data in SOUND.items()]
    batches = [*read_batches(files, 8, "crop", 9, workers=5)]
    assert [len(rows) for rows, _, _ in batches] == [9] * (len(files) // 9) + [len(files) % 9]
    rows = np.concatenate([batch.rows for batch in batches])
    np.testing.assert_array_equal(rows, np.arange(len(files)))
    pixels = np.concatenate([batch.pixels for batch in batches])
    expected = np.stack([read_picture(data, 8, "crop") for data in SOUND.values()])
    np.testing.assert_array_equal(pixels, expected)
    assert (rows.dtype, pixels.dtype) == (np.int64, np.uint8)


def mixed():
    """Sound and damaged files in turn, and the rows of the damaged ones."""
    sound = [File(name, data) for name, data in SOUND.items()]
    broken = [File(name, data) for name, data in DAMAGED.items()]
    files = [f for pair in zip(sound, broken, strict=False) for f in pair] + sound[len(broken) :]
    return files, [row for row, file in enumerate(files) if file.key in DAMAGED]


def test_damaged_pictures_are_left_out_and_counted():
    files, broken = mixed()
    batches = [*read_batches(files, 8, "squash", 5, on_error="skip")]
    bad = [entry for batch in batches for entry in batch.bad]
    assert [row for row, _ in bad] == broken
    for row, reason in bad:
        assert reason.startswith(f"Picture {files[row].key!r} ")
    for index, (rows, pixels, _) in enumerate(batches):
        assert set(rows // 5) <= {index}
        for row, pixel in zip(rows, pixels, strict=True):
            np.testing.assert_array_equal(pixel, read_picture(files[row].data, 8, "squash"))
    assert sum(len(batch.rows) for batch in batches) == len(files) - len(broken)


def test_the_first_damaged_picture_stops_it():
    files, broken = mixed()
    batches = read_batches(files, 8, "squash", 1)
    for row in range(broken[0]):
        assert next(batches).rows.tolist() == [row]
    name = files[broken[0]].key
    with pytest.raises(PictureError, match=rf"^Picture '{name}' .*\. Repair it.*--on-error skip"):
        next(batches)
    assert next(batches, None) is None


def test_files_that_cannot_be_read():
    error = FileNotFoundError(2, "No such file", "a.png")

    def fail():
        raise error

    (batch,) = read_batches([File("lost", fail)], 8, "crop", 4, on_error="skip")
    assert batch.bad == [(0, f"Picture 'lost' cannot be read: {error}.")]


def test_other_errors_are_not_hidden_and_name_the_picture():
    def fail():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug") as caught:
        next(read_batches([File("strange", fail)], 8, "crop", 4, on_error="skip"))
    assert "'strange'" in caught.value.__notes__[0]


def test_an_early_stop_ends_the_threads():
    files = [File(name, data) for name, data in SOUND.items()]
    batches = read_batches(files, 8, "crop", 2, workers=4)
    next(batches)
    assert threads()
    batches.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size must be at least 1"),
        ({"fit": "pad"}, "fit must be one of 'crop', 'squash', got fit = 'pad'"),
        ({"on_error": "warn"}, "on_error must be one of 'raise', 'skip'"),
    ],
)
def test_arguments_are_checked_at_once(change, message):
    with pytest.raises(ValueError, match=message):
        read_batches([], **{"size": 8, "fit": "crop", "batch": 4, **change})
