"""Checkpoints of PyTorch: tensors are read exactly, no code in a file is run."""

import sys
import types
import typing
from collections import defaultdict

import numpy as np
import pytest
from checkpoints import random_state

from hmcl_jax.backbones.convert import CheckpointError, convert_checkpoint, read_checkpoint

torch = pytest.importorskip("torch")


def same(tensors, expected):
    assert tensors.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_array_equal(tensors[key], values, strict=True)


def test_published_and_bare_states(tmp_path):
    state, model = random_state(), torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    whole = {  # as MERU's training loop saves it
        "model": {f"module.{key}": torch.tensor(value) for key, value in state.items()},
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5).state_dict(),
        "iteration": 5,
    }
    torch.save(whole, tmp_path / "whole.pth")
    same(read_checkpoint(tmp_path / "whole.pth"), state)
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    same(read_checkpoint(tmp_path / "bare.pth"), weights)


def test_views_and_dtypes(tmp_path):
    tensors = {
        "rows": torch.arange(12.0).reshape(3, 4)[1:, ::2],
        "turned": torch.arange(12.0).reshape(3, 4).T,
        "bfloat16": torch.tensor([1.0, 1 / 3], dtype=torch.bfloat16),
        "half": torch.tensor([1.0, 1 / 3], dtype=torch.float16),
        "double": torch.tensor([1 / 3], dtype=torch.float64),
        "whole": torch.tensor([2**40]),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    torch.save({"model": tensors}, tmp_path / "views.pth")
    expected = {
        key: (value.float() if key == "bfloat16" else value).detach().numpy()
        for key, value in tensors.items()
    }
    same(read_checkpoint(tmp_path / "views.pth"), expected)


def test_configurations_beside_the_weights(tmp_path, monkeypatch):
    """Published optimizers hold objects of omegaconf, which need not be installed."""
    made = {}
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    for module, name in (("listconfig", "ListConfig"), ("base", "ContainerMetadata")):
        package = f"omegaconf.{module}"
        made[name] = type(name, (), {"__module__": package})
        monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(**{name: made[name]}))
    config, metadata = made["ListConfig"](), made["ContainerMetadata"]()
    metadata.ref_type, metadata.kind = typing.Optional[int], typing.Any  # noqa: UP045
    metadata.cache = defaultdict(dict)
    config.content, config.metadata = [0.9, 0.98, None], metadata
    whole = {"optimizer": {"betas": config, "eps": np.float64(1e-8)}, "model": {"x": torch.ones(3)}}
    torch.save(whole, tmp_path / "a.pth")
    monkeypatch.undo()
    same(read_checkpoint(tmp_path / "a.pth"), {"x": np.ones(3, np.float32)})


class Evil:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("where", ["model", "beside", "nested", "key"])
def test_files_that_would_run_code_are_refused(tmp_path, where):
    canary = tmp_path / "canary"
    evil = Evil(eval, f"open({str(canary)!r}, 'w').close()")
    weights = {"x": torch.ones(3)}
    whole = {
        "model": {"model": {**weights, "y": evil}},
        "beside": {"model": weights, "scheduler": evil},
        "nested": {"model": weights, "scheduler": [{"a": ({"b": evil},)}]},
        "key": {"model": weights, (1, evil): None},
    }[where]
    torch.save(whole, tmp_path / "evil.pth")
    with pytest.raises(CheckpointError, match=r"evil\.pth needs .* may run code"):
        read_checkpoint(tmp_path / "evil.pth")
    assert not canary.exists()


def test_damaged_and_other_files(tmp_path):
    whole = tmp_path / "whole.pth"
    torch.save({"model": {"x": torch.arange(1000.0)}}, whole)
    data = whole.read_bytes()
    victim = tmp_path / "victim.pth"
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1  # within the numbers
    for damaged in (b"", data[:99], data[:-1], bytes(flipped), b"<!DOCTYPE html>"):
        victim.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"victim\.pth"):
            read_checkpoint(victim)
    for saved in (torch.ones(3), {"model": {}}, {"x": torch.ones(1), "y": None}):
        torch.save(saved, victim)
        with pytest.raises(CheckpointError, match=r"victim\.pth.*(no tensors|not a tensor)"):
            read_checkpoint(victim)
    torch.save({k: torch.ones(1) for k in ("x", "module.x")}, victim)
    with pytest.raises(CheckpointError, match="'x' occurs twice"):
        read_checkpoint(victim)
    torch.save({"model": torch.nn.Linear(1, 1)}, victim)
    with pytest.raises(CheckpointError, match=r"needs 'torch\.nn\.modules\.linear\.Linear'"):
        read_checkpoint(victim)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "nowhere.pth")


def test_a_missing_pytorch_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"'torch' is missing: pip install 'hmcl_jax\[convert\]'"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "out", "meru-b/redcaps")
