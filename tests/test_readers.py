"""Tables, COCO, Karpathy, tar files, data sets of two libraries: errors name the place."""

import io
import os
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from collections_made import (
    IN_ORDER,
    NAMES,
    captions_of,
    contents,
    labelled,
    make_coco,
    make_folders,
    make_karpathy,
    make_label_shards,
    write,
    write_tar,
)

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection, recognise


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("train.csv", "image,caption\na.png,x, y\n", "line 2 must have .*got image, caption, None"),
        ("train.csv", "image,caption\na.png\n", "line 2: caption must .*not be blank"),
        ("train.csv", 'image,caption\na.png,"x\n', "train.csv cannot be read: Error"),
        ("train.csv", "image,caption\nb.png,x\n", "line 2: image is 'b.png', but there is no such"),
        ("train.csv", b"image,caption\na.png,\xff\n", "train.csv cannot be read: UnicodeDecode"),
        ("train.csv", "image,label\na.png,x\na.png,y\n", "line 3: image a.png has another label"),
        ("train.csv", "image,label\na.png,x\n", "must have a label, or all must have captions"),
        ("train.jsonl", "[1]\n", "train.jsonl cannot be read: TypeError"),
        ("train.jsonl", '{"image": "a.png", "caption": 3}', "line 1: caption must be a text"),
        ("train.jsonl", '{"image": "a.png", "caption": "\\ud800"}', "must be valid Unicode"),
        ("train.jsonl", '{"image": "a.png", "label": 1.5}', "label must be a text"),
        ("train.jsonl", '{"image": "a.png", "caption": "x"}', "has train.jsonl and another file"),
    ],
)
def test_what_a_table_must_not_hold(tmp_path, file, text, complaint):
    write(tmp_path / "a.png", "x")
    write(tmp_path / "test.csv", "image,caption\na.png,x\n")
    if "another file" in complaint:
        write(tmp_path / "train.csv", "image,caption\na.png,x\n")
    write(tmp_path / file, text)
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    ("make", "file", "old", "new", "complaint"),
    [
        (make_coco, "coco", '"id": 99', '"id": 100', "cannot be read: KeyError: 99"),
        (make_coco, "coco", "train-1.png", "train-9.png", "there is no such file"),
        (make_coco, "coco", '"image_id": 99', '"image_id": 98', "train-1.png has no caption"),
        (make_karpathy, "made", "train-1.png", "gone.png", "looked for in .*images, made_images"),
        (make_karpathy, "made", '"train 1, caption 0"', '""', r"raw of images/train-1.png must"),
        (make_karpathy, "made", '"train"', '"dev"', "no train split, but dev, test"),
    ],
)
def test_what_caption_files_must_not_hold(tmp_path, make, file, old, new, complaint):
    files = {"coco": "annotations/captions_train2017.json", "made": "dataset_made.json"}
    target = make(tmp_path) / files[file]
    text = target.read_text()
    assert old in text
    target.write_text(text.replace(old, new))
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([("a.jpg", b"x")], "a has picture, but needs a picture and"),
        ([("a.jpg", b"x"), ("a.cls", b"\xff")], r"member a\.cls cannot be read: UnicodeDecode"),
        ([("a.jpg", b"x"), ("a.cls", b"4")], "a.jpg has the label '4'"),
        ([("a.jpg", b"x"), ("a.jpg", b"y"), ("a.cls", b"0")], "a.jpg has the key of another"),
        ([("a.jpg", b"x"), ("a.json", b"3")], r"member a\.json must be a text, got '3'"),
        ([("a.jpg", b"x"), ("a.txt", b"x")], "all pictures must have a label, or all must have"),
        ([("a.md", b"x")], "test is rows 0 to 0, but there are 0 pictures"),
    ],
)
def test_what_a_tar_file_must_not_hold(tmp_path, members, complaint):
    make_label_shards(tmp_path)
    shutil.rmtree(tmp_path / "test")
    write_tar(tmp_path / "test" / "0.tar", members)
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_tar_files_are_refused(tmp_path, kind):
    make_label_shards(tmp_path)
    with tarfile.open(tmp_path / "test" / "0.tar", "a") as archive:
        info = tarfile.TarInfo("link.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(IngestError, match=r"0\.tar': member 'link\.jpg' is a link or a special"):
        open_collection(tmp_path)


def test_tar_files_with_folders_long_names_and_unicode(tmp_path):
    make_label_shards(tmp_path)
    name = "d\u00e9p\u00f4t/" + "x" * 150
    with tarfile.open(tmp_path / "test" / "0.tar", "w") as archive:
        info = tarfile.TarInfo("d\u00e9p\u00f4t")
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
        for suffix, data in ((".JPG", b"x"), (".cls", b"1\n")):
            info = tarfile.TarInfo(name + suffix)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    found = open_collection(tmp_path).test
    assert found.pictures[0].key == f"test/0.tar/{name}.JPG"
    assert contents(found)[0] == (b"x", 1)


def test_truncated_compressed_and_missing_shards(tmp_path):
    root = make_label_shards(tmp_path)
    shard = root / "test" / "0.tar"
    whole = shard.read_bytes()
    used = len(whole.rstrip(b"\x00"))
    damaged = bytearray(whole)
    damaged[2 * 512 + 5] ^= 1  # the second member's header, which tarfile takes for the end
    sizes = (100, 512, used // 512 * 512, len(whole) - 10240, 3 * 512, 1536 + 7)
    cuts = [whole[:size] for size in sizes]
    for data in (*cuts, bytes(damaged), whole + whole, b"\x1f\x8b" + bytes(600)):
        shard.write_bytes(data)
        with pytest.raises(IngestError, match=r"0\.tar.*(truncated|cannot be read: ReadError)"):
            open_collection(root)
    shard.write_bytes(whole)
    (root / "test" / "1.tar").unlink()
    with pytest.raises(IngestError, match=r"nshards\.txt says '2', but there are 1 tar files"):
        open_collection(root)
    write(root / "test" / "1.tar.gz", b"\x1f\x8b" + bytes(600))
    with pytest.raises(IngestError, match=r"1\.tar\.gz \(to be a tar file without compression\)"):
        open_collection(root)


def test_files_that_are_cut_or_gone_after_opening(tmp_path):
    packed, plain = make_label_shards(tmp_path / "packed"), make_folders(tmp_path / "plain")
    pictures = [open_collection(root).train.pictures[0] for root in (packed, plain)]
    os.truncate(packed / "train" / "0.tar", 600)
    Path(plain, pictures[1].key).unlink()
    for picture, complaint in zip(
        pictures,
        (r"0\.tar/s0000000\.jpg ends after", r"Zebra/0\.jpg cannot be read: FileNotFoundError"),
        strict=True,
    ):
        with pytest.raises(IngestError, match=complaint):
            picture.read()


# --- the datasets library

# Two of its own warnings, about its caches and about Python's.
quiet = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def datasets(tmp_path_factory, monkeypatch):
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    library.disable_progress_bars()
    return library


def classification(datasets, split, path=None):
    rows = sorted(labelled()[split])
    images = [{"bytes": None if path else data, "path": path} for _, _, data in rows]
    columns = {"image": images, "label": [IN_ORDER.index(name) for _, name, _ in rows]}
    names = datasets.ClassLabel(names=list(IN_ORDER))
    features = datasets.Features({"image": datasets.Image(), "label": names})
    return datasets.Dataset.from_dict(columns, features=features)


def retrieval(datasets, split):
    rows = sorted(captions_of(split))
    images = [{"bytes": name.encode(), "path": None} for name, _ in rows]
    columns = {"image": images, "caption": [captions for _, captions in rows]}
    texts = datasets.List(datasets.Value("string"))
    features = datasets.Features({"image": datasets.Image(), "caption": texts})
    return datasets.Dataset.from_dict(columns, features=features)


def parquet(datasets, root, make):
    root.mkdir()
    for split, name in (("train", "train-00000-of-00001"), ("test", "validation")):
        make(datasets, split).to_parquet(root / f"{name}.parquet")
    return root


def saved(datasets, root, make):
    splits = {split: make(datasets, split) for split in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(root)
    return root


def by_name(datasets, root, make):
    if make is classification:  # a folder of pictures
        return f"hf:{make_folders(root)}"
    return f"hf:{parquet(datasets, root, make)}"


@quiet
@pytest.mark.parametrize("form", [parquet, saved, by_name])
def test_data_sets_are_the_same_as_other_layouts(tmp_path, datasets, form):
    found = open_collection(form(datasets, tmp_path / "set", classification))
    assert (found.name, found.kind, found.classes) == ("set", "classification", NAMES)
    for split, rows in labelled().items():
        expected = [(data, IN_ORDER.index(name)) for _, name, data in sorted(rows)]
        assert contents(getattr(found, split)) == expected
        keys = [picture.key for picture in getattr(found, split).pictures]
        assert keys == sorted(set(keys))
    found = open_collection(form(datasets, tmp_path / "pairs", retrieval))
    assert (found.kind, found.classes) == ("retrieval", ())
    expected = [(name.encode(), captions) for name, captions in sorted(captions_of("train"))]
    assert contents(found.train) == expected


@quiet
def test_parts_and_stated_names_of_data_sets(tmp_path, datasets):
    root = parquet(datasets, tmp_path / "set", classification)
    assert recognise(root) == "datasets"
    write(root / "classnames.txt", "w\nx\ny\nz\n")
    found = open_collection(root, splits={"train": "train[:75%]", "test": "train[75%:]"})
    assert found.classes == ("w", "x", "y", "z")
    keys = {picture.key for split in (found.train, found.test) for picture in split.pictures}
    assert len(keys) == 12


@quiet
def test_mistakes_in_data_sets_are_named(tmp_path, datasets, monkeypatch):
    root = parquet(datasets, tmp_path / "set", classification)
    write(root / "validation.parquet", "x")
    with pytest.raises(IngestError, match=r"set \(with the datasets library\) cannot be read"):
        open_collection(root)
    rows = classification(datasets, "train")
    splits = {"train": "train[:1]", "test": "train[1:]"}
    for wrong, complaint in (
        (rows.rename_column("label", "species"), "one of labels .*got image, species"),
        (rows.map(lambda row: {"label": -1}, load_from_cache_file=False), "without a label"),
    ):
        wrong.to_parquet(tmp_path / "train.parquet")
        with pytest.raises(IngestError, match=complaint):
            open_collection(tmp_path, splits=splits)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'hmcl_jax\[data\]'"):
        open_collection(root)


@quiet
def test_paths_in_a_data_set_are_not_followed(tmp_path, datasets):
    pq = pytest.importorskip("pyarrow.parquet")
    secret = write(tmp_path / "secret.png", "x")
    for split in ("train", "test"):
        rows = classification(datasets, split, str(secret))
        pq.write_table(rows.data.table, tmp_path / f"{split}.parquet")
    picture = open_collection(tmp_path, "x").train.pictures[0]
    with pytest.raises(IngestError, match="is not in the data set"):
        picture.read()


# --- TensorFlow Datasets


def picture(number):
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_parts_are_those_of_tensorflow_datasets(tmp_path):
    pytest.importorskip("array_record")
    tfds = pytest.importorskip("tensorflow_datasets")

    class Tiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(8, 8, 3), encoding_format="png"),
                "label": tfds.features.ClassLabel(names=["barn_owl", "cat"]),
            }
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):
            return {"train": self._generate_examples(20), "test": self._generate_examples(6)}

        def _generate_examples(self, count):
            for number in range(count):
                yield number, {"image": io.BytesIO(picture(number)), "label": number % 2}

    Tiny(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    assert recognise(tmp_path / "tiny") == "tfds"
    splits = {"train": "train[:80%]", "test": "train[80%:]"}
    found = open_collection(tmp_path / "tiny", splits=splits)
    assert (found.name, found.classes) == ("tiny", ("barn owl", "cat"))
    builder = tfds.builder_from_directory(tmp_path / "tiny" / "1.0.0")
    for side, part in splits.items():
        source = builder.as_data_source(part, decoders={"image": tfds.decode.SkipDecoding()})
        expected = [(example["image"], int(example["label"])) for example in source]
        assert contents(getattr(found, side)) == expected
    assert sorted(data for data, _ in contents(open_collection(tmp_path / "tiny").test)) == sorted(
        picture(number) for number in range(6)
    )
