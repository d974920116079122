"""Runs of every method equal those that were recorded: a change of the engine changes no number.

`python tests/test_golden.py` records them again. Do that only where numbers are meant to change,
and say so in the changelog.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from hmcl_jax.continual import METHODS, Schedule, TrainConfig, run_stream
from hmcl_jax.data.synthetic import synthetic_stream

RECORD = Path(__file__).parent / "golden.npz"
CONFIG = TrainConfig(
    classification=Schedule(3, 0.02), retrieval=Schedule(2, 0.02), batch=32, seed_axis="map"
)
SEEDS = (0, 7)
SETTINGS = {  # by row; a row without settings is the method of its name with its defaults
    **{name: {} for name in METHODS},
    **{name: {"memory": 24} for name in ("ewc", "gem", "agem", "cflat", "derpp")},
    **{name: {"span": "protected"} for name in ("hmcl_ca", "hmcl_rotation")},
    # Ranks that do not hang on rounding, as those of nearly full rank do.
    "nullspace": {"variance": 0.8, "min_rank": 2},
    "dns": {"lambda_min": 1.0},
    "ambient": {"method": "hmcl_ca", "span": "ambient"},
    "ambient_rotation": {"method": "hmcl_rotation", "span": "ambient"},
    "pre": {"method": "hmcl_ca", "placement": "pre", "span": "protected"},
    "post": {"method": "hmcl_mr", "placement": "post"},
    "online": {"method": "ewc", "mode": "online", "memory": 24},
    "per_minibatch": {"method": "cflat", "perturb": "minibatch", "memory": 24},
    "seen": {"method": "joint", "tasks": "seen"},
}
FEEDS = {
    "vmap": {"seed_axis": "vmap"},
    "loop": {"seed_axis": "loop"},
    "streamed": {"device_memory": 0.01},
    "minibatch": {"step": "minibatch"},
    "lasting": {"reset_optimizer": False, "weight_decay": 0.1},
}
RECORDED = ("minibatch", "lasting")  # ways of training with numbers of their own
BY_DEFAULT = ("vanilla", "hmcl_ca", "gem")
ROWS = [pytest.param(r, marks=[pytest.mark.slow] * (r not in BY_DEFAULT)) for r in SETTINGS]
FED = [
    pytest.param(row, feed, marks=[pytest.mark.slow] * (row != "hmcl_rotation" or feed != "vmap"))
    for row in ("hmcl_rotation", "derpp", "cflat")
    for feed in FEEDS
]


def train(row, **changes):
    """Heads and scores in float64: three tasks, a modality that comes late, one that is away."""
    with jax.enable_x64(True):
        store = synthetic_stream(
            tasks=3, classes=4, dimension=8, train=150, test=40, overlap=0.8, modalities=3,
            retrieval_every=2,
        )  # fmt: skip
        config = dataclasses.replace(CONFIG, **changes)
        result = run_stream(store, [row], SEEDS, config, settings={row: SETTINGS[row]})[row]
        assert all(W.dtype == np.float64 for W in result.heads.values())
        found = {**{m: np.asarray(W) for m, W in result.heads.items()}, "scores": result.scores}
        for t, (losses, log) in enumerate(zip(result.losses, result.logs, strict=True)):
            found[f"losses {t}"] = np.asarray(losses)
            found |= {f"{name} {t}": np.asarray(x, float) for name, x in log.items()}
        return found


def compare(found, row):
    with np.load(RECORD, allow_pickle=False) as record:
        expected = {key: record[key] for key in record if key.startswith(f"{row}/")}
    assert {f"{row}/{name}" for name in found} == set(expected)
    for name, values in found.items():
        np.testing.assert_allclose(
            values, expected[f"{row}/{name}"], rtol=1e-9, atol=1e-9, err_msg=name
        )


@pytest.mark.parametrize("row", ROWS)
def test_every_method_ends_where_it_did(row):
    compare(train(row), row)


@pytest.mark.parametrize(("row", "feed"), FED)
def test_every_way_of_feeding_ends_there_too(row, feed):
    compare(train(row, **FEEDS[feed]), f"{row}-{feed}" if feed in RECORDED else row)


def record() -> None:
    found = {row: train(row) for row in SETTINGS}
    for row in {case.values[0] for case in FED}:
        found |= {f"{row}-{feed}": train(row, **FEEDS[feed]) for feed in RECORDED}
    arrays = {f"{row}/{name}": x for row, values in found.items() for name, x in values.items()}
    np.savez_compressed(RECORD, **arrays)
    print(f"{RECORD.name}: {len(found)} runs")


if __name__ == "__main__":
    record()
