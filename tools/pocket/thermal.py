"""Pictures as a heat camera might show them: a rendering of real pictures, not a sensor's data.

What differs from the colour of the border counts as warm. Like a small sensor, it is averaged over
cells, blurred, stretched to the range between two percentiles and shown in the colours of heat.
Colour and texture are lost, warm and cold shapes stay.
"""

import dataclasses

import numpy as np
import scipy.ndimage
from PIL import Image

from pocket.pictures import SIDE, Picture

CELLS = 56
BLUR = 1.0  # cells
COLD, HOT = 2, 98  # percentiles
# Black, violet, red, orange, yellow, white.
PALETTE = np.array(
    [(0, 0, 12), (72, 0, 140), (200, 20, 90), (245, 110, 10), (255, 210, 40), (255, 255, 240)]
)


def heat(pixels: np.ndarray) -> np.ndarray:
    """Warmth in [0, 1] of the cells, (56, 56).

    Args:
      pixels: uint8 (224, 224, 3).
    """
    values = pixels.astype(np.float64)
    border = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])
    apart = np.sqrt(np.mean((values - np.median(border, axis=0)) ** 2, axis=2))
    size = SIDE // CELLS
    cells = apart.reshape(CELLS, size, CELLS, size).mean(axis=(1, 3))
    cells = scipy.ndimage.gaussian_filter(cells, BLUR)
    cold, hot = np.percentile(cells, (COLD, HOT))
    return np.clip((cells - cold) / max(hot - cold, 1e-9), 0, 1)


def render(pixels: np.ndarray) -> np.ndarray:
    """A picture in the colours of its heat, uint8 (224, 224, 3)."""
    cells = Image.fromarray(np.round(255 * heat(pixels)).astype(np.uint8))
    warmth = np.asarray(cells.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) / 255
    stops = np.linspace(0, 1, len(PALETTE))
    channels = [np.interp(warmth, stops, channel) for channel in PALETTE.T]
    return np.round(np.stack(channels, axis=2)).astype(np.uint8)


def warmed(found: list[Picture]) -> list[Picture]:
    """The same pictures with the same texts, rendered."""
    return [dataclasses.replace(p, draw=lambda p=p: render(p.draw())) for p in found]
