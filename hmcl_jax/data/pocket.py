"""The embedded stream: 16 real image-text tasks in one file of the package."""

from pathlib import Path

from hmcl_jax.data.store import Store, read_store


def load_pocket() -> Store:
    """Opens pocket16, the stream that comes with the package; no network, no other file.

    Real pictures and texts through pretrained encoders (EfficientNet-Lite0, MiniLM) and two towers
    into H^512. ``describe()`` gives its tasks and measured scores, DATA_LICENSES.md the sources,
    ``experiments/build_pocket.py`` the way it was made. Orders: canonical, seq2, seq3.

    Returns:
      The store; its arrays are mapped, not loaded.

    Example:
      >>> import hmcl_jax
      >>> store = hmcl_jax.load_pocket()
      >>> print(store.name, len(store), store.dimension, sorted(store.orders))
      pocket16 16 512 ['canonical', 'seq2', 'seq3']
    """
    return read_store(Path(__file__).with_name("pocket16.zip"))
