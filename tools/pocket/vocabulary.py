"""Names: groups of QuickDraw classes, classes of the photo sets, WordNet's tree above them."""

import collections
import functools
from pathlib import Path

ANIMALS = """ant bat bear bee bird butterfly camel cat cow crab crocodile dog dolphin duck
elephant fish flamingo frog giraffe hedgehog horse kangaroo lion lobster monkey mosquito mouse
octopus owl panda parrot penguin pig rabbit raccoon rhinoceros scorpion sea_turtle shark sheep
snail snake spider squirrel swan tiger whale zebra""".split()

FOOD_AND_PLANTS = """apple asparagus banana birthday_cake blackberry blueberry bread broccoli bush
cactus cake carrot cookie donut flower grapes grass hamburger hot_dog house_plant ice_cream leaf
lollipop mushroom onion palm_tree peanut pear peas pineapple pizza popsicle potato sandwich steak
strawberry string_bean tree watermelon garden""".split()

VEHICLES_AND_STRUCTURES = """aircraft_carrier airplane ambulance bicycle bulldozer bus canoe car
cruise_ship firetruck flying_saucer helicopter hot_air_balloon motorbike parachute pickup_truck
police_car sailboat school_bus skateboard speedboat submarine tractor train truck van barn bridge
castle church diving_board fence fireplace hospital house jail lighthouse skyscraper stairs tent
The_Eiffel_Tower The_Great_Wall_of_China windmill roller_coaster""".split()

THINGS = """alarm_clock anvil axe backpack bandage baseball baseball_bat basket basketball bathtub
bed belt bench binoculars book boomerang bowtie bracelet broom bucket calculator calendar camera
candle cannon cell_phone cello chair chandelier clarinet clock coffee_cup compass computer couch
crayon crown cup dishwasher dresser drill drums dumbbell envelope eraser eyeglasses flashlight
floor_lamp fork frying_pan guitar hammer harp hat headphones helmet hourglass jacket key keyboard
knife ladder lantern laptop light_bulb lighter lipstick mailbox megaphone microphone microwave mug
nail necklace oven paintbrush pants paper_clip passport pencil piano pillow purse radio rake saw
saxophone scissors screwdriver shoe shovel sock spoon sweater sword table teapot telephone
television umbrella""".split()

CIFAR10 = """airplane automobile bird cat deer dog frog horse ship truck""".split()
CIFAR10_TREE = [
    *((name, "animal") for name in ("bird", "cat", "deer", "dog", "frog", "horse")),
    *((name, "vehicle") for name in ("airplane", "automobile", "ship", "truck")),
]
FASHION = [
    *("t-shirt", "trousers", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "handbag", "ankle boot"),
]
FASHION_TREE = [
    *((name, "clothing") for name in ("t-shirt", "trousers", "pullover", "dress", "coat", "shirt")),
    *((name, "footwear") for name in ("sandal", "sneaker", "ankle boot")),
]
DIGITS = """zero one two three four five six seven eight nine""".split()

# Which WordNet ancestors a class of a group may have; picks the right sense of a noun.
DOMAINS = {
    "qd-animals": ("animal",),
    "qd-food-plants": ("food", "plant", "plant_part", "natural_object", "fungus", "tract"),
    "qd-vehicles-structures": ("conveyance", "structure", "parachute", "equipment"),
    "qd-things": ("artifact",),
}
# Names that WordNet knows by another word.
SYNONYMS = {
    "firetruck": "fire_engine",
    "motorbike": "motorcycle",
    "police_car": "cruiser",
    "donut": "doughnut",
    "popsicle": "ice_lolly",
    "flying_saucer": "aircraft",
    "house_plant": "houseplant",
    "peas": "pea",
    "string_bean": "green_bean",
    "alarm_clock": "alarm_clock",
    "bowtie": "bow_tie",
    "cell_phone": "cellular_telephone",
    "coffee_cup": "coffee_cup",
    "eyeglasses": "spectacles",
    "light_bulb": "light_bulb",
    "The_Eiffel_Tower": "tower",
    "The_Great_Wall_of_China": "wall",
}


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
