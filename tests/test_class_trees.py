"""Trees from WordNet: a hand-written one, damaged files, and the real one if it is installed."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from hmcl_jax.data import class_trees as module
from hmcl_jax.data.class_trees import IMAGENET_MOVED, WordNetError, read_wordnet, synset_tree
from hmcl_jax.evaluation import chance_scores, hierarchy_scores, make_tree

LICENCE = (
    "  1 This software and database is being provided to you.  \n  2 WordNet 3.0 Copyright 2006\n"
)
# entity > object > animal > canine > dog > {puppy, poodle}; a dog is also a pet, a pet an animal.
# Rex is an instance. A circle of two lies apart.
DATA = LICENCE + (
    "00000001 03 n 01 entity 0 001 ~ 00000002 n 0000 | all there is; not | a line  \n"
    "00000002 03 n 02 object 0 physical_object 0 001 @ 00000001 n 0000 | a thing  \n"
    "00000003 05 n 01 animal 0 002 @ 00000002 n 0000 + 00000009 v 0101 | it moves  \n"
    "00000004 05 n 01 canine 1 001 @ 00000003 n 0000 | a mammal  \n"
    "00000005 05 n 01 pet 0 001 @ 00000003 n 0000 | kept for company  \n"
    "00000006 05 n 02 dog 0 domestic_dog 0 002 @ 00000004 n 0000 @ 00000005 n 0000 | barks  \n"
    "00000007 05 n 01 puppy 0 001 @ 00000006 n 0000 | young  \n"
    "00000008 05 n 0a poodle 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 001 @ 00000006 n 0000 | c  \n"
    "00000010 18 n 01 Rex 0 001 @i 00000005 n 0000 | one dog  \n"
    "00000011 05 n 01 chicken 0 001 @ 00000012 n 0000 | first  \n"
    "00000012 05 n 01 egg 0 001 @ 00000011 n 0000 | first  \n"
    "00000013 05 n 01 hound 0 002 @ 00000006 n 0000 @ 00000003 n 0000 | hunts  \n"
    "00000014 05 n 01 greyhound 0 002 @ 00000006 n 0000 @ 00000013 n 0000 | runs  \n"
)
INDEX = LICENCE + (
    "animal n 1 2 @ ~ 1 1 00000003  \n"
    "dog n 2 1 @ 2 1 00000006 00000010  \n"
    "domestic_dog n 1 1 @ 1 0 00000006  \n"
    "entity n 1 0 1 0 00000001  \n"
    "poodle n 1 1 @ 1 0 00000008  \n"
    "egg n 1 1 @ 1 0 00000012  \n"
)
ROOT = "n00000001"


def write(folder, data=DATA, index=INDEX):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.noun").write_text(data, encoding="utf-8")
    (folder / "index.noun").write_text(index, encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "wordnet")


@pytest.fixture
def small(folder):
    return read_wordnet(folder)


def spoken(wordnet, rows):
    return {tuple(wordnet.name(synset) for synset in row) for row in rows}


def test_synsets_words_and_hypernyms_are_read(small):
    assert small.version == "3.0"
    assert len(small.words) == 13
    assert small.words["n00000006"] == ("dog", "domestic_dog")
    assert len(small.words["n00000008"]) == 10  # counted in hexadecimal
    assert small.hypernyms["n00000006"] == ("n00000004", "n00000005")
    assert small.hypernyms["n00000003"] == ("n00000002",)  # not the verb
    assert small.hypernyms["n00000010"] == ("n00000005",)  # of an instance
    assert small.hypernyms[ROOT] == ()
    assert small.senses["dog"] == ("n00000006", "n00000010")


def test_synsets_are_named_by_offset_or_by_word_and_sense(small):
    for name in ("n00000006", "dog.n.01", "dog.n.1", "Domestic dog.n.01"):
        assert small.synset(name) == "n00000006"
    assert small.synset("dog.n.02") == "n00000010"
    assert small.name("poodle.n.01") == "poodle"
    for name in ("n09999999", "dog.n.03", "dog.n.00", "cat.n.01", "dog", "n123"):
        with pytest.raises(WordNetError, match=f"'{name}' is no noun of WordNet 3.0"):
            synset_tree(small, [name], root=ROOT)


def test_every_way_to_choose_a_parent_gives_a_tree(small):
    shared = {("object", "entity"), ("animal", "object"), ("canine", "animal"), ("dog", "canine")}
    names = ["n00000007", "poodle.n.01", "n00000013", "n00000014"]
    leaves = {("puppy", "dog"), ("poodle", "dog")}
    # A hound is 3 steps from entity as an animal, 5 as a dog, which is 4 away.
    chosen = {"shortest": ("animal", "hound"), "longest": ("dog", "hound"), "first": ("dog", "dog")}
    for parent, (hound, greyhound) in chosen.items():
        rows = synset_tree(small, names, parent=parent, root=ROOT)
        found = spoken(small, rows)
        assert found == shared | leaves | {("hound", hound), ("greyhound", greyhound)}
        assert list(rows) == sorted(rows)
        tree = make_tree(rows, [small.synset(name) for name in names])
        assert tree.root == ROOT
    with pytest.raises(ValueError, match=r"parent must be one of .*'best'"):
        synset_tree(small, names, parent="best", root=ROOT)


def test_paths_end_at_the_root(small):
    rows = synset_tree(small, ["dog.n.01", "n00000010"], root="animal.n.01")
    paths = [("dog", "canine"), ("canine", "animal"), ("Rex", "pet"), ("pet", "animal")]
    assert spoken(small, rows) == set(paths)
    only = synset_tree(small, ["dog.n.01"], root="n00000005")  # the hypernym that leads there
    assert spoken(small, only) == {("dog", "pet")}
    assert synset_tree(small, [ROOT], root=ROOT) == ()
    with pytest.raises(WordNetError, match=r"'n00000010' \(Rex\) is not below the root"):
        synset_tree(small, ["dog.n.01", "n00000010"], root="n00000004")


def test_a_circle_of_hypernyms_is_named_and_can_be_opened(small, folder):
    # The second circle also leads to the root.
    both = DATA.replace("egg 0 001 @", "egg 0 002 @ 00000003 n 0000 @")
    for wordnet in (small, read_wordnet(write(folder, both))):
        for parent in ("shortest", "longest", "first"):
            with pytest.raises(WordNetError, match=r"above n000000.* run in a circle"):
                synset_tree(wordnet, ["egg.n.01"], parent=parent, root=ROOT)
    rows = synset_tree(small, ["egg.n.01"], root=ROOT, moved={"egg.n.01": "n00000005"})
    assert ("egg", "pet") in spoken(small, rows)


def test_chains_are_contracted_but_synsets_and_root_stay(small):
    names = ["n00000007", "poodle.n.01", "n00000010"]
    rows = synset_tree(small, names, root=ROOT, contract=True)
    # object, canine and pet have one child each, so has entity, the root.
    kept = [("animal", "entity"), ("dog", "animal"), ("puppy", "dog"), ("poodle", "dog")]
    assert spoken(small, rows) == {*kept, ("Rex", "animal")}
    chain = synset_tree(small, ["dog.n.01", "n00000007"], root=ROOT, contract=True)
    assert spoken(small, chain) == {("dog", "entity"), ("puppy", "dog")}


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("data", "0000006 05 n 02 dog", "0000666 05 n 02 dog", "incomplete, without .'n00000006'"),
        ("data", "dog 0 domestic_dog", "dog 0 3 domestic_dog", "data.noun is damaged .*00000006"),
        ("index", "animal n 1 2 @", "animal n 1 x @", "index.noun is damaged .*'animal"),
        ("index", "1 1 00000003", "1 1 00000333", "incomplete, without .'n00000333'"),
        ("data", DATA, LICENCE, "incomplete"),
    ],
)
def test_damage_is_named(folder, file, old, new, complaint):
    whole = DATA if file == "data" else INDEX
    assert old in whole
    with pytest.raises(WordNetError, match=complaint):
        read_wordnet(write(folder, **{file: whole.replace(old, new)}))


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No WordNet anywhere."""
    for name in ("WNSEARCHDIR", "WNHOME", "NLTK_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "DEBIAN", tmp_path / "debian")
    return tmp_path


@pytest.mark.parametrize(
    ("variable", "value", "inside"),
    [
        ("WNSEARCHDIR", "a", "a"),
        ("WNHOME", "b", "b/dict"),
        ("NLTK_DATA", "none:c", "c/corpora/wordnet"),
        ("HOME", "home", "home/nltk_data/corpora/wordnet"),
        (None, None, "debian"),
    ],
)
def test_wordnet_is_found_where_it_usually_is(bare, monkeypatch, variable, value, inside):
    with pytest.raises(WordNetError, match=r"No WordNet .* set WNSEARCHDIR to its folder"):
        read_wordnet()
    write(bare / inside)
    if variable:
        paths = ":".join(str(bare / part) for part in value.split(":"))
        monkeypatch.setenv(variable, paths)
    assert read_wordnet().version == "3.0"


def test_wordnet_is_found_at_an_explicit_path_only(bare, small):
    write(bare / "debian")
    for inside in ("plain", "npm/dict", "packed/package/dict", "nltk/corpora/wordnet"):
        write(bare / inside)
        assert read_wordnet(str(bare / inside.split("/")[0])).version == "3.0"
    (bare / "plain" / "index.noun").unlink()
    with pytest.raises(WordNetError, match=r"No WordNet .*plain;"):
        read_wordnet(bare / "plain")
    archive = bare / "zipped" / "corpora" / "wordnet.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("wordnet/data.noun", DATA)
        file.writestr("wordnet/index.noun", INDEX)
    for path in (bare / "zipped", archive):
        assert read_wordnet(path).hypernyms == small.hypernyms


@pytest.fixture(scope="module")
def princeton():
    """The real WordNet 3.0; WNSEARCHDIR or NLTK_DATA say where it is."""
    try:
        found = read_wordnet()
    except WordNetError as error:
        pytest.skip(str(error))
    if found.version != "3.0":
        pytest.skip(f"ImageNet's synsets are of WordNet 3.0, this one is {found.version}.")
    return found


@pytest.fixture(scope="module")
def imagenet():
    """The 1,000 classes of ImageNet (ILSVRC 2012) in the order of their labels."""
    text = (Path(__file__).parent / "data" / "imagenet_synsets.txt").read_text("ascii")
    return text.split()


def test_all_synsets_are_found(princeton, imagenet):
    assert len(set(imagenet)) == len(imagenet) == 1000
    assert len(princeton.words) == 82115
    assert [princeton.synset(name) for name in imagenet] == imagenet
    assert princeton.synset("dog.n.01") == "n02084071"
    everything = synset_tree(princeton, sorted(princeton.words))
    assert len(everything) == 82115 - 1  # every noun lies below entity


@pytest.mark.parametrize("parent", ["shortest", "longest", "first"])
@pytest.mark.parametrize("contract", [False, True])
def test_random_guesses_on_imagenets_tree(princeton, imagenet, parent, contract):
    tree = make_tree(synset_tree(princeton, imagenet, parent=parent, contract=contract), imagenet)
    guesses, actual = np.random.default_rng(0).integers(1000, size=(2, 100_000))
    found, expected = hierarchy_scores(tree, guesses, actual), chance_scores(tree)
    for name in ("tie", "lca", "jaccard", "precision", "recall"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0.01)


def test_the_finest_contracted_tree_is_close_to_the_published_one(princeton, imagenet):
    """1,372 nodes, depth 3 to 15, mean 8.6; guesses: TIE 11.43, LCA 5.72, .312, .468."""
    settings = {"parent": "longest", "root": "n00001930", "contract": True}
    rows = synset_tree(princeton, imagenet, moved=IMAGENET_MOVED, **settings)
    tree = make_tree(rows, imagenet)
    depths = tree.depths[tree.classes]
    assert (len(tree.names), depths.min(), depths.max()) == (1373, 3, 15)
    np.testing.assert_allclose(depths.mean(), 8.6, atol=0.05)
    expected = chance_scores(tree)
    published = {"tie": 11.43, "lca": 5.72, "jaccard": 0.312, "precision": 0.468}
    for name, value in published.items():
        np.testing.assert_allclose(expected[name], value, rtol=0.005)
