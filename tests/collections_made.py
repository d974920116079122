"""Small collections in every layout, made of a few bytes each; ingest does not decode pictures."""

import csv
import io
import json
import tarfile

CLASSES = ("barn_owl", "cat", "Zebra", "\u00e9cureuil")
IN_ORDER = tuple(sorted(CLASSES))
NAMES = tuple(name.replace("_", " ") for name in IN_ORDER)
TOML = """
name = "beasts"
layout = "folders"
classes = ["z", "owl", "cat", "cat"]
prompts = ["one {}."]
fit = "squash"
licence = "CC0"
provenance = { source = "made" }
"""


def labelled():
    """(path, class folder, bytes) of both splits, in an order that is not sorted."""
    return {
        split: [
            (f"{split}/{name}/{number}.jpg", name, f"{split} {name} {number}".encode())
            for number in reversed(range(count))
            for name in CLASSES
        ]
        for split, count in (("train", 3), ("test", 2))
    }


def captions_of(split):
    """(picture, captions) of a split: one, two and three captions."""
    return [
        (f"{split}-{number}.png", [f"{split} {number}, caption {i}" for i in range(number)])
        for number in (2, 1, 3)
    ]


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def make_folders(root):
    for rows in labelled().values():
        for path, _, data in rows:
            write(root / path, data)
    return root


def make_label_table(root, suffix="csv"):
    """The same pictures and folders, named by tables in a folder of their own."""
    for split, rows in labelled().items():
        entries = []
        for path, name, data in rows:
            write(root / "all" / path, data)
            entries.append({"image": f"all/{path}", "label": name.replace("_", " ")})
        write_table(root / f"{split}.{suffix}", entries)
    return root


def write_table(path, entries):
    if path.suffix == ".jsonl":
        return write(path, "".join(json.dumps(entry) + "\n" for entry in entries))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(entries[0]))
    writer.writeheader()
    writer.writerows(entries)
    return write(path, text.getvalue())


def write_tar(path, members):
    """A tar file of (name, bytes)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def make_label_shards(root):
    for split, rows in labelled().items():
        ordered = sorted(rows)
        members = []
        for number, (_, name, data) in enumerate(ordered):
            members.append((f"s{number:07d}.cls", str(IN_ORDER.index(name)).encode()))
            members.append((f"s{number:07d}.jpg", data))
        half = len(ordered)
        write_tar(root / split / "0.tar", members[:half][::-1])
        write_tar(root / split / "1.tar", members[half:][::-1])
        write(root / split / "nshards.txt", "2\n")
    write(root / "classnames.txt", "\n".join(NAMES) + "\n")
    write(root / "zeroshot_classification_templates.txt", "a {c}.\nthe {c}.\n")
    return root


def make_caption_table(root, suffix="csv"):
    for split in ("train", "test"):
        entries = []
        for name, captions in captions_of(split):
            write(root / "pictures" / name, name)
            entries += [{"image": f"pictures/{name}", "caption": text} for text in captions]
        write_table(root / f"{split}.{suffix}", entries)
    return root


def make_coco(root):
    for split, real in (("train", "train"), ("val", "test")):
        images, annotations = [], []
        for number, (name, captions) in enumerate(captions_of(real)):
            write(root / f"{split}2017" / name, name)
            images.append({"id": 100 - number, "file_name": name, "height": 1})
            annotations += [{"image_id": 100 - number, "caption": text} for text in captions]
        data = {"images": images, "annotations": annotations, "info": {}}
        write(root / "annotations" / f"captions_{split}2017.json", json.dumps(data))
    return root


def make_karpathy(root, place="images", filepath=None, restval=False):
    images = []
    for split in ("train", "test"):
        for name, captions in captions_of(split):
            write(root / place / name, name)
            entry = {"filename": name, "split": split}
            entry["sentences"] = [{"raw": text, "tokens": text.split()} for text in captions]
            images.append({**entry, "filepath": filepath} if filepath else entry)
    if restval:
        write(root / place / "more.png", "more.png")
        sentences = [{"raw": "one more"}]
        images.append({"filename": "more.png", "split": "restval", "sentences": sentences})
    write(root / "dataset_made.json", json.dumps({"images": images, "dataset": "made"}))
    return root


def make_caption_shards(root, suffix="txt"):
    for split in ("train", "test"):
        members = []
        for name, captions in captions_of(split):
            members.append((name, name.encode()))
            text = "\n".join(captions) if suffix == "txt" else json.dumps({"captions": captions})
            members.append((name.replace("png", suffix), text.encode()))
        write_tar(root / split / "0.tar", members)
    return root


CLASSIFICATION = {
    "folders": make_folders,
    "csv": make_label_table,
    "jsonl": lambda root: make_label_table(root, "jsonl"),
    "tar": make_label_shards,
}
RETRIEVAL = {
    "csv": make_caption_table,
    "jsonl": lambda root: make_caption_table(root, "jsonl"),
    "coco": make_coco,
    "images": make_karpathy,
    "made_images": lambda root: make_karpathy(root, "made_images"),
    "beside": lambda root: make_karpathy(root, "."),
    "filepath": lambda root: make_karpathy(root, "val2014", "val2014"),
    "txt": make_caption_shards,
    "json": lambda root: make_caption_shards(root, "json"),
}


def contents(split):
    """What a split holds: the bytes of every picture with its label or captions."""
    if split.labels is not None:
        labels = split.labels.tolist()
        return [
            (picture.read(), label) for picture, label in zip(split.pictures, labels, strict=True)
        ]
    found = [(picture.read(), []) for picture in split.pictures]
    for picture, caption in split.pairs.tolist():
        found[picture][1].append(split.captions[caption])
    return found
