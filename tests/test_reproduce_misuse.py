"""What reproduce.py refuses, warns of or leaves out, and that the rest of its page stands."""

import dataclasses
import functools
import json

import numpy as np
import pytest
from paper_stores import hmcl16_store, modalities_store
from reproducing import BROKEN, FEW, MINE, SMALL, call, result

from hmcl_jax.continual import ConfigError
from hmcl_jax.continual.health import Stopped
from hmcl_jax.continual.methods import METHODS
from hmcl_jax.continual.plugins import load_methods
from hmcl_jax.data.store import read_store
from hmcl_jax.data.synthetic import synthetic_stream
from paper import reproduce, sections
from paper.jobs import run_jobs
from paper.measured import Setting, tree_problem
from paper.plan import missing_for, read_item, unique
from paper.request import check_names, store_warnings
from paper.sections import make_section

NAME = "meru-l-modalities"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return modalities_store(tmp_path_factory.mktemp("made") / "store", "meru-l", only=FEW, **SMALL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "store"
    return read_store(hmcl16_store(path, "hycoclip-b", **SMALL))


@pytest.fixture
def made_up(monkeypatch):
    """Runs that take no time."""

    def run(jobs, stores, out, listener, keep_all):
        return {f: result([40, 60], [50, 60], "rr") for f in jobs}, {}

    monkeypatch.setattr(reproduce, "run_jobs", run)


def read(out, ending="json"):
    return (out / f"reproduction.{ending}").read_text("utf8")


def refused(monkeypatch, *arguments):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, *arguments)
    return str(stopped.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("main --store meru-l", "--store is written NAME=PATH"),
        ("main --store meru-l=nowhere", "--store meru-l=nowhere: there is nothing at"),
        ("orders --store meru-l=p", "it needs --store hycoclip-b=PATH"),
        ("mian --stream pocket", "NAME must be one of main"),
        ("main --stream pocket --method-file no.py", "must be a Python file"),
        ("main --stream pocket --set train.bath=3", "bath is not a setting"),
        ("main --stream pocket --set order='seq2'", "order is what a table is of"),
        ("main --stream pocket --set methods.derpp.memory=64", "no table has 'derpp"),
        ("--stream pocket", "2"),  # the code for wrong options
    ],
)
def test_mistakes_are_named_before_anything_is_written(tmp_path, monkeypatch, words, message):
    assert message in refused(monkeypatch, *words.split(), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_users_method_may_not_look_like_a_row_of_the_papers():
    for name in ("weaker", "batch_mean", "MR_Pre", "ca_of_mine"):
        with pytest.raises(ConfigError, match=f"mine.py: '{name}' is, or looks like, a row"):
            check_names({"halved": "mine.py", name: "mine.py"})


def test_a_page_names_what_is_not_as_in_the_configs_and_is_replaced_only_by_its_like(
    tmp_path, monkeypatch, known_methods, store, made_up
):
    out, mine = tmp_path / "out", tmp_path / "mine.py"
    mine.write_text(MINE)
    options = ["--store", f"{NAME}={store}", "--out", out]
    changed = ["--seeds", "42,123", "--set", "train.batch=64", "--method-file", mine]
    call(monkeypatch, "modalities", *options, *changed)
    code = METHODS["halved"].method.code
    for ending in ("json", "md", "html"):
        text = read(out, ending).replace("&#39;", "'")
        assert "Not the paper's settings: --set train.batch=64 --seeds 42,123." in text
        assert f"halved ({mine}, SHA-256 {code[:12]})" in text
        assert code in text  # whole, in the provenance
    call(monkeypatch, "modalities", *options, "--replace")
    call(monkeypatch, "modalities", "retrieval", *options)  # more
    other = modalities_store(tmp_path / "other", "meru-l", only=FEW, **{**SMALL, "seed": 5})
    before = read(out)
    assert "Not the paper" not in before
    for words, message in (
        (["retrieval"], "reproduction.html was made for something else: it also has modalities."),
        (["--all", "--seeds", "42"], 'seeds: it has "none", not [42]'),
        (["--all", "--set", "train.batch=8"], 'set: it has "none", not ["train.batch=8"]'),
        (["--all", "--method-file", mine], 'methods: it has "none", not {"halved":'),
    ):
        assert message in refused(monkeypatch, *words, *options)
    changed = ["--all", "--store", f"{NAME}={other}", "--out", out]
    assert "from a store of fingerprint" in refused(monkeypatch, *changed)
    assert read(out) == before
    call(monkeypatch, "retrieval", *options, "--plan")  # writes nothing, so nothing is refused
    call(monkeypatch, "retrieval", *options, "--replace")
    assert json.loads(read(out))["about"]["request"]["names"] == ["retrieval"]


def test_no_foreign_file_is_overwritten_and_a_bad_out_is_found_first(tmp_path, monkeypatch, store):
    monkeypatch.setattr(reproduce, "run_jobs", lambda *_: pytest.fail("ran"))
    options = ["modalities", "--store", f"{NAME}={store}", "--replace", "--out"]
    for name in ("reproduction.md", "reproduction.json"):
        (tmp_path / name).write_text("[1]")
        assert f"{name} is not of reproduce.py" in refused(monkeypatch, *options, tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "Fix the problem above." in refused(monkeypatch, *options, out)
    assert "--out is empty" in refused(monkeypatch, *options, "")


def test_a_store_given_twice_or_of_another_backbone_is_warned_of(
    tmp_path, monkeypatch, capsys, store, made_up
):
    options = ["modalities", "--store", f"{NAME}={store}", "--out", tmp_path / "out"]
    call(monkeypatch, *options, "--store", f"meru-b-modalities={store}")
    printed = capsys.readouterr().err
    for text in (
        f"--store {NAME} and --store meru-b-modalities are one store",
        "features of the backbone 'meru-l-modalities', not of meru-b; is it the right store?",
        f"--store {NAME}={store} has no modality but text and image",
        f"--store {NAME}={store} lacks 13 of the paper's 15 tasks (",
        "has points in 8 dimensions; the paper's are in 512",
    ):
        assert text in printed
        assert text in read(tmp_path / "out", "md")
    right = read_store(modalities_store(tmp_path / "right", "meru-l", **SMALL))
    (text,) = store_warnings({NAME: "right"}, {NAME: right})
    assert "has points in 8 dimensions" in text


def part(store, tasks, orders=("canonical",), **changes):
    """A store with a few of its tasks."""
    chosen = tuple(dataclasses.replace(store[name], **changes) for name in tasks)
    return dataclasses.replace(store, tasks=chosen, orders=dict.fromkeys(orders, tuple(tasks)))


def test_what_a_store_lacks_is_known_before_anything_runs(whole):
    names = [task.name for task in whole]
    lacking = [
        ("orders", part(whole, names, ("canonical", "seq2")), "no order 'seq3', only canonical"),
        ("pullback", part(whole, ["imagenet"]), "has only classification tasks"),
        ("retrieval", part(whole, names[:2]), "no retrieval task among coco, flickr30k"),
        ("drift", part(whole, names[:1]), "at least 2 tasks"),
        ("hierarchy", part(whole, names[:2]), "no task 'imagenet', only"),
        ("time", part(whole, names[:3], specific="audio"), "has tasks with audio"),
    ]
    for name, store, text in lacking:
        item = read_item(name, "hycoclip-b-modalities" if name == "retrieval" else "hycoclip-b")
        assert text in missing_for(item, store)
        assert missing_for(item, whole) is None
    (bare,) = part(whole, ["imagenet"], tree=()).tasks
    assert "has no class tree; name a file" in tree_problem(bare, None, None)
    assert "--synsets no.txt cannot be read" in tree_problem(bare, "no.txt", None)


BAD = """
class Exits(Halved):
    def init(self, heads):
        raise SystemExit("no init")

class Nan(Halved):
    def combine(self, gradients, heads, state, num_minibatches, spec):
        return {m: g * float("nan") for m, g in gradients[0].items()}

METHODS = {"bad_init": Entry(Exits(), "", "0", "-"), "bad_nan": Entry(Nan(), "", "0", "-")}
"""


def test_a_users_method_that_fails_in_any_way_ends_nothing(tmp_path, known_methods, monkeypatch):
    (tmp_path / "bad.py").write_text(MINE + BAD)
    users = load_methods(tmp_path / "bad.py")
    small = synthetic_stream(tasks=1, classes=4, dimension=8, train=32, test=16)
    overrides = ["train.classification.epochs=1", "train.batch=16"]
    item = read_item("modalities", NAME, overrides, users, seeds=[42])
    jobs = {f: j for f, j in unique([item]).items() if j.method in (*users, "vanilla")}
    results, failures = run_jobs(jobs, {NAME: small}, tmp_path / "out")
    assert [jobs[folder].method for folder in results] == ["vanilla"]
    texts = {jobs[folder].method: text for folder, text in failures.items()}
    assert texts["bad_init"] == "bad_init failed: SystemExit: no init (bad.py, line 17)"
    assert "No seed is left" in texts["bad_nan"]

    def fails(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr("paper.jobs.run_stream", fails)  # a fault of the package
    with pytest.raises(ZeroDivisionError):
        run_jobs(unique([read_item("modalities", NAME)]), {NAME: None}, tmp_path)


@pytest.fixture
def with_halved(tmp_path, known_methods):
    """A table with a user's method, and results of all its runs."""
    (tmp_path / "mine.py").write_text(MINE + BROKEN)
    users = load_methods(tmp_path / "mine.py")
    item = read_item("main", "pocket", extra=users)
    folders = {label: job.folder for label, job in item.jobs["canonical"].items()}
    results = {f: result([40, 20, 60], [50, 30, 60], seeds=2) for f in folders.values()}
    setting = Setting({"pocket": None}, tmp_path, users, same=False)
    return functools.partial(make_section, item, setting=setting), results, folders


def test_rows_of_a_users_method_are_left_out_alone(with_halved, monkeypatch, capsys):
    make, results, folders = with_halved
    made = make(results, {}).tables[0][0].blocks["pocket"]
    assert {"vanilla", "hmcl_ca", "halved", "broken"} <= made.keys()
    real, wrong = sections.make_tables, ["halved"]

    def fails(inputs):
        if set(wrong) & inputs.rows.keys():
            raise KeyError("halved")
        return real(inputs)

    monkeypatch.setattr(sections, "make_tables", fails)
    section = make(results, {})
    assert "Without halved, broken: KeyError: 'halved'" in section.notes[0]
    assert "vanilla" in section.tables[0][0].blocks["pocket"]
    assert "Traceback" in capsys.readouterr().err
    wrong.append("vanilla")
    assert "KeyError: 'halved'" in make(results, {}).missing
    # Claims are about all methods of the paper: without one of them there is no table.
    assert make(results, {folders["gem"]: "gem diverged."}).missing == "gem diverged."


def test_seeds_that_were_stopped_are_left_out_of_all_rows(with_halved):
    make, results, folders = with_halved

    def section(label, place):
        """Stops a seed of one more method; returns the notes, rows and why there are none."""
        found = results[folders[label]]
        stopped = Stopped(place, found.seeds[place], "t1", 1, "gradient", ("text",))
        found.scores[place, 1:] = np.nan
        results[folders[label]] = dataclasses.replace(found, stopped=(stopped,))
        made = make(results, {})
        rows = made.tables[0][0].blocks["pocket"] if made.tables else {}
        return made.notes, rows, made.missing

    notes, rows, _ = section("halved", 0)  # of a user's method: costs no other row a seed
    assert notes[0].startswith("Without halved: seed 42 stopped")
    assert "halved" not in rows
    assert all(len(row["Overall"].values) == 2 for row in rows.values())
    notes, rows, _ = section("gem", 0)
    assert "gem: seed 42 stopped on task 't1', in epoch 1" in notes[1]
    for row in rows.values():
        assert [len(number.values) for number in row.values()] == [1] * 6
        assert row["Overall"].mean == pytest.approx(41)  # of the second seed
    assert "Every seed was stopped in some run" in section("dns", 1)[2]
