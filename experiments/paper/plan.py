"""Which runs the tables need: configs of experiments/configs/paper, read for the streams at hand.

Runs are told apart by what they compute (stream, order, method, settings, seeds), not by the name
that a table gives them, so that tables share them.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hmcl_jax.continual import ConfigError, TrainConfig, make_method
from hmcl_jax.continual.config import read_toml
from hmcl_jax.continual.experiment import apply_variant, read_experiment
from hmcl_jax.continual.learner import own_config
from hmcl_jax.data.store import Store, Task

CONFIGS = Path(__file__).parent.parent / "configs" / "paper"
NAMES = (
    "main",
    "per_task",
    "stages",
    "orders",
    "modalities",
    "retrieval",
    "drift",
    "norms",
    "hierarchy",
    "ranks",
    "placement",
    "decay",
    "pullback",
    "time",
)
OF_PAPER = ("vanilla", "ewc", "gem", "cflat", "dns", "hmcl_mr", "hmcl_ca")
# Seconds per training pair, epoch and seed of vanilla, and how many times that other methods take;
# measured on the pocket stream with 2 cores.
PAIR_SECONDS = 3.4e-5
TIMES = {"ewc": 1.1, "gem": 2.4, "cflat": 9.0, "dns": 1.2, "hmcl_rotation": 1.5}


@dataclasses.dataclass(frozen=True)
class Job:
    """One method on one stream, all seeds.

    Attributes:
      stream: its name, such as meru-l.
      order: of the tasks, a name in the store.
      method: one of METHODS.
      settings: of the method.
      seeds: trained side by side.
      train: shared settings, with those that are others for this method.
    """

    stream: str
    order: str
    method: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    train: TrainConfig

    @property
    def folder(self) -> str:
        """Where its checkpoints are, below the folder of all runs."""
        said: dict[str, Any] = {
            "settings": make_method(self.method, self.settings).described(),
            "train": dataclasses.asdict(self.train),
            "seeds": self.seeds,
        }
        for layout in ("seed_axis", "device_memory", "mesh"):  # do not change results
            del said["train"][layout]
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        return f"{self.stream}/{self.order}/{self.method}-{digest[:10]}"

    def seconds(self, store: Store) -> float:
        """A guess of how long it takes, from the size of the stream."""
        tasks = (store[name] for name in store.orders[self.order])
        return len(self.seeds) * sum(self.task_seconds(task) for task in tasks)

    def task_seconds(self, task: Task) -> float:
        """A guess of how long one seed takes to learn a task."""
        work = task.size("train") * self.train.schedule(task.kind).epochs
        return PAIR_SECONDS * TIMES.get(self.method, 1.0) * work


@dataclasses.dataclass(frozen=True)
class Item:
    """One table or figure on one stream.

    Attributes:
      name: of its config.
      stream: name of the stream.
      about: the config's table ``[paper]``.
      jobs: by order and by the name of the method in the table.
    """

    name: str
    stream: str
    about: Mapping[str, Any]
    jobs: Mapping[str, Mapping[str, Job]]

    @property
    def needed(self) -> list[Job]:
        """All jobs whose results are looked at; none for what measures by itself."""
        if self.about["show"] in ("ranks", "time"):
            return []
        return [job for labels in self.jobs.values() for job in labels.values()]


def read_item(
    name: str,
    stream: str,
    overrides: Sequence[str] = (),
    extra: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
) -> Item:
    """What a config asks for on one stream.

    Args:
      name: one of NAMES.
      stream: name of the stream, which the config has a variant for.
      overrides: single settings, like ``"train.batch=64"``.
      extra: methods to add to the config's, with their default settings.
      seeds: instead of the config's.

    Returns:
      The item.

    Raises:
      ConfigError: for a name or a stream that is not there.
    """
    about = about_of(name, stream)
    owner = about.get("of", name)
    path = CONFIGS / f"{owner}.toml"
    if owner != name or about["show"] != "ranks":
        experiment = read_experiment(
            path, overrides, variant=stream, stream=stream, seeds=list(seeds) if seeds else None
        )
    else:  # needs features only
        return Item(name, stream, about, {})
    labels = list(experiment.methods)
    if "methods" in about:
        labels = [m for m in labels if m in about["methods"] or m not in OF_PAPER]
    tables: dict[str, Mapping[str, Any]] = {m: experiment.settings.get(m, {}) for m in labels}
    if about["show"] == "decay":  # one block per weight decay
        endings = list(dict.fromkeys(label.rpartition("_decay_")[2] for label in labels))
        tables |= {
            f"{method}_decay_{ending}": {
                **experiment.settings.get(method, {}),
                "method": method,
                "train": {"weight_decay": float(ending)} if float(ending) else {},
            }
            for ending in endings
            for method in extra
        }
    else:
        tables |= {method: experiment.settings.get(method, {}) for method in extra}
    jobs: dict[str, dict[str, Job]] = {}
    for order in about.get("orders", [experiment.order]):
        jobs[order] = {}
        for label, table in tables.items():
            settings = {k: v for k, v in table.items() if k not in ("method", "train")}
            method = str(table.get("method", label))
            train = own_config(experiment.train, make_method(label, table))
            jobs[order][label] = Job(stream, order, method, settings, experiment.seeds, train)
    return Item(name, stream, about, jobs)


def about_of(name: str, stream: str | None = None) -> dict[str, Any]:
    """A config's table ``[paper]``, on one stream, with what it inherits from the runs it uses."""
    if name not in NAMES:
        raise ConfigError(f"NAME must be one of {', '.join(NAMES)}, got {name!r}.")
    table = read_toml(CONFIGS / f"{name}.toml")
    known = table.get("variants", {})
    about = apply_variant(table, stream if stream in known else None, "").get("paper", {})
    inherited = about_of(about["of"]) if "of" in about else {}
    kept = {key: inherited[key] for key in ("streams", "pocket") if key in inherited}
    return {"pocket": "pocket", **kept, **about}


def streams_of(name: str, stores: Mapping[str, str], pocket: bool) -> tuple[list[str], list[str]]:
    """The streams that a table can be made for, and those that are missing for it.

    Args:
      name: of the table.
      stores: paths by stream, as given.
      pocket: whether the embedded streams stand in for the paper's.

    Returns:
      Names of both.
    """
    about = about_of(name)
    if pocket:
        return [about["pocket"]], []
    there = [stream for stream in about["streams"] if stream in stores]
    return there, [stream for stream in about["streams"] if stream not in stores]


def known_streams() -> list[str]:
    """All names that --store may give a path for."""
    return list(dict.fromkeys(s for name in NAMES for s in about_of(name)["streams"]))
