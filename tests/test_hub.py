"""Collections of the datasets library: Parquet, Arrow, saved data sets, builders by name."""

import sys

import numpy as np
import pytest
from collections_made import IN_ORDER, NAMES, captions_of, contents, labelled, make_folders, write

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection, recognise

datasets = pytest.importorskip("datasets")
pq = pytest.importorskip("pyarrow.parquet")
# Two of the library's own warnings, about its caches and about Python's.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    datasets.disable_progress_bars()
    return folder


def dataset(columns, labels=None):
    features = {"image": datasets.Image()}
    if labels is not None:
        features["label"] = labels
    else:
        features["caption"] = datasets.List(datasets.Value("string"))
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def classification(split):
    rows = sorted(labelled()[split])
    columns = {
        "image": [{"bytes": data, "path": None} for _, _, data in rows],
        "label": [IN_ORDER.index(name) for _, name, _ in rows],
    }
    return dataset(columns, datasets.ClassLabel(names=list(IN_ORDER)))


def retrieval(split):
    rows = sorted(captions_of(split))
    images = [{"bytes": name.encode(), "path": None} for name, _ in rows]
    return dataset({"image": images, "caption": [captions for _, captions in rows]})


def parquet(root, make):
    root.mkdir()
    for split, name in (("train", "train-00000-of-00001"), ("test", "validation")):
        make(split).to_parquet(root / f"{name}.parquet")
    return root


def saved(root, make):
    datasets.DatasetDict({s: make(s) for s in ("train", "test")}).save_to_disk(root)
    return root


@pytest.mark.parametrize("form", [parquet, saved, lambda root, make: f"hf:{parquet(root, make)}"])
def test_the_same_data_as_from_other_layouts(tmp_path, form):
    found = open_collection(form(tmp_path / "set", classification))
    assert (found.name, found.kind, found.classes) == ("set", "classification", NAMES)
    for split, rows in labelled().items():
        expected = [(data, IN_ORDER.index(name)) for _, name, data in sorted(rows)]
        assert contents(getattr(found, split)) == expected
        keys = [picture.key for picture in getattr(found, split).pictures]
        assert keys == sorted(set(keys))
    found = open_collection(form(tmp_path / "pairs", retrieval))
    assert (found.kind, found.classes) == ("retrieval", ())
    expected = [(name.encode(), captions) for name, captions in sorted(captions_of("train"))]
    assert contents(found.train) == expected


def test_parts_and_stated_names(tmp_path):
    root = parquet(tmp_path / "set", classification)
    assert recognise(root) == "datasets"
    write(root / "classnames.txt", "w\nx\ny\nz\n")
    found = open_collection(root, splits={"train": "train[:50%]", "test": "train[50%:]"})
    assert found.classes == ("w", "x", "y", "z")
    both = [picture.key for split in (found.train, found.test) for picture in split.pictures]
    assert len(set(both)) == 12
    assert np.bincount(np.concatenate([found.train.labels, found.test.labels])).tolist() == [3] * 4


def test_mistakes_are_named(tmp_path):
    root = parquet(tmp_path / "set", classification)
    write(root / "test.arrow", "x")
    with pytest.raises(IngestError, match="Parquet or Arrow files, not both"):
        open_collection(root)
    (root / "test.arrow").unlink()
    write(root / "validation.parquet", "x")
    with pytest.raises(IngestError, match=r"set cannot be read with datasets"):
        open_collection(root)
    other = classification("train").rename_column("label", "species")
    other.to_parquet(tmp_path / "train.parquet")
    with pytest.raises(IngestError, match=r"one of labels .*got image, species; rename them"):
        open_collection(tmp_path, splits={"train": "train[:1]", "test": "train[1:]"})
    rows = classification("train")
    rows = rows.map(lambda row: {"label": -1}, load_from_cache_file=False)
    rows.to_parquet(tmp_path / "train.parquet")
    with pytest.raises(IngestError, match="pictures without a label"):
        open_collection(tmp_path, splits={"train": "train[:1]", "test": "train[1:]"})


def test_paths_in_a_data_set_are_not_followed(tmp_path):
    secret = write(tmp_path / "secret.png", "x")
    columns = {"image": [{"bytes": None, "path": str(secret)}] * 4, "label": [0, 1, 2, 3]}
    rows = dataset(columns, datasets.ClassLabel(names=list(IN_ORDER)))
    for split in ("train", "test"):
        pq.write_table(rows.data.table, tmp_path / f"{split}.parquet")
    picture = open_collection(tmp_path, "x").train.pictures[0]
    with pytest.raises(IngestError, match="is not in the data set"):
        picture.read()


def test_image_folders_by_name(tmp_path):
    found = open_collection(f"hf:{make_folders(tmp_path / 'set')}")
    rows = sorted(labelled()["test"])
    assert contents(found.test) == [(data, IN_ORDER.index(name)) for _, name, data in rows]


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    root = parquet(tmp_path / "set", classification)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'hmcl_jax\[data\]'"):
        open_collection(root)
