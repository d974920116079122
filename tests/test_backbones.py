"""Towers against another forward, conversion, and damaged folders; small random models."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from checkpoints import (
    FULL,
    HEADS,
    SMALL,
    make_backbone,
    random_pixels,
    random_state,
    random_tokens,
)
from tower_reference import NumpyTowers

from hmcl_jax._files import json_sha256
from hmcl_jax.backbones.backbone import load_backbone, to_points
from hmcl_jax.backbones.convert import CheckpointError, check_tensors
from hmcl_jax.backbones.parameter_map import PIXELS, published_shapes, read_sizes

ROOT = Path(__file__).parents[1]
NAME = "meru-b/redcaps"


@pytest.fixture(scope="module")
def state():
    return random_state()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, state):
    made = tmp_path_factory.mktemp("backbones") / "small"
    make_backbone(made, state)
    return made


@pytest.fixture(scope="module")
def backbone(folder):
    return load_backbone(folder, batch=8)


def samples(count, sizes=SMALL):
    rng = np.random.default_rng(3)
    classes = np.concatenate([np.arange(3), rng.integers(0, 3, count - 3)])
    return random_pixels(rng, count, sizes), random_tokens(rng, count, sizes), classes


def assert_same_features(backbone, reference, count=11, sizes=SMALL, atol=1e-4):
    pixels, tokens, classes = samples(count, sizes)
    for found, expected in (
        (backbone.encode_images(pixels), reference.images(pixels)),
        (backbone.encode_texts(tokens), reference.texts(tokens)),
        (backbone.prototypes(tokens, classes), reference.prototypes(tokens, classes)),
    ):
        assert found.dtype == np.float32
        assert np.ptp(expected, axis=0).max() > 10 * atol  # or the comparison would say nothing
        np.testing.assert_allclose(found, expected, atol=atol, rtol=0)


def test_features_equal_another_forward(backbone, state):
    assert_same_features(backbone, NumpyTowers(state, *HEADS))


def test_the_command_converts_a_file_that_pytorch_wrote(tmp_path, state, folder, hmcl, capsys):
    torch = pytest.importorskip("torch")
    path, out = tmp_path / "small.pth", tmp_path / "out"
    model = {f"module.{key}": torch.tensor(value) for key, value in state.items()}
    torch.save({"model": model, "iteration": 3}, path)
    options = ("--name", NAME, "--image-heads", HEADS[0], "--text-heads", HEADS[1])
    hmcl("convert", path, out, *options)
    assert "2 layers of width 64, 4 heads" in capsys.readouterr().out
    weights = [f / "weights.safetensors" for f in (out, folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert_same_features(load_backbone(out), NumpyTowers(state, *HEADS))
    with pytest.raises(SystemExit, match="exists already"):
        hmcl("convert", path, out, *options)
    with pytest.raises(SystemExit, match=r"name must be .* meru-b/grit"):
        hmcl("convert", path, tmp_path / "other", "--name", "MERU")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(SystemExit, match=rf"^hmcl convert: {path} is truncated"):
        hmcl("convert", path, tmp_path / "other", *options)


def test_a_model_of_other_sizes(tmp_path):
    sizes = dataclasses.replace(
        SMALL, image_layers=1, text_layers=3, patch=4, positions=10, context=7, text_width=128
    )
    state = random_state(sizes, seed=1)
    found = make_backbone(tmp_path / "out", state, "mine/tiny", heads=(None, None))
    assert found["sizes"] == vars(sizes)
    backbone = load_backbone(tmp_path / "out", batch=4)
    assert_same_features(backbone, NumpyTowers(state, 1, 2), 5, sizes)


def check_devices(folder):
    assert jax.device_count() == 4
    state = random_state()
    for devices in (None, jax.devices()[:3]):
        backbone = load_backbone(folder, devices=devices, batch=5)
        assert backbone.batch == (8 if devices is None else 6)
        result = backbone._image_tangents(
            backbone._image_params, random_pixels(np.random.default_rng(0), backbone.batch)
        )
        assert result.sharding.num_devices == (4 if devices is None else 3)
        assert_same_features(backbone, NumpyTowers(state, *HEADS))


@pytest.mark.slow
def test_four_devices(folder):
    code = f"import test_backbones; test_backbones.check_devices({str(folder)!r}); print('passed')"
    flags = "--xla_force_host_platform_device_count=4"
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    start = [sys.executable, "-c", code]
    done = subprocess.run(start, env=environment, capture_output=True, text=True)
    assert done.stdout == "passed\n", done.stderr[-3000:]


@pytest.mark.slow
def test_full_size(tmp_path):
    state = random_state(FULL)
    for key in ("visual_alpha", "textual_alpha"):  # as training begins: points of radius about 1
        state[key] = np.array(-0.5 * np.log(512), np.float32)
    found = make_backbone(tmp_path / "out", state, heads=(None, None))
    assert (found["image_heads"], found["text_heads"]) == (12, 8)
    backbone = load_backbone(tmp_path / "out", batch=4)
    assert_same_features(backbone, NumpyTowers(state, 12, 8), 4, FULL)


@pytest.mark.slow
def test_batches_change_nothing(backbone, folder):
    pixels, tokens, classes = samples(11)
    other = load_backbone(folder, batch=3)
    whole = backbone.encode_images(pixels)
    for rows in ([4], [], [10, 2, 3, 3, 1, 0, 5, 4, 9]):
        np.testing.assert_allclose(backbone.encode_images(pixels[rows]), whole[rows], atol=1e-6)
    np.testing.assert_allclose(
        backbone.prototypes(tokens, classes), other.prototypes(tokens, classes), atol=1e-5
    )
    compiled = [f._cache_size() for f in (backbone._image_tangents, backbone._text_tangents)]
    assert compiled == [1, 1]


@pytest.mark.slow
def test_bfloat16_is_near(backbone, folder):
    pixels, tokens, _ = samples(5)
    fast = load_backbone(folder, "bfloat16", batch=8)
    for encode, rows in (("encode_images", pixels), ("encode_texts", tokens)):
        found, expected = (getattr(b, encode)(rows) for b in (fast, backbone))
        off = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert 1e-4 < off.max() < 0.03


def test_points_end_where_those_of_meru_do():
    K = 5.0
    v = np.float32([[1e-9, 0], [0, 0], [3, 4], [30, -40], [1e6, 0]])
    c = 1 / K
    n = math.sqrt(c) * np.linalg.norm(v.astype(float), axis=1, keepdims=True)
    expected = np.sinh(np.clip(n, 1e-8, math.asinh(2**15))) * v / np.maximum(n, 1e-8)
    found = np.asarray(to_points(jax.numpy.asarray(v), K))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(found[-1, 0], 2**15 * math.sqrt(K), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda b, p, t: b.encode_images(p[:, :16, :16]), r"got uint8 of shape \(4, 16, 16, 3\)"),
        (lambda b, p, t: b.encode_texts(t[:, :5]), r"tokens .* \(n, 12\), got int32 .*\(4, 5\)"),
        (lambda b, p, t: b.encode_texts(t + 1), "tokens must be from 0 to 99, got 1 to 100"),
        (lambda b, p, t: b.prototypes(t, np.zeros(3, int)), "one for each of 4 texts"),
        (lambda b, p, t: b.prototypes(t, 2 * np.arange(4)), r"without gaps, .* got \[0 2 4 6\]"),
    ],
)
def test_wrong_arguments(backbone, call, match):
    pixels, tokens, _ = samples(4)
    with pytest.raises(ValueError, match=match):
        call(backbone, pixels, tokens)


def test_sizes_of_the_published_model():
    shapes = published_shapes(vars(FULL))
    assert sum(math.prod(shape) for key, shape in shapes.items() if key not in PIXELS) == 149619972
    assert read_sizes(shapes) == vars(FULL)


def changed(state, changes):
    """The state with other tensors; None removes one."""
    return {key: value for key, value in {**state, **changes}.items() if value is not None}


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"visual.blocks.4.norm1.bias": zeros(64)}, r"missing: visual\.blocks\.2\.norm1"),
        ({"visual.blocks.01.norm1.bias": zeros(64)}, r"unexpected: visual\.blocks\.01\.norm1"),
        (
            {"visual.norm.bias": zeros(63), "textual.extra": zeros(1), "curv": None},
            r"missing: curv; unexpected: textual\.extra; wrong shape: visual\.norm\.bias \(63,\)",
        ),
        ({"visual.blocks.0.attn.qkv.weight": zeros(128, 64)}, r"instead of \(192, 64\)"),
        ({"visual.pos_embed": zeros(1, 16, 64)}, "with 16 rows instead of"),
        ({"curv": np.array(3)}, r"curv of int64 instead of floats"),
        ({"pixel_mean": zeros(3)}, r"pixel_mean \(3,\) instead of \(3, 1, 1\)"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, state, changes, message):
    with pytest.raises(CheckpointError, match=rf"odd\.pth does not hold the tensors .*{message}"):
        make_backbone(tmp_path / "odd", changed(state, changes))
    assert [p.name for p in tmp_path.iterdir()] == ["odd.pth"]


def test_clip_is_refused(tmp_path, state):
    plain = changed(state, dict.fromkeys(("curv", "visual_alpha", "textual_alpha")))
    with pytest.raises(CheckpointError, match=r"is a CLIP checkpoint: .* no hyperboloid"):
        check_tensors(tmp_path, plain)


@pytest.mark.parametrize(
    ("changes", "options", "match"),
    [
        ({"logit_scale": np.array(100, "f4")}, {}, "logit_scale must be .* got 100"),
        ({"visual.norm.bias": zeros(64) + np.inf}, {}, r"visual\.norm\.bias is not finite\."),
        ({"visual.norm.bias": zeros(64) + 1e5}, {"dtype": "float16"}, "not in float16; use"),
        ({}, {"heads": (5, None)}, "image tower of width 64 cannot have 5 heads"),
    ],
)
def test_values_that_cannot_be(tmp_path, state, changes, options, match):
    with pytest.raises(ValueError, match=match):
        make_backbone(tmp_path / "odd", changed(state, changes), **options)
    assert [p.name for p in tmp_path.iterdir()] == ["odd.pth"]


def test_heads_by_width(tmp_path):
    wide = dataclasses.replace(SMALL, image_width=384, text_width=384)
    found = make_backbone(tmp_path / "wide", random_state(wide), "meru-s/grit", heads=(None, None))
    assert (found["image_heads"], found["text_heads"]) == (12, 6)


def test_weights_of_half_the_size(tmp_path, state, folder):
    make_backbone(tmp_path / "out", state, dtype="float16")
    size, full = ((f / "weights.safetensors").stat().st_size for f in (tmp_path / "out", folder))
    assert size < 0.6 * full
    assert_same_features(load_backbone(tmp_path / "out"), NumpyTowers(state, *HEADS), 4, atol=3e-2)


def test_damaged_folders(tmp_path, folder):
    with pytest.raises(CheckpointError, match=r"backbone\.json is missing; make one with"):
        load_backbone(tmp_path)
    text = (folder / "backbone.json").read_text()
    found = {**json.loads(text), "sizes": {}}
    found["sha256"] = json_sha256(found)
    (tmp_path / "weights.safetensors").write_bytes((folder / "weights.safetensors").read_bytes())
    for damaged, match in (
        ("{", "not a readable backbone"),
        (json.dumps(found), "not a readable backbone"),
        (text.replace('"schema": 1', '"schema": 2'), "schema must be 1, got 2"),
        (text.replace("redcaps", "redcapz"), "does not match its own checksum"),
    ):
        (tmp_path / "backbone.json").write_text(damaged)
        with pytest.raises(CheckpointError, match=rf"{tmp_path}.*{match}"):
            load_backbone(tmp_path)
    (tmp_path / "backbone.json").write_text(text)
    weights = bytearray((folder / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "weights.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match=r"weights\.safetensors does not match its checksum"):
        load_backbone(tmp_path)
