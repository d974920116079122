"""What a table needs of a store, found out before anything is trained."""

from hmcl_jax.continual import ConfigError
from hmcl_jax.data.store import Store
from paper.plan import Item
from paper.trees import class_tree

SIDES = {"image", "text"}  # benchmarks/stage.py knows no others
REMEDY = "experiments/extract_features.py --suite hmcl16 makes stores with all that tables need"


def lacking(
    item: Item, store: Store, synsets: str | None = None, wordnet: str | None = None
) -> str | None:
    """Why a table cannot be made from a store, and what to do; None if it can.

    Args:
      item: the table on one stream.
      store: the stream.
      synsets: file with the synset of every class of ImageNet, one per line, if given.
      wordnet: folder of WordNet, if given.
    """
    show, about, where = item.about["show"], item.about, f"the store {store.name!r}"
    for order in item.jobs or ("canonical",):
        if order not in store.orders:
            return (
                f"{where} has no order {order!r}, only {', '.join(store.orders)}; write it with "
                f"that order ({REMEDY})."
            )
        tasks = [store[name] for name in store.orders[order]]
        least = {"stages": 2, "drift": 2, "norms": 2, "ranks": 2, "time": about.get("stage", 1)}
        if len(tasks) < least.get(show, 1):
            return (
                f"it needs at least {least[show]} tasks, {where} has {len(tasks)} in its order "
                f"{order!r}; add tasks ({REMEDY})."
            )
        names, kinds = [task.name for task in tasks], {task.kind for task in tasks}
        if "task" in about and about["task"] not in names:
            known = ", ".join(names)
            return f"{where} has no task {about['task']!r}, only {known}; add it ({REMEDY})."
        if show == "pullback" and len(kinds) < 2:
            return (
                f"it compares classification with retrieval, {where} has only {kinds.pop()} "
                f"tasks; add others ({REMEDY})."
            )
        if show == "retrieval":
            wanted = about["tasks"] or names
            if not any(task.kind == "retrieval" and task.name in wanted for task in tasks):
                return (
                    f"{where} has no retrieval task among {', '.join(wanted)}; add one ({REMEDY})."
                )
        if show in ("ranks", "time"):
            looked_at = tasks[: about["stage"] if show == "time" else -1]
            others = {m for task in looked_at for m in (task.general, task.specific)} - SIDES
            if others:
                return (
                    f"it is measured with image and text alone, {where} has tasks with "
                    f"{', '.join(sorted(others))}; give a store without them."
                )
    if show == "hierarchy":
        task = store[about["task"]]
        if task.kind != "classification":
            return f"{task.name} in {where} is no classification task; give a store where it is."
        try:
            class_tree(task, synsets, wordnet)
        except (ConfigError, ValueError, OSError) as error:
            return str(error)
    return None
