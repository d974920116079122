"""Collections in tar files: damage is named, and nothing is lost in silence."""

import io
import os
import shutil
import tarfile

import pytest
from collections_made import contents, make_label_shards, write, write_tar

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([("a.jpg", b"x")], "a has picture, but needs a picture, and a class"),
        ([("a.cls", b"0")], "a has cls, but needs a picture"),
        ([("a.jpg", b"x"), ("a.cls", b"\xff")], r"member a\.cls cannot be read: UnicodeDecode"),
        (
            [("a.jpg", b"x"), ("a.cls", b"4")],
            "a.jpg has the label '4', which must be .* number, from 0",
        ),
        ([("a.jpg", b"x"), ("a.jpg", b"y"), ("a.cls", b"0")], "a.jpg has the key of another"),
        ([("a.jpg", b"x"), ("a.cls", b" ")], r"member a\.cls must .*not be blank"),
        ([("a.jpg", b"x"), ("a.txt", b"")], r"member a\.txt must .*not be blank"),
        ([("a.jpg", b"x"), ("a.json", b"3")], r"member a\.json must be a text, got '3'"),
        ([("a.jpg", b"x"), ("a.txt", b"x"), ("b.jpg", b""), ("b.cls", b"0")], "all must have capt"),
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


def test_a_tar_file_that_is_cut_after_opening(tmp_path):
    root = make_label_shards(tmp_path)
    pictures = open_collection(root).train.pictures
    os.truncate(root / "train" / "0.tar", 600)
    with pytest.raises(IngestError, match=r"train/0\.tar/s0000000\.jpg ends after"):
        pictures[0].read()
