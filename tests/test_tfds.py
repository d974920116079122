"""Data sets of TensorFlow Datasets: the library's own parts of splits, without TensorFlow."""

import io

import numpy as np
import pytest
from collections_made import contents

from hmcl_jax.data.image_datasets import open_collection, recognise

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("array_record")
tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


def picture(number):
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


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


def test_parts_are_those_of_the_library(tmp_path):
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
