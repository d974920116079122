"""Collections that are damaged, or that would lead outside of their folder."""

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from collections_made import (
    contents,
    make_caption_table,
    make_coco,
    make_folders,
    make_karpathy,
    make_label_shards,
    write,
    write_table,
    write_tar,
)

from hmcl_jax.data.ingest import IngestError, open_collection


@pytest.mark.parametrize(
    "image",
    ["../secret.png", "pictures/../../secret.png", "{}/secret.png", "//secret.png", "", ".."],
)
def test_paths_cannot_leave_the_collection(tmp_path, image):
    root = make_caption_table(tmp_path / "set")
    write(tmp_path / "secret.png", "x")
    write_table(root / "train.csv", [{"image": image.format(tmp_path), "caption": "x"}])
    with pytest.raises(IngestError, match=r"train\.csv line 2: image"):
        open_collection(root)
    data = (root / "train.csv").read_text()
    assert "secret" in data or image in ("", "..")


def test_links_must_stay_inside(tmp_path):
    root = make_caption_table(tmp_path / "set")
    write(tmp_path / "outside" / "a.png", "secret")
    (root / "pictures" / "inside.png").symlink_to("train-1.png")
    write_table(root / "train.csv", [{"image": "pictures/inside.png", "caption": "x"}])
    assert contents(open_collection(root).train) == [(b"train-1.png", ["x"])]
    for link, target, image in (
        (root / "pictures" / "out.png", tmp_path / "outside" / "a.png", "pictures/out.png"),
        (root / "pictures" / "there", tmp_path / "outside", "pictures/there/a.png"),
    ):
        link.symlink_to(target)
        write_table(root / "train.csv", [{"image": image, "caption": "x"}])
        with pytest.raises(IngestError, match="is a link that leaves the collection's folder"):
            open_collection(root)
        assert contents(open_collection(root, links=True).train) == [(b"secret", ["x"])]
    (root / "pictures" / "gone.png").symlink_to("nowhere.png")
    write_table(root / "train.csv", [{"image": "pictures/gone.png", "caption": "x"}])
    with pytest.raises(IngestError, match="is a link that leads nowhere"):
        open_collection(root)


def test_links_in_folders_and_of_whole_splits(tmp_path):
    make_folders(tmp_path / "real")
    write(tmp_path / "x.jpg", "x")
    root = make_folders(tmp_path / "set")
    (root / "train" / "cat" / "x.jpg").symlink_to(tmp_path / "x.jpg")
    with pytest.raises(IngestError, match=r"train/cat/x\.jpg is a link that leaves.*links=True"):
        open_collection(root)
    assert len(open_collection(root, links=True).train.pictures) == 13
    (tmp_path / "linked").mkdir()
    for split in ("train", "test"):
        (tmp_path / "linked" / split).symlink_to(tmp_path / "real" / split)
    with pytest.raises(IngestError, match="test is a link that leaves"):
        open_collection(tmp_path / "linked")
    assert len(open_collection(tmp_path / "linked", links=True).train.pictures) == 12
    (tmp_path / "whole").symlink_to(tmp_path / "real")
    assert len(open_collection(tmp_path / "whole").train.pictures) == 12


def test_a_picture_that_is_gone_or_cut_is_named(tmp_path):
    pictures = open_collection(make_folders(tmp_path)).train.pictures
    Path(pictures[0].file).unlink()
    with pytest.raises(IngestError, match=r"train/Zebra/0\.jpg cannot be read.*been moved"):
        pictures[0].read()
    root = make_label_shards(tmp_path / "shards")
    pictures = open_collection(root).train.pictures
    os.truncate(root / "train" / "0.tar", 600)
    with pytest.raises(IngestError, match=r"train/0\.tar/s0000000\.jpg ends after"):
        pictures[0].read()


# --- tables and JSON


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("train.csv", "image,text\na.png,x\n", "must have the columns image and caption"),
        ("train.csv", "image,caption,label\na.png,x,y\n", "must have the columns"),
        ("train.csv", "image,image\na.png,x\n", "names a column twice"),
        ("train.csv", "image,caption\na.png\n", "line 2 has 1 fields instead of 2"),
        ("train.csv", "image,caption\na.png,x,y\n", "line 2 has 3 fields instead of 2"),
        ("train.csv", 'image,caption\na.png,"x\n', "is not CSV"),
        ("train.csv", "image,caption\n", "has no rows"),
        ("train.csv", "", "has no rows"),
        ("train.csv", "image,caption\na.png, \n", "line 2: caption must not be blank"),
        ("train.csv", "image,caption\nb.png,x\n", "there is no such file"),
        ("train.csv", "image,caption\nhttp://a/b.png,x\n", "there is no folder 'http:'"),
        ("train.csv", b"image,caption\na.png,\xff\n", "is not UTF-8 at byte 20"),
        ("train.csv", "image,label\na.png,x\na.png,y\n", "line 3: .* has a label in line 2"),
        ("train.csv", "image,label\na.png,x\n./a.png,x\n", "line 3: .* has a label in line 2"),
        ("train.csv", "image,label\na.png,x\n", "has the column caption, but the training"),
        ("train.jsonl", "{}\n", "line 1 must have the columns"),
        ("train.jsonl", "[1]\n", "line 1 must be an object"),
        ("train.jsonl", '{"image": "a.png", "caption": 3}', "line 1: caption must be a text"),
        ("train.jsonl", '{"image": "a.png", "caption": []}', "has no caption"),
        ("train.jsonl", '{"image": 1, "caption": "x"}', "image must be the path of a picture"),
        ("train.jsonl", '{"image": "a.png", "caption": "\\ud800"}', "is not valid Unicode"),
        ("train.jsonl", '{"image": "\\ud800/a", "caption": "x"}', "there is no folder"),
        ("train.jsonl", '{"image": "\\u0000", "caption": "x"}', "there is no such file"),
        ("train.jsonl", '{"image": "a.png", "label": 1.5}', "label must be a text"),
        ("train.jsonl", '{"image": "a.png", "label": true}', "label must be a text"),
        ("train.jsonl", "[" * 100_000, "line 1 is not JSON"),
        ("train.jsonl", "{\n", "line 1 is not JSON"),
    ],
)
def test_what_a_table_must_not_hold(tmp_path, file, text, complaint):
    write(tmp_path / "a.png", "x")
    write(tmp_path / "test.csv", "image,caption\na.png,x\n")
    write(tmp_path / file, text)
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


def test_labels_are_names_or_rows_of_stated_classes(tmp_path):
    for split in ("train", "test"):
        for number in range(3):
            write(tmp_path / f"{split}{number}.png", "x")

    def opened(labels, classes=None):
        for split in ("train", "test"):
            rows = [{"image": f"{split}{i}.png", "label": v} for i, v in enumerate(labels)]
            write_table(tmp_path / f"{split}.jsonl", rows)
        (tmp_path / "classnames.txt").unlink(missing_ok=True)
        if classes:
            write(tmp_path / "classnames.txt", "\n".join(classes))
        found = open_collection(tmp_path, "x")
        return found.classes, found.train.labels.tolist()

    assert opened([10, 9, 2]) == (("2", "9", "10"), [2, 1, 0])
    assert opened(["b", "c", "a"]) == (("a", "b", "c"), [1, 2, 0])
    assert opened([2, 0, 1], ["u", "v", "w"]) == (("u", "v", "w"), [2, 0, 1])
    assert opened(["4", "10", "3"], ["10", "3", "4"]) == (("10", "3", "4"), [2, 0, 1])
    assert opened([0, 1, 2], ["m", "m", "w"]) == (("m", "m", "w"), [0, 1, 2])
    with pytest.raises(
        IngestError, match="label 'm' must be the name of one class, but 2 of the 3"
    ):
        opened(["m", "m", "w"], ["m", "m", "w"])
    with pytest.raises(IngestError, match="line 3: label '3' must be a row of the 3 classes"):
        opened([0, 1, 3], ["u", "v", "w"])
    with pytest.raises(
        IngestError, match="label 'x' must be the name of one class, but 0 of the 3"
    ):
        opened(["u", "x", "w"], ["u", "v", "w"])
    with pytest.raises(IngestError, match="1 of 3 classes have no training picture: v"):
        opened(["u", "u", "w"], ["u", "v", "w"])
    with pytest.raises(IngestError, match="must be the name of one class"):
        opened([10**30, 1, 2], ["u", "v", "w"])


def test_two_tables_of_one_split(tmp_path):
    make_caption_table(make_caption_table(tmp_path), "jsonl")
    with pytest.raises(IngestError, match=r"has both test\.csv and test\.jsonl; remove one"):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"id": 99', '"id": 100', r"images\[1\] must have an id of its own, got '100'"),
        ('"id": 99', '"id": [1]', r"images\[1\] must have an id of its own"),
        ("train-1.png", "train-2.png", "names a picture twice"),
        ("train-1.png", "../val2017/test-1.png", "must lie in the collection's folder"),
        ("train-1.png", "train-9.png", "there is no such file"),
        ('"image_id": 99', '"image_id": 7', r"annotations\[2\] has the unknown image_id '7'"),
        ('"image_id": 99', '"image_id": 98', r"train-1\.png has no caption"),
        ('"caption": "train 1, caption 0"', '"text": "x"', r"annotations\[2\] caption must be"),
        ('"images"', '"pictures"', "must have a list 'images' of objects"),
        ('"annotations": [', '"annotations": [3, ', "must have a list 'annotations' of objects"),
    ],
)
def test_what_coco_files_must_not_hold(tmp_path, old, new, complaint):
    file = make_coco(tmp_path) / "annotations" / "captions_train2017.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("train-1.png", "train-2.png", r"images\[1\] names images/train-2\.png, which an earlier"),
        ("train-1.png", "../x.png", "must lie in the collection's folder"),
        ("train-1.png", "gone.png", r"looked for in images/, made_images/, the collection's"),
        ('"raw": "train 1, caption 0"', '"raw": ""', r"sentences\[0\]\.raw must not be blank"),
        ('"split": "train"', '"split": 1', r"images\[0\]\.split must be a text"),
        ('"split": "train"', '"split": "dev"', "there is no train split .*there are dev, test"),
        ('"filename": "train-1.png"', '"name": "x"', "must have a filename"),
        ('"sentences"', '"captions"', "must have a list 'sentences'"),
    ],
)
def test_what_karpathy_files_must_not_hold(tmp_path, old, new, complaint):
    file = make_karpathy(tmp_path) / "dataset_made.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


# --- tar files


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([("a.jpg", b"x")], r"picture a\.jpg has neither a class \(a\.cls\) nor captions"),
        ([("a.cls", b"0")], "a has cls, but no picture"),
        ([("a.jpg", b"x"), ("a.cls", b"one")], r"a\.cls must be the number of a class, got 'one'"),
        ([("a.jpg", b"x"), ("a.cls", b"-1")], "must be the number of a class"),
        ([("a.jpg", b"x"), ("a.cls", b"\xff")], "is not UTF-8"),
        ([("a.jpg", b"x"), ("a.cls", b"4")], "has class 4, but there are 4 classes, from 0"),
        ([("a.jpg", b"x"), ("a.jpg", b"y"), ("a.cls", b"0")], "have one key"),
        ([("a.jpg", b"x"), ("a.png", b"y"), ("a.cls", b"0")], r"a\.png and a\.jpg have one key"),
        ([("a.jpg", b"x"), ("a.txt", b"")], r"a\.txt has no caption"),
        ([("a.jpg", b"x"), ("a.json", b"3")], "must be a caption, a list of captions"),
        ([("a.jpg", b"x"), ("a.json", b"{")], "is not JSON"),
        ([("a.jpg", b"x"), ("a.txt", b"x"), ("b.jpg", b""), ("b.cls", b"0")], "1 have captions"),
        ([("a.jpg", b"x"), ("a.txt", b"x")], "is not for classification"),
        ([("a.md", b"x")], "there is no picture in its tar files"),
    ],
)
def test_what_a_tar_file_must_not_hold(tmp_path, members, complaint):
    make_label_shards(tmp_path)
    shutil.rmtree(tmp_path / "test")
    write_tar(tmp_path / "test" / "0.tar", members)
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_tar_files_are_refused(tmp_path, kind):
    make_label_shards(tmp_path)
    with tarfile.open(tmp_path / "test" / "0.tar", "a") as archive:
        info = tarfile.TarInfo("link.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(IngestError, match=r"0\.tar: member 'link\.jpg' is a link or a special"):
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
    for size in (100, 512, used, used // 512 * 512, len(whole) - 10240, 3 * 512, 1536 + 7):
        shard.write_bytes(whole[:size])
        if size not in (used,) or size % 512:
            with pytest.raises(IngestError, match=r"0\.tar.*(truncated|not a readable tar)"):
                open_collection(root)
    damaged = bytearray(whole)
    damaged[2 * 512 + 5] ^= 1  # the second member's header, which tarfile takes for the end
    shard.write_bytes(bytes(damaged))
    with pytest.raises(IngestError, match="does not end as a tar file does, at byte 1024"):
        open_collection(root)
    shard.write_bytes(whole + whole)
    with pytest.raises(IngestError, match="several are in one file"):
        open_collection(root)
    shard.write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(IngestError, match=r"compressed \(gzip\)"):
        open_collection(root)
    shard.write_bytes(whole)
    write(root / "test" / "2.tar.gz", "x")
    with pytest.raises(IngestError, match=r"2\.tar\.gz is compressed; unpack it"):
        open_collection(root)
    (root / "test" / "2.tar.gz").unlink()
    (root / "test" / "1.tar").unlink()
    with pytest.raises(IngestError, match=r"nshards\.txt says '2', but there are 1 tar files"):
        open_collection(root)


def test_absurd_sizes_in_tar_files(tmp_path):
    root = make_label_shards(tmp_path)
    shard = root / "test" / "0.tar"
    for size, complaint in ((2**40, "ends beyond|not a readable tar"), (2**21, "ends beyond")):
        info = tarfile.TarInfo("a.cls")
        info.size = size
        shard.write_bytes(info.tobuf() + bytes(1024))
        with pytest.raises(IngestError, match=complaint):
            open_collection(root)
    write_tar(shard, [("a.jpg", b"x"), ("a.cls", b" " * (2**20 + 1))])
    with pytest.raises(IngestError, match=r"a\.cls has 1048577 bytes, more than 1048576"):
        open_collection(root)


def test_pictures_beyond_all_measure_are_not_read(tmp_path, monkeypatch):
    from hmcl_jax.data import collection

    pictures = open_collection(make_folders(tmp_path)).train.pictures
    monkeypatch.setattr(collection, "LARGEST_PICTURE", 3)
    with pytest.raises(IngestError, match=r"train/Zebra/0\.jpg has 13 bytes, more than 3"):
        pictures[0].read()
