"""Pictures and their texts, collected from the unpacked sources."""

import collections
import dataclasses
import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from pocket import vocabulary
from pocket.vocabulary import spoken

SIDE = 224


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture."""

    key: str  # unique in its collection
    draw: Callable[[], np.ndarray]  # gives the pixels, uint8 (224, 224, 3)
    texts: tuple[str, ...]  # what it shows, the plain name first
    category: tuple[str, ...] = ()  # names above it, the nearest first
    split: str = ""  # "train" or "test" where the source says so, else empty


def _square(image: Image.Image, side: int = SIDE) -> np.ndarray:
    """Fits an image into a white square."""
    image = image.convert("RGBA")
    scale = side / max(image.size)
    size = tuple(max(1, round(n * scale)) for n in image.size)
    image = image.resize(size, Image.Resampling.BICUBIC)
    canvas = Image.new("RGBA", (SIDE, SIDE), "white")
    canvas.alpha_composite(image, tuple((SIDE - n) // 2 for n in size))
    return np.asarray(canvas.convert("RGB"))


def _grey(pixels: np.ndarray, side: int, invert: bool) -> np.ndarray:
    """A small grey picture, enlarged; dark on white if inverted."""
    pixels = 255 - pixels if invert else pixels
    image = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
    canvas = Image.new("L", (SIDE, SIDE), 255 if invert else 0)
    canvas.paste(image, ((SIDE - side) // 2,) * 2)
    return np.asarray(canvas.convert("RGB"))


def _svg(text: str) -> np.ndarray:
    import resvg_py  # only where something is drawn with it

    png = bytes(resvg_py.svg_to_bytes(svg_string=text, width=256, dpi=96, skip_system_fonts=True))
    image = Image.open(io.BytesIO(png)).convert("RGBA")
    return _square(image.crop(image.getchannel("A").getbbox()), 208)


def cifar10(folder: Path, train: int, test: int) -> list[Picture]:
    """The first pictures of every class, as many of each."""
    folder = folder / "package"
    pictures = []
    for split, wanted, sheets in (
        ("train", train, ["data_batch_1.png"]),
        ("test", test, ["test_batch.png"]),
    ):
        labels = json.loads((folder / f"{split}_lables.json").read_text())
        rows = np.concatenate([np.asarray(Image.open(folder / s))[..., :3] for s in sheets])
        quota = collections.Counter()
        for index, (row, label) in enumerate(zip(rows, labels, strict=False)):
            if quota[label] >= wanted // 10:
                continue
            quota[label] += 1
            pixels = row.reshape(32, 32, 3)
            pictures.append(
                Picture(
                    f"{split}-{index}",
                    lambda p=pixels: np.asarray(
                        Image.fromarray(p).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
                    ),
                    (vocabulary.CIFAR10[label],),
                    split=split,
                )
            )
    return pictures


def cifar10_unlabelled(folder: Path, count: int) -> list[Picture]:
    """Pictures of another training sheet, without labels: photographs for the base."""
    rows = np.asarray(Image.open(folder / "package/data_batch_2.png"))[:count, :, :3]
    rows = rows.reshape(len(rows), 32, 32, 3)
    return [
        Picture(
            f"sheet2-{index}",
            lambda p=row: np.asarray(
                Image.fromarray(p).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            ),
            (),
        )
        for index, row in enumerate(rows)
    ]


def _idx(path: Path) -> np.ndarray:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    axes = data[3]
    shape = np.frombuffer(data, ">u4", axes, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def idx_set(
    folder: Path, names: list[str], train: int, test: int, side: int, invert: bool
) -> list[Picture]:
    """MNIST and Fashion-MNIST: as many of every class."""
    pictures = []
    for split, prefix, wanted in (("train", "train", train), ("test", "t10k", test)):
        (images,) = folder.rglob(f"{prefix}-images-idx3-ubyte*")
        (labels,) = folder.rglob(f"{prefix}-labels-idx1-ubyte*")
        quota = collections.Counter()
        for index, (pixels, label) in enumerate(zip(_idx(images), _idx(labels), strict=True)):
            if quota[label] >= wanted // 10:
                continue
            quota[label] += 1
            pictures.append(
                Picture(
                    f"{split}-{index}",
                    lambda p=pixels: _grey(p, side, invert),
                    (names[label],),
                    split=split,
                )
            )
    return pictures


def quickdraw(folder: Path, names: list[str], each: int) -> list[Picture]:
    """Sketches of some classes, drawn dark on white with a margin."""
    pictures = []
    for name in names:
        path = folder / "package/src/drawings" / f"{spoken(name)}.ndjson.gz"
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        for index, line in enumerate(lines[:each]):
            pixels = (np.array(json.loads(line)) * 255).astype(np.uint8).reshape(28, 28)
            pictures.append(
                Picture(f"{name}-{index}", lambda p=pixels: _grey(p, 176, True), (spoken(name),))
            )
    return pictures


def quickdraw_classes(folder: Path) -> list[str]:
    """All class names, with underscores."""
    files = (folder / "package/src/drawings").glob("*.ndjson.gz")
    return sorted(path.name.removesuffix(".ndjson.gz").replace(" ", "_") for path in files)


def tuxpaint(folder: Path, cartoons: bool) -> list[Picture]:
    """Stamps with captions, without symbols: photographs, or else cartoons."""
    root = folder / "usr/share/tuxpaint/stamps"
    pictures = []
    for path in sorted(root.rglob("*.png")):
        category = path.relative_to(root).parts[:-1]
        text = path.with_suffix(".txt")
        if category[0] in ("symbols", "seasonal") or not text.exists():
            continue
        if ("cartoon" in category) != cartoons:
            continue
        caption = text.read_text("utf8", errors="replace").splitlines()[0].strip().rstrip(".")
        if not caption or path.name.endswith("_mirror.png") or path.name.endswith("_flip.png"):
            continue
        pictures.append(
            Picture(
                str(path.relative_to(root)),
                lambda p=path: _square(Image.open(p)),
                (caption,),
                tuple(spoken(c) for c in reversed(category)),
            )
        )
    return pictures


_PEOPLE = re.compile(r"\b(man|woman|men|women|person|people|boy|girl|male|female)('s)?\b")


def for_base(label: str) -> bool:
    """Whether an emoji's concept, whatever the gender shown, is kept for the base: one in four."""
    concept = " ".join(_PEOPLE.sub(" ", label.lower()).replace(":", " ").split())
    return hashlib.sha256(concept.encode()).digest()[0] % 4 == 0


def emoji(folder: Path, base: Path, groups: list[str], base_part: bool) -> list[Picture]:
    """Emoji of some groups, with name, tags, subgroup and group; no skin tones, no variants.

    With `base_part` the concepts that only the backbone sees, else the others.
    """
    icons = json.loads((folder / "package/icons.json").read_text())
    chars = json.loads((folder / "package/chars.json").read_text())
    meta = json.loads((base / "package/meta/groups.json").read_text())
    pictures = []
    for entry in json.loads((base / "package/en/data.json").read_text()):
        group = meta["groups"].get(str(entry.get("group", -1)), "")
        name = chars.get(entry["hexcode"].lower().replace("-fe0f", ""))
        name = name or chars.get(entry["hexcode"].lower())
        if group not in groups or name not in icons["icons"] or "keycap" in entry["label"]:
            continue
        if for_base(entry["label"]) != base_part:
            continue
        icon = icons["icons"][name]
        width = icon.get("width", icons.get("width", 16))
        height = icon.get("height", icons.get("height", 16))
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" '
            'xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="0 0 {width} {height}">{icon["body"]}</svg>'
        )
        label = entry["label"].replace("\u2019", "'")
        tags = ", ".join(entry.get("tags", []))
        subgroup = meta["subgroups"][str(entry["subgroup"])]
        names = (subgroup.replace("-", " "), group.replace("-", " and "))
        pictures.append(Picture(name, lambda s=svg: _svg(s), (label, f"{label}: {tags}"), names))
    return pictures


def game_icons(folder: Path, most: int, base_part: bool) -> list[Picture]:
    """Icons of games, black on white: every second one for the task, the others for the base."""
    icons = json.loads((folder / "package/icons.json").read_text())
    chosen = sorted(icons["icons"])[int(base_part) :: 2][:most]
    width, height = icons.get("width", 512), icons.get("height", 512)
    return [
        Picture(
            name,
            lambda body=icons["icons"][name]["body"]: _svg(
                '<svg xmlns="http://www.w3.org/2000/svg" color="black" '
                f'viewBox="0 0 {width} {height}">{body}</svg>'
            ),
            (name.replace("-", " "),),
        )
        for name in chosen
    ]


def flags(folder: Path) -> list[Picture]:
    """Flags of countries and regions, with the continent."""
    pictures = []
    for entry in json.loads((folder / "package/country.json").read_text()):
        path = folder / "package" / entry["flag_4x3"]
        if not entry.get("continent") or not path.exists():
            continue
        pictures.append(
            Picture(
                entry["code"],
                lambda p=path: _svg(p.read_text("utf8")),
                (f"flag of {entry['name']}",),
                (f"flag of a country in {entry['continent']}", "flag"),
            )
        )
    return pictures


def word_pictures(folder: Path) -> list[Picture]:
    """Word illustrations in categories."""
    root = folder / "usr/share/games/pysiogame/res/images/art4apps"
    pictures = []
    for path in sorted(root.rglob("*.jpg")):
        category = path.parent.name.replace("_n_", " and ").replace("_", " ")
        pictures.append(
            Picture(
                f"{path.parent.name}/{path.stem}",
                lambda p=path: _square(Image.open(p)),
                (spoken(path.stem),),
                (category,),
            )
        )
    return pictures


SKIPPED_CLIPART = ("shapes", "special", "signs_and_symbols", "unsorted")


def openclipart(folder: Path) -> list[Picture]:
    """Clip art with a title and keywords, in its folders."""
    root = folder / "usr/share/openclipart/svg"
    pictures = []
    for path in sorted(root.rglob("*.svg")):
        parts = path.relative_to(root).parts
        if parts[0] in SKIPPED_CLIPART or parts[:2] == ("computer", "icons") or len(parts) < 2:
            continue
        if path.stat().st_size > 400_000 or path.is_symlink():
            continue
        text = path.read_text("utf8", errors="replace")
        titles = re.findall(r"<dc:title>\s*([^<]*?)\s*<", text)
        title = titles[0] if titles else ""
        if not re.fullmatch(r"[A-Za-z][A-Za-z ,'-]{2,50}", title) or "lip" in title.split()[0]:
            continue
        words = [w.strip().lower() for w in re.findall(r"<rdf:li>([^<]+)", text)]
        words = [w for w in dict.fromkeys(words) if re.fullmatch(r"[a-z][a-z -]{2,20}", w)][:6]
        name = re.sub(r"\b\d+\b", "", title).strip().lower()
        texts = (name, ", ".join(words)) if words else (name,)
        if words:
            texts += (f"{name}: {', '.join(words)}",)
        category = tuple(spoken(p).replace(" n ", " and ") for p in reversed(parts[:-1]))
        pictures.append(
            Picture(str(path.relative_to(root)), lambda t=text: _svg(t), texts, category)
        )
    return pictures


def icons(folder: Path, tags: dict[str, list[str]], most: int) -> list[Picture]:
    """Icons of an interface set, black on white, with their tags."""
    names = sorted(name for name in tags if (folder / f"{name}.svg").exists())
    chosen = names[:: max(1, len(names) // most)][:most]
    pictures = []
    for name in chosen:
        words = [w.lower() for w in tags[name]][:6]
        label = name.replace("-", " ")
        texts = (label, f"{label}: {', '.join(words)}") if words else (label,)
        pictures.append(
            Picture(name, lambda p=folder / f"{name}.svg": _svg(p.read_text("utf8")), texts)
        )
    return pictures


def mdi(folder: Path, most: int) -> list[Picture]:
    """Material design icons, without outlines and letters."""
    meta = json.loads((folder / "package/meta.json").read_text())
    tags = {
        entry["name"]: [*entry["aliases"], *entry["tags"]]
        for entry in meta
        if not re.search(r"outline|alpha-|numeric-|format-|box$|circle$|-off$", entry["name"])
    }
    return icons(folder / "package/svg", tags, most)


def lucide(folder: Path, most: int) -> list[Picture]:
    """Lucide icons."""
    tags = json.loads((folder / "package/tags.json").read_text())
    return icons(folder / "package/icons", tags, most)
