"""Picture files of all sorts, sound and damaged, made on the spot."""

import io

import numpy as np
from PIL import Image


def texture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with sharp edges, so that every step of the way shows."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    smooth = np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR))
    smooth[:: max(height // 5, 2), :] = 255
    smooth[:, :: max(width // 7, 2)] = 0
    noise = rng.integers(0, 40, smooth.shape)
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def saved(image: Image.Image, format: str, **options) -> bytes:
    file = io.BytesIO()
    image.copy().save(file, format, **options)  # saving leaves marks on a picture
    return file.getvalue()


def turned(image: Image.Image, orientation: int) -> bytes:
    """A JPEG file whose EXIF data asks to turn it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, "JPEG", exif=exif)


def sound_pictures() -> dict[str, bytes]:
    """Odd files that can be read, by name."""
    rgb, other = texture(61, 40), texture(61, 40, 1)
    alpha = rgb.copy()
    alpha.putalpha(other.convert("L"))
    palette = rgb.quantize(17)
    wide = Image.fromarray(np.linspace(0, 65535, 61 * 40).reshape(40, 61).astype(np.uint16))
    png = {
        "bits": (rgb.convert("1"), {}),
        "grey": (rgb.convert("L"), {}),
        "grey alpha": (alpha.convert("LA"), {}),
        "palette": (palette, {}),
        "palette, alphas": (palette, {"transparency": bytes(range(0, 255, 15))}),
        "colour": (rgb, {}),
        "alpha": (alpha, {}),
        "grey of 16 bits": (wide, {}),
        "animated": (rgb, {"save_all": True, "append_images": [other]}),
        "profile": (rgb, {"icc_profile": b"no profile at all"}),
    }
    made = {f"png, {name}": saved(image, "PNG", **o) for name, (image, o) in png.items()}
    jpeg = {
        "grey": (rgb.convert("L"), {}),
        "poor": (rgb, {"quality": 5}),
        "progressive": (rgb, {"progressive": True}),
        "cmyk": (rgb.convert("CMYK"), {}),
        "exif is rubbish": (rgb, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\xff\xff rubbish"}),
    }
    made |= {f"jpeg, {name}": saved(image, "JPEG", **o) for name, (image, o) in jpeg.items()}
    made |= {f"jpeg, orientation {i}": turned(rgb, i) for i in (*range(9), 200)}
    made["jpeg, more after its end"] = made["jpeg, poor"] + b"more" * 9
    made["mpo"] = saved(rgb, "MPO", save_all=True, append_images=[other.copy()])
    made["gif"] = saved(palette, "GIF")
    made["gif, animated"] = saved(rgb, "GIF", save_all=True, append_images=[other, rgb])
    made["webp, lossless alpha"] = saved(alpha, "WEBP", lossless=True)
    made["webp, animated"] = saved(rgb, "WEBP", save_all=True, append_images=[other])
    for mode in ("1", "L", "P", "RGB"):
        made[f"bmp, {mode}"] = saved(rgb.convert(mode), "BMP")
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F", "LAB"):
        source = Image.merge("LAB", rgb.split()) if mode == "LAB" else rgb.convert(mode)
        made[f"tiff, {mode}"] = saved(source, "TIFF")
    made["tiff, 16 bits"] = saved(wide, "TIFF")
    made["tiff, pages"] = saved(rgb, "TIFF", save_all=True, append_images=[other])
    made["tiff, lzw"] = saved(rgb, "TIFF", compression="tiff_lzw")
    for mode in ("1", "L", "RGB"):
        made[f"ppm, {mode}"] = saved(rgb.convert(mode), "PPM")
    made["pgm of 16 bits"] = saved(wide, "PPM")
    made["plain ppm"] = b"P3 2 1 255  9 0 0  255 0 7"
    sizes = [(1, 1), (1, 300), (300, 1), (2, 3), (24, 24), (24, 57), (23, 25), (49, 48), (640, 427)]
    made |= {f"{w} x {h}": saved(texture(w, h, w), "PNG") for w, h in sizes}
    return made


def damaged_pictures() -> dict[str, bytes]:
    """Files that cannot be read, by name."""
    rgb = texture(61, 40)
    files = {format: saved(rgb, format) for format in ("JPEG", "PNG", "GIF", "WEBP", "TIFF")}
    halves = {f"half a {format}": data[: len(data) // 2] for format, data in files.items()}
    flipped = bytearray(files["PNG"])
    flipped[len(flipped) // 2] ^= 0xFF
    return {
        "empty": b"",
        "a text": b"this is not a picture at all\n" * 20,
        "a page": b"<!DOCTYPE html><html><body>404</body></html>",
        **halves,
        "the head of a jpeg": saved(rgb, "JPEG")[:30],
        "a png with a flipped byte": bytes(flipped),
        "a bitmap without pixels": b"P6 0 4 255 ",
        "a picture that would start a program": saved(rgb, "EPS"),
    }
