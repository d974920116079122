"""Random damage to files, and stores whose checksums are right all the same."""

import json
import random
from pathlib import Path

from hmcl_jax._files import file_sha256, json_sha256
from hmcl_jax.data.store import MANIFEST

OUTSIDE = "../../../outside"
JUNK = [
    *(None, True, -1, 0, 3.5, 1e308, 2**31, 2**63, 10**30, 10**400, "", "O", "|O8", "\ud800"),
    *(OUTSIDE, "/etc/passwd", "a\x00b", "x" * 5000, [], {}, [[]], [10**12, 10**12], {"a": {}}),
]


def mutate_bytes(chance: random.Random, data: bytes) -> bytes:
    """A flipped bit, a cut, an insertion, or a stretch of noise."""
    at = chance.randrange(len(data) + 1)
    kind = chance.randrange(4)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    noise = chance.randbytes(chance.randint(1, 40))
    return data[:at] + noise + data[at if kind == 2 else at + len(noise) :]


def mutate_tree(chance: random.Random, tree):
    """A JSON value with one random part replaced or removed."""
    if isinstance(tree, dict) and tree and chance.random() < 0.85:
        key = chance.choice(sorted(tree))
        if chance.random() < 0.15:
            return {k: v for k, v in tree.items() if k != key}
        if chance.random() < 0.05:
            return {OUTSIDE if k == key else k: v for k, v in tree.items()}
        return {**tree, key: mutate_tree(chance, tree[key])}
    if isinstance(tree, list) and tree and chance.random() < 0.85:
        at = chance.randrange(len(tree))
        return [*tree[:at], mutate_tree(chance, tree[at]), *tree[at + 1 :]]
    return chance.choice(JUNK)


def as_json(tree) -> bytes:
    return json.dumps(tree).encode("utf8", "surrogatepass")


def sign(store: Path) -> None:
    """Gives the manifest the checksums of the files as they are."""
    manifest = json.loads((store / MANIFEST).read_bytes())
    for task in manifest["tasks"]:
        for array, entry in task["arrays"].items():
            parts = {f".{key}": x for key, x in entry.items() if isinstance(x, dict)}
            for suffix, part in (parts or {"": entry}).items():
                part["sha256"] = file_sha256(store / task["name"] / f"{array}{suffix}.npy")
    manifest["sha256"] = json_sha256(manifest)
    (store / MANIFEST).write_bytes(as_json(manifest))
