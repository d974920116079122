"""The class tree that errors are measured in."""

from pathlib import Path

from hmcl_jax.continual import ConfigError
from hmcl_jax.data.class_trees import IMAGENET_MOVED, read_wordnet, synset_tree
from hmcl_jax.data.store import Task
from hmcl_jax.evaluation import Tree, make_tree


def class_tree(task: Task, given: str | None, wordnet: str | None) -> Tree:
    """The tree of a task's classes: its own, or WordNet's for the synsets that are given.

    Args:
      task: a classification task.
      given: file with the synset of every class, one per line, if there is one.
      wordnet: folder of WordNet, if it is not where packages put it.

    Raises:
      ConfigError: naming what is missing.
    """
    if task.tree:
        return make_tree(task.tree, task.classes, root="[ROOT]")
    if given is None:
        raise ConfigError(
            f"{task.name} has no class tree; name a file with the synset of each of its "
            f"{len(task.classes)} classes, one per line, in --synsets."
        )
    try:
        synsets = Path(given).read_text("utf8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--synsets {given} cannot be read: {error}.") from error
    if len(synsets) != len(task.classes):
        raise ConfigError(
            f"--synsets {given} has {len(synsets)} synsets, {task.name} has "
            f"{len(task.classes)} classes."
        )
    rows = synset_tree(
        read_wordnet(wordnet),
        synsets,
        parent="longest",
        root="n00001930",
        contract=True,
        moved=IMAGENET_MOVED if len(synsets) == 1000 else None,
    )
    return make_tree(rows, synsets)
