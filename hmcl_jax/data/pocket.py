"""The embedded streams: real tasks in files of the package."""

import dataclasses
import hashlib
import json
from pathlib import Path

from hmcl_jax.data.store import Store, read_store


def load_pocket() -> Store:
    """Opens pocket16, the stream that comes with the package; its arrays are mapped, not loaded.

    Real pictures and texts through pretrained encoders (EfficientNet-Lite0, MiniLM) and two towers
    into H^512 (:mod:`hmcl_jax.data.pocket_towers`). docs/pocket.md says how it was made and chosen,
    DATA_LICENSES.md from which sources.

    Example:
      >>> import hmcl_jax
      >>> store = hmcl_jax.load_pocket()
      >>> print(store.name, len(store), store.dimension, sorted(store.orders))
      pocket16 16 512 ['canonical', 'seq2', 'seq3']
    """
    return read_store(Path(__file__).with_name("pocket16.zip"))


def load_pocket_modalities() -> Store:
    """Opens pocket16 with two more modalities, audio and thermal.

    Between the tasks of pocket16 are one with sounds of musical instruments and their names, and
    one with photographs in the colours of heat (a rendering, not a sensor's) and their captions.

    Example:
      >>> import hmcl_jax
      >>> store = hmcl_jax.load_pocket_modalities()
      >>> print(len(store), store.modalities)
      18 ('audio', 'image', 'text', 'thermal')
    """
    pocket = load_pocket()
    extra = read_store(Path(__file__).with_name("pocket_modalities.zip"))
    tasks = list(pocket)
    for task in extra:
        tasks.insert(PLACES[task.name], task)
    order = tuple(task.name for task in tasks)
    made_of = json.dumps([pocket.fingerprint, extra.fingerprint, order])
    return dataclasses.replace(
        pocket,
        name="pocket18",
        backbone=extra.backbone,
        tasks=tuple(tasks),
        orders={"canonical": order},
        fingerprint=hashlib.sha256(made_of.encode()).hexdigest(),
        provenance={**pocket.provenance, **extra.provenance},
    )


PLACES = {"instruments": 4, "thermal-photos": 9}  # numbers in the extended stream, from 0
EMBEDDED = {"pocket": load_pocket, "pocket-modalities": load_pocket_modalities}
