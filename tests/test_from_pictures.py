"""From a checkpoint and pictures to a table, by the commands that users type."""

import dataclasses
import io
import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoints import SMALL, make_backbone, random_state
from collections_made import write, write_table, write_tar
from PIL import Image

from hmcl_jax.backbones.backbone import load_backbone
from hmcl_jax.data.store import read_store

SIZES = dataclasses.replace(SMALL, vocabulary=49408, context=20)
COLOURS = {"red": (220, 40, 30), "green": (30, 200, 60), "blue": (40, 50, 210)}
COMMAND = [sys.executable, "-m", "hmcl_jax", "extract"]


def picture(rng: np.random.Generator, colour: str, kind: str = "PNG") -> bytes:
    size = tuple(rng.integers(30, 60, 2))
    noise = rng.normal(0, 30, (*size, 3)) + np.array(COLOURS[colour])
    file = io.BytesIO()
    Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(file, kind)
    return file.getvalue()


def make_data(root: Path, per_class: int = 3) -> None:
    """A folder of classes, a tar shard and a table of captions, all of coloured noise."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for colour, number in itertools.product(COLOURS, range(per_class)):
            write(root / "folder" / split / colour / f"{number}.png", picture(rng, colour))
        members = []
        for number, (label, colour) in enumerate([*enumerate(COLOURS)] * per_class):
            members.append((f"{number:04d}.jpg", picture(rng, colour, "JPEG")))
            members.append((f"{number:04d}.cls", str(label).encode()))
        write_tar(root / "tar" / split / "0.tar", members)
        rows = []
        for number in range(8):
            colour, name = list(COLOURS)[number % 3], f"{split}/{number}.png"
            write(root / "table" / name, picture(rng, colour))
            rows += [{"image": name, "caption": f"{word} {colour}"} for word in ("all", "very")]
        write_table(root / "table" / f"{split}.jsonl", rows)
    write(root / "tar" / "classnames.txt", "\n".join(COLOURS) + "\n")
    templates = "something {c}.\na photo of {c}.\n"
    write(root / "tar" / "zeroshot_classification_templates.txt", templates)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    make_data(root)
    make_backbone(root / "tiny", random_state(SIZES), "tiny/noise")
    return root


def extraction(root: Path, out: Path, *more: object) -> list[object]:
    tasks = [f"--task={root / name}" for name in ("folder", "tar", "table")]
    return ["--backbone", root / "tiny", "--out", out, "--batch", 4, "--shard", 1, *tasks, *more]


@pytest.fixture(scope="module")
def store(made) -> Path:
    start = extraction(made, made / "store")
    done = subprocess.run([*COMMAND, *map(str, start)], capture_output=True, text=True, check=True)
    assert "train pictures 9/9" in done.stdout
    return made / "store"


def test_from_a_checkpoint_and_pictures_to_a_table(made, store, hmcl, capsys):
    found = read_store(store)
    found.validate()
    assert [(task.name, task.kind, task.size("train")) for task in found] == [
        ("folder", "classification", 9),
        ("tar", "classification", 9),
        ("table", "retrieval", 16),
    ]
    assert found["tar"].classes == tuple(COLOURS)
    backbone = load_backbone(made / "tiny")
    assert (found.backbone, found.K, found.tau) == ("tiny/noise", backbone.K, backbone.tau)
    tokens = backbone.tokenize([f"{p} {c}." for p in ("something", "a photo of") for c in COLOURS])
    expected = backbone.prototypes(tokens, np.tile(np.arange(3), 2))
    np.testing.assert_allclose(found["tar"].arrays["prototypes"], expected, rtol=2e-3, atol=2e-3)
    quick = [f"--set=train.{kind}.epochs=2" for kind in ("classification", "retrieval")]
    methods = ("--methods", "vanilla,hmcl_ca", "--seeds", "0")
    hmcl("run", "--stream", store, "--out", made / "run", *methods, *quick)
    assert "hmcl_ca" in capsys.readouterr().out
    assert "vanilla" in (made / "run" / "table.md").read_text()
    scores = json.loads((made / "run" / "results.json").read_text())
    assert scores["about"]["store"]["fingerprint"] == found.fingerprint


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same_store(made, store, tmp_path):
    chance, out = random.Random(0), tmp_path / "store"
    resumed = [*COMMAND, *map(str, extraction(made, out, "--resume"))]
    for _ in range(6):
        process = subprocess.Popen(resumed, stdout=subprocess.PIPE)
        process.stdout.readline()  # the first part is done; before it, nothing is lost
        time.sleep(chance.uniform(0, 0.6))
        process.kill()
        process.communicate()
    subprocess.run(resumed, check=True)
    files = [path for path in store.rglob("*") if path.is_file()]
    assert len(files) == sum(path.is_file() for path in out.rglob("*"))
    for path in files:
        assert (out / path.relative_to(store)).read_bytes() == path.read_bytes(), path


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--task", "nowhere"], "nowhere"),
        (["--dtype", "int8"], "dtype must be"),
        (["--suite", "hmcl16"], "--root"),
        (["--only", "cifar10"], "--suite"),
    ],
)
def test_mistakes_are_said_in_one_line_and_write_nothing(made, tmp_path, hmcl, options, complaint):
    with pytest.raises(SystemExit, match=rf"^hmcl extract: .*{complaint}"):
        hmcl("extract", *extraction(made, tmp_path / "store", *options))
    assert not list(tmp_path.iterdir())
