"""Names: groups of QuickDraw classes, classes of the photo sets, WordNet's tree above them."""

import collections
import functools
import tomllib
from pathlib import Path

_NAMES = tomllib.loads((Path(__file__).parent / "vocabulary.toml").read_text("utf8"))


def _tree(classes: dict[str, list[str]]) -> list[tuple[str, str]]:
    """(child, parent) rows."""
    return [(child, parent) for parent, children in classes.items() for child in children]


ANIMALS, FOOD_AND_PLANTS = _NAMES["ANIMALS"], _NAMES["FOOD_AND_PLANTS"]
VEHICLES_AND_STRUCTURES, THINGS = _NAMES["VEHICLES_AND_STRUCTURES"], _NAMES["THINGS"]
CIFAR10, CIFAR10_TREE = _NAMES["CIFAR10"], _tree(_NAMES["CIFAR10_TREE"])
FASHION, FASHION_TREE = _NAMES["FASHION"], _tree(_NAMES["FASHION_TREE"])
DIGITS, SYNONYMS = _NAMES["DIGITS"], _NAMES["SYNONYMS"]
DOMAINS = {group: tuple(words) for group, words in _NAMES["DOMAINS"].items()}


def spoken(name: str) -> str:
    """A class name as it is said."""
    return name.replace("_", " ").strip()


class WordNet:
    """Nouns of WordNet: senses of a word and the synsets above a synset."""

    def __init__(self, folder: Path) -> None:
        (index,) = folder.rglob("index.noun")
        self.senses: dict[str, list[str]] = {}
        self.words: dict[str, str] = {}
        self.above: dict[str, list[str]] = {}
        for line in index.read_text("latin1").splitlines():
            if not line.startswith(" "):
                fields = line.split()
                self.senses[fields[0]] = fields[-int(fields[2]) :]
        for line in (index.parent / "data.noun").read_text("latin1").splitlines():
            if line.startswith(" "):
                continue
            fields = line.split(" | ")[0].split()
            count = int(fields[3], 16)
            self.words[fields[0]] = fields[4]
            links = fields[5 + 2 * count :]
            self.above[fields[0]] = [
                links[i + 1] for i, link in enumerate(links) if link in ("@", "@i")
            ]

    @functools.cache  # noqa: B019
    def path(self, synset: str) -> tuple[str, ...]:
        """Synsets from this one to the root, by first hypernyms."""
        parents = self.above[synset]
        return (synset, *(self.path(parents[0]) if parents else ()))

    def sense(self, name: str, domains: tuple[str, ...]) -> str | None:
        """The first sense of a noun that lies below one of the domains."""
        name = SYNONYMS.get(name, name)
        for word in (name.lower(), name.lower().rstrip("s"), name.split("_")[-1].lower()):
            for synset in self.senses.get(word, []):
                if any(self.words[s].lower() in domains for s in self.path(synset)[1:]):
                    return synset
        return None

    def tree(self, names: list[str], domains: tuple[str, ...]) -> list[tuple[str, str]]:
        """(child, parent) rows above the names; synsets with a single child are left out."""
        chains = {}
        for name in names:
            synset = self.sense(name, domains)
            if synset is not None:
                path = [self.words[s].lower() for s in self.path(synset)]
                end = max(i for i, word in enumerate(path) if word in domains)
                chains[name] = path[1 : end + 1]
        members = collections.defaultdict(set)
        for name, chain in chains.items():
            for word in chain:
                members[word].add(name)
        rows = {}
        for name, chain in chains.items():
            kept, size = [], 1
            for word in chain:
                if len(members[word]) > size:
                    kept.append(word)
                    size = len(members[word])
            for child, parent in zip([name, *kept], kept, strict=False):
                rows.setdefault(spoken(child), spoken(parent))
        return sorted((child, parent) for child, parent in rows.items() if child != parent)

    def chains(self, leaves: set[str], nodes: set[str]) -> list[tuple[str, str, int, bool]]:
        """Rows (noun, ancestor, levels between them, whether the noun has nouns below it).

        Of all nouns with nouns below them and of every third other one, with all ancestors along
        the first hypernyms. No row holds one of the `leaves`, and none has two of the `nodes` (in
        lower case): what evaluated trees say is not learned from.
        """
        inner = {parents[0] for parents in self.above.values() if parents}
        others = [synset for synset in self.above if synset not in inner]
        rows = set()
        for synset in (*inner, *others[::3]):
            path = self.path(synset)
            words = [spoken(self.words[s]) for s in path]
            noun = words[0]
            if not noun.islower() or noun in leaves:
                continue
            for levels, ancestor in enumerate(words[1:], 1):
                lower = ancestor.lower()
                known = lower in leaves or (lower in nodes and noun in nodes)
                if ancestor != noun and not known:
                    rows.add((noun, ancestor, levels, synset in inner))
        return sorted(rows)
