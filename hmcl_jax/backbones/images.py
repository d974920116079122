"""Decodes pictures and brings them to size, as the reference protocols do, in threads.

The pixels are those of torchvision's ``Resize`` and ``CenterCrop`` on the installed Pillow, byte
for byte: ``convert("RGB")``, which drops alpha and takes the first frame of an animation, then
bicubic with antialias. Only ``upright=True`` applies EXIF rotation, because the protocols do not.

Pillow 13 squashes upright formats first in height, earlier ones first in width. The pixels differ
in the last digits (of 427 x 640 to 224 x 224, a fifth of the values, by 4 of 255 at most), so keep
to one version of Pillow where results are compared to the bit.
"""

import collections
import io
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from hmcl_jax import _checks

FITS = ("crop", "squash")
AHEAD = 2  # batches that are read while the caller works on one
Image.init()  # all readers, before threads need them
# Not all that Pillow can open: some of its readers start other programs (EPS starts Ghostscript).
FORMATS: list[str] = [
    name
    for name in ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
    if name in Image.OPEN
]


class PictureError(ValueError):
    """A picture cannot be read."""


class Batch(NamedTuple):
    """Some pictures of a sequence."""

    rows: np.ndarray  # their indices in the sequence, ascending, int64 (k,)
    pixels: np.ndarray  # uint8 (k, size, size, 3)
    bad: list[tuple[int, str]]  # row and reason of the pictures that could not be read


def read_picture(
    data: bytes, size: int, fit: str, *, upright: bool = False, key: str | None = None
) -> np.ndarray:
    """Decodes a picture and brings it to size.

    Args:
      data: the bytes of a file in one of `FORMATS`.
      size: edge of the result.
      fit: ``"crop"`` makes the short side `size` long and cuts out the centre (classification),
        ``"squash"`` makes both sides `size` long (retrieval).
      upright: turn the picture as its EXIF data says.
      key: its name, for messages.

    Returns:
      uint8, shape (size, size, 3).
    """
    name = "The picture" if key is None else f"Picture {key!r}"
    if not data:
        raise PictureError(f"{name} is empty.")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            turned = ImageOps.exif_transpose(image) if upright else image
            whole = turned.convert("RGB")
    except UnidentifiedImageError:
        raise PictureError(f"{name} is in none of the formats {', '.join(FORMATS)}.") from None
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:
        raise PictureError(f"{name} is too large: {_reason(error)}.") from error
    except Exception as error:  # damaged files cause many kinds of errors in decoders
        raise PictureError(f"{name} cannot be decoded: {_reason(error)}.") from error
    return np.array(_resized(name, whole, size, fit))


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _resized(name: str, image: Image.Image, size: int, fit: str) -> Image.Image:
    bicubic = Image.Resampling.BICUBIC
    if fit == "squash":
        return image.resize((size, size), bicubic)
    short, long = sorted(image.size)
    # Rounded as in torchvision; never less than size, so nothing has to be padded.
    longer = int(size * long / short)
    wanted = (longer, size) if image.width > image.height else (size, longer)
    limit = 2 * (Image.MAX_IMAGE_PIXELS or math.inf)
    if size * longer > limit:
        raise PictureError(
            f"{name} is too narrow to be cropped: {image.size} pixels would become {wanted}, more "
            f"than the limit of {limit} pixels; fit = 'squash' can read it."
        )
    left, top = (round((length - size) / 2) for length in wanted)
    return image.resize(wanted, bicubic).crop((left, top, left + size, top + size))


def read_batches(
    pictures: Sequence[Any],
    size: int,
    fit: str,
    batch: int,
    *,
    workers: int = 2,
    on_error: str = "raise",
    upright: bool = False,
) -> Iterator[Batch]:
    """Reads many pictures in order, two batches ahead, in threads.

    Batch i holds the pictures i * batch to (i + 1) * batch - 1, even if some of them cannot be
    read. The threads end with the iterator: when it is exhausted, closed, or fails.

    Args:
      pictures: each with a `key`, its name in messages, and ``read()``, the bytes of its file.
      size: edge of the results.
      fit: ``"crop"`` or ``"squash"``, see :func:`read_picture`.
      batch: pictures at a time; the last batch may hold fewer.
      workers: threads.
      on_error: ``"raise"`` stops at the first picture that cannot be read, ``"skip"`` lists it in
        ``Batch.bad`` and continues.
      upright: turn the pictures as their EXIF data says.
    """
    for argument, value in (("size", size), ("batch", batch), ("workers", workers)):
        _checks.integer(argument, value, 1)
    _checks.choice("fit", fit, FITS)
    _checks.choice("on_error", on_error, ("raise", "skip"))

    def read_into(pixels: np.ndarray, picture: Any) -> PictureError | None:
        try:
            try:
                data = picture.read()
            except (OSError, ValueError) as error:
                return PictureError(f"Picture {picture.key!r} cannot be read: {_reason(error)}.")
            pixels[:] = read_picture(data, size, fit, upright=upright, key=picture.key)
        except PictureError as error:
            return error
        except Exception as error:
            error.add_note(f"This happened with picture {picture.key!r}.")
            raise
        return None

    def batches() -> Iterator[Batch]:
        started: collections.deque[tuple[range, np.ndarray, list[Future]]] = collections.deque()
        starts = iter(range(0, len(pictures), batch))
        pool = ThreadPoolExecutor(workers, thread_name_prefix="pictures")
        try:
            while True:
                while len(started) <= AHEAD and (start := next(starts, None)) is not None:
                    rows = range(start, min(start + batch, len(pictures)))
                    pixels = np.empty((len(rows), size, size, 3), np.uint8)
                    jobs = [
                        pool.submit(read_into, target, pictures[row])
                        for target, row in zip(pixels, rows, strict=True)
                    ]
                    started.append((rows, pixels, jobs))
                if not started:
                    return
                yield _finished(*started.popleft(), on_error)
        finally:
            pool.shutdown(cancel_futures=True)

    return batches()


def _finished(rows: range, pixels: np.ndarray, jobs: list[Future], on_error: str) -> Batch:
    errors = [job.result() for job in jobs]
    bad = [(row, str(error)) for row, error in zip(rows, errors, strict=True) if error]
    if bad and on_error == "raise":
        remedy = "Repair it, or start again with --on-error skip to leave it out."
        raise PictureError(f"{bad[0][1]} {remedy}") from next(filter(None, errors))
    good = np.array([not error for error in errors])
    return Batch(np.array(rows)[good], pixels[good] if bad else pixels, bad)
