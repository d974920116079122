"""What reproduce.py refuses, warns of or leaves out, and that the rest of its page stands."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import reproducing
from paper_stores import hmcl16_store, modalities_store
from reproducing import BROKEN, FEW, MINE, SMALL, call, reproduce, result

from hmcl_jax.continual import ConfigError, RunError
from hmcl_jax.continual.health import BadNumbers, Stopped
from hmcl_jax.continual.methods import METHODS
from hmcl_jax.continual.plugins import load_methods
from hmcl_jax.data.store import read_store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.evaluation import Drift
from hmcl_jax.evaluation.stream_drift import Norms

# After reproducing, which makes experiments importable.
from paper import sections, views  # isort: skip
from paper.cost import plan_table  # isort: skip
from paper.needs import lacking  # isort: skip
from paper.plan import read_item  # isort: skip
from paper.request import check_folder, check_names, store_warnings  # isort: skip
from paper.runs import run_jobs, unique  # isort: skip
from paper.sections import Setting, make_section  # isort: skip

NAME = "meru-l-modalities"


@pytest.fixture
def store(tmp_path):
    return modalities_store(tmp_path / "store", "meru-l", only=FEW, **SMALL)


@pytest.fixture
def made_up(monkeypatch):
    """Runs that take no time; those of methods named in the list fail."""
    failing = []

    def run(jobs, stores, out, listener, whole):
        out.mkdir(exist_ok=True)
        bad = {f: f"{j.method} failed: why" for f, j in jobs.items() if j.method in failing}
        good = {f: result([40, 60], [50, 60], "rr") for f in jobs if f not in bad}
        return good, bad

    monkeypatch.setattr(reproduce, "run_jobs", run)
    return failing


def read(out, ending="json"):
    text = (out / f"reproduction.{ending}").read_text("utf8")
    return json.loads(text) if ending == "json" else text


def test_without_out_the_folder_is_that_of_make_reproduce():
    asked = reproduce.parse(["--all", "--stream", "pocket"])
    makefile = (Path(reproduce.__file__).parent.parent / "Makefile").read_text("utf8")
    assert f"--all --stream pocket --out {asked.out} " in makefile


def refused(monkeypatch, *arguments):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, *arguments)
    return str(stopped.value)


def test_a_users_method_may_not_look_like_a_row_of_the_papers(tmp_path, monkeypatch, known_methods):
    for name in ("weaker", "batch_mean", "MR_Pre", "ca_of_mine"):
        with pytest.raises(ConfigError, match=f"mine.py: '{name}' is, or looks like, a row"):
            check_names({"halved": "mine.py", name: "mine.py"})
    name = "mr_pre"
    mine = tmp_path / "mine.py"
    mine.write_text(MINE.replace('"halved"', f'"{name}"'))
    options = ["main", "--stream", "pocket", "--out", tmp_path / "out", "--method-file", mine]
    told = refused(monkeypatch, *options)
    assert f"{mine}: {name!r} is, or looks like, a row of the paper's" in told
    assert "another name in METHODS" in told
    assert not (tmp_path / "out").exists()
    check_names({"halved": "mine.py"})


def test_what_is_not_as_in_the_configs_stands_on_the_page(
    tmp_path, monkeypatch, known_methods, store, made_up
):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    options = ["modalities", "--store", f"{NAME}={store}", "--out"]
    call(monkeypatch, *options, tmp_path / "plain")
    for ending in ("json", "md", "html"):
        assert "Not the paper" not in read(tmp_path / "plain", ending).__str__()
    changed = ["--seeds", "42,123", "--set", "train.batch=64", "--method-file", mine]
    call(monkeypatch, *options, tmp_path / "out", *changed)
    code = METHODS["halved"].method.code
    settings = "Not the paper's settings: --set train.batch=64 --seeds 42,123."
    assert settings in read(tmp_path / "out")["about"]["lead"]
    for text in (read(tmp_path / "out", "md"), read(tmp_path / "out", "html")):
        assert settings in text.replace("&#x27;", "'").replace("&#39;", "'")
        assert f"halved ({mine}, SHA-256 {code[:12]})" in text
        assert code in text  # whole, in the provenance
    request = read(tmp_path / "out")["about"]["request"]
    assert request["methods"] == {"halved": {"source": str(mine), "code": code}}
    assert (request["seeds"], request["set"]) == ([42, 123], ["train.batch=64"])
    same = ["--seeds", "42,123,456"]  # those of the config
    call(monkeypatch, *options, tmp_path / "same", *same)
    assert "Given, but no run differs for it: --seeds 42,123,456." in read(tmp_path / "same", "md")


def test_a_page_is_replaced_only_by_one_that_says_as_much(
    tmp_path, monkeypatch, known_methods, store, made_up
):
    out = tmp_path / "out"
    options = ["--store", f"{NAME}={store}", "--out", out]
    call(monkeypatch, "modalities", *options)
    call(monkeypatch, "modalities", *options)  # the same once more
    call(monkeypatch, "modalities", "retrieval", *options)  # more
    before = read(out)
    told = refused(monkeypatch, "retrieval", *options)
    assert "reproduction.html was made for something else: it also has modalities." in told
    assert "--replace" in told
    both = ["retrieval", "modalities", *options]
    assert "--seeds none, not 42" in refused(monkeypatch, *both, "--seeds", "42")
    assert "--set none, not train.batch=8" in refused(monkeypatch, *both, "--set", "train.batch=8")
    (tmp_path / "mine.py").write_text(MINE)
    added = refused(monkeypatch, *both, "--method-file", tmp_path / "mine.py")
    assert "it has the added methods none, not halved (" in added
    other = modalities_store(tmp_path / "other", "meru-l", only=FEW, **{**SMALL, "seed": 5})
    changed = ["--store", f"{NAME}={other}", "--out", out]
    assert "from a store of fingerprint" in refused(monkeypatch, *both[:2], *changed)
    assert read(out) == before
    call(monkeypatch, "retrieval", *options, "--plan")  # writes nothing, so nothing is refused
    call(monkeypatch, "retrieval", *options, "--replace")
    assert read(out)["about"]["request"]["names"] == ["retrieval"]
    del before["about"]["request"], before["about"]["kind"]  # as earlier versions wrote it
    (out / "reproduction.json").write_text(json.dumps(before))
    assert "it does not say for what" in refused(monkeypatch, "retrieval", *options)


@pytest.mark.parametrize("name", ["reproduction.md", "reproduction.json"])
def test_a_foreign_file_is_never_overwritten(tmp_path, monkeypatch, store, made_up, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("[1]")
    options = ["modalities", "--store", f"{NAME}={store}", "--out", tmp_path / "out", "--replace"]
    assert f"{name} is not of reproduce.py" in refused(monkeypatch, *options)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_an_out_that_cannot_be_written_is_found_first(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match=r"--out .*choose another --out"):
            check_folder(out)
    with pytest.raises(RunError, match="--out is empty"):
        check_folder(Path(""))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "runs").write_text("")
    with pytest.raises(RunError, match="runs is no folder"):
        check_folder(tmp_path / "out")
    with pytest.raises(RunError, match="cannot be written in /proc"):
        check_folder(reproducing.Path("/proc/nothing/out"))
    # Before the stores are looked at, which do not exist.
    told = refused(monkeypatch, "main", "--store", "meru-l=no", "--out", tmp_path / "file")
    assert "is no folder" in told


def test_a_store_given_twice_or_of_another_backbone_is_warned_of(
    tmp_path, monkeypatch, capsys, store, made_up
):
    options = ["modalities", "--store", f"{NAME}={store}", "--out", tmp_path / "out"]
    call(monkeypatch, *options, "--store", f"meru-b-modalities={store}")
    told = capsys.readouterr().err
    twice = f"--store {NAME} and --store meru-b-modalities are one store"
    other = "features of the backbone 'meru-l-modalities', not of meru-b; is it the right store?"
    for text in (twice, other):
        assert f"{text}" in told
        assert text in read(tmp_path / "out")["about"]["lead"]
        assert text in read(tmp_path / "out", "md")
    call(monkeypatch, *options[:-1], tmp_path / "once")
    told = capsys.readouterr().err
    assert "one store" not in told
    assert "right store" not in told
    for text in ("has no modality but text and image", "lacks 13 of the paper's 15 tasks ("):
        assert f"warning: --store {NAME}={store} {text}" in told
        assert text in read(tmp_path / "once")["about"]["lead"]
    assert "has points in 8 dimensions; the paper's are in 512" in told


def test_a_store_of_the_papers_layout_is_not_warned_of(tmp_path):
    sizes = {"scale": 1e-4, "most_classes": 4}
    stores = {
        "meru-l": read_store(hmcl16_store(tmp_path / "a", "meru-l", **sizes)),
        NAME: read_store(modalities_store(tmp_path / "b", "meru-l", **sizes)),
    }
    assert store_warnings({"meru-l": str(tmp_path / "a"), NAME: str(tmp_path / "b")}, stores) == []


def part(store, tasks, orders=("canonical",), **changes):
    """A store with a few of its tasks."""
    chosen = tuple(dataclasses.replace(store[name], **changes) for name in tasks)
    return dataclasses.replace(store, tasks=chosen, orders=dict.fromkeys(orders, tuple(tasks)))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("order='seq2'", "order is what a table is of"),
        ("stream='x'", "stream is what a table is of"),
        ("methods.vanilla.method='hmcl_mr'", "methods.vanilla.method is what a table is of"),
        ("methods.derpp.memory=64", "no table has 'derpp'; the rows are"),
        ("methods.vanilla={method='hmcl_mr'}", "vanilla is vanilla in main, not hmcl_mr"),
        ("methods.hmcl_mr.variant='ca'", "hmcl_mr is hmcl_mr mr in main, not hmcl_mr ca"),
    ],
)
def test_settings_that_make_another_table_are_refused(monkeypatch, tmp_path, setting, message):
    with pytest.raises(SystemExit, match=message):
        call(monkeypatch, "main", "--stream", "pocket", "--out", tmp_path / "out", "--set", setting)
    assert not (tmp_path / "out").exists()


def test_what_a_store_lacks_is_known_before_anything_runs(tmp_path):
    whole = read_store(hmcl16_store(tmp_path / "store", "hycoclip-b", **SMALL))
    names = [task.name for task in whole]
    for name in ("orders", "stages", "ranks", "placement", "pullback", "hierarchy", "time"):
        assert lacking(read_item(name, "hycoclip-b"), whole) is None

    def why(name, store, **options):
        stream = "meru-l" if name in ("drift", "norms") else "hycoclip-b"
        return lacking(read_item(name, stream), store, **options)

    assert "no order 'seq3', only canonical, seq2; write it" in why(
        "orders", part(whole, names, ("canonical", "seq2"))
    )
    for name in ("stages", "drift", "norms", "ranks"):
        assert "at least 2 tasks" in why(name, part(whole, names[:1]))
        assert why(name, part(whole, names[:2])) is None
    assert "at least 3 tasks" in why("time", part(whole, names[:2]))
    assert "no task 'imagenet', only" in why("placement", part(whole, names[:2]))
    assert "no task 'imagenet', only" in why("hierarchy", part(whole, names[:2]))
    bare = part(whole, ["imagenet"], tree=())
    assert "has no class tree; name a file" in why("hierarchy", bare)
    assert "--synsets no.txt cannot be read" in why("hierarchy", bare, synsets="no.txt")
    assert "has only classification tasks" in why("pullback", part(whole, ["imagenet"]))
    audio = part(whole, names[:3], specific="audio")
    assert "has tasks with audio" in why("time", audio)
    assert "has tasks with audio" in why("ranks", audio)
    retrieval = read_item("retrieval", "hycoclip-b-modalities")
    assert "no retrieval task among coco, flickr30k" in lacking(retrieval, part(whole, names[:2]))


def test_a_store_that_lacks_something_loses_that_section_alone(tmp_path, monkeypatch, made_up):
    path = hmcl16_store(tmp_path / "store", "hycoclip-b", only=FEW, **SMALL)
    options = ["--all", "--store", f"hycoclip-b={path}", "--out", tmp_path / "out"]
    call(monkeypatch, *options, "--seeds", "42,123")
    found = {
        (s["name"], s.get("missing") is None)
        for s in read(tmp_path / "out")["sections"]
        if s["stream"] == "hycoclip-b"
    }
    made = ("main", "per_task", "stages", "orders", "decay", "ranks")
    lost = ("placement", "hierarchy", "pullback", "time")
    assert found == {(name, True) for name in made} | {(name, False) for name in lost}


BAD = """
import dataclasses
import jax.numpy as jnp
from hmcl_jax.continual import Method
from hmcl_jax.continual.methods import Entry

@dataclasses.dataclass(frozen=True)
class Bad(Method):
    way: str = ""

    def init(self, heads):
        if self.way == "init":
            raise SystemExit("no init")
        return super().init(heads)

    def combine(self, gradients, heads, state, num_minibatches, spec):
        if self.way == "nan":
            return {m: g * jnp.nan for m, g in gradients[0].items()}
        return {m: g[0] for m, g in gradients[0].items()}

METHODS = {f"bad_{w}": Entry(Bad(w), "", "0", "-") for w in ("init", "nan", "shape")}
"""


def test_a_users_method_that_fails_in_any_way_ends_nothing(tmp_path, known_methods):
    (tmp_path / "bad.py").write_text(BAD)
    users = load_methods(tmp_path / "bad.py")
    small = synthetic_stream(tasks=2, classes=4, dimension=8, train=32, test=16)
    overrides = ["train.classification.epochs=1", "train.batch=16"]
    item = read_item("modalities", NAME, overrides, users, seeds=[42])
    jobs = {f: j for f, j in unique([item]).items() if j.method in (*users, "vanilla")}
    results, failures = run_jobs(jobs, {NAME: small}, tmp_path / "out")
    assert [jobs[folder].method for folder in results] == ["vanilla"]
    texts = {jobs[folder].method: text for folder, text in failures.items()}
    assert texts["bad_init"] == "bad_init failed: SystemExit: no init (bad.py, line 13)"
    assert "No seed is left" in texts["bad_nan"]
    assert texts["bad_shape"].startswith("bad_shape failed: ")
    assert "\n" not in texts["bad_shape"]


def test_a_fault_of_the_package_is_not_taken_for_the_users(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr("paper.runs.run_stream", fails)
    jobs = unique([read_item("modalities", NAME)])
    with pytest.raises(ZeroDivisionError):
        run_jobs(jobs, {NAME: None}, tmp_path)


@pytest.fixture
def with_halved(tmp_path, known_methods):
    """A table with a user's method, and results of all its runs."""
    (tmp_path / "mine.py").write_text(MINE + BROKEN)
    users = load_methods(tmp_path / "mine.py")
    item = read_item("main", "pocket", extra=users)
    results = {
        job.folder: result([40, 20, 60], [50, 30, 60], seeds=2)
        for job in item.jobs["canonical"].values()
    }
    folders = {label: job.folder for label, job in item.jobs["canonical"].items()}
    return item, results, folders, Setting({"pocket": None}, tmp_path, users, same=False)


def rows_of(section):
    table, _ = section["tables"][0]
    return table.blocks["pocket"]


def test_rows_of_a_users_method_are_left_out_alone(with_halved):
    item, results, folders, setting = with_halved
    del results[folders["broken"]]
    failures = {folders["broken"]: "broken failed: why"}
    section = make_section(item, results, failures, setting)
    assert section["notes"] == ["Without broken: broken failed: why"]
    assert {"vanilla", "hmcl_ca", "halved"} <= rows_of(section).keys()
    assert "broken" not in rows_of(section)
    # Claims are about all methods of the paper: without one of them there is no table.
    failures = {folders["gem"]: "gem diverged."}
    section = make_section(item, results, failures, setting)
    assert section["missing"] == "gem diverged."


def test_a_table_that_fails_for_a_users_method_is_made_without_it(with_halved, monkeypatch, capsys):
    item, results, _, setting = with_halved
    real = sections.make_tables

    def fails(found):
        if "halved" in found.rows:
            raise KeyError("halved")
        return real(found)

    monkeypatch.setattr(sections, "make_tables", fails)
    section = make_section(item, results, {}, setting)
    assert "Without halved, broken: KeyError: 'halved'" in section["notes"][0]
    assert "vanilla" in rows_of(section)
    assert "Traceback" in capsys.readouterr().err

    def always(found):
        raise IndexError("out of range")

    monkeypatch.setattr(sections, "make_tables", always)
    assert "IndexError: out of range" in make_section(item, results, {}, setting)["missing"]


def stop(results, folder, place=0):
    seed = results[folder].seeds[place]
    stopped = Stopped(place, seed, "t1", 1, "gradient", ("text",))
    scores = results[folder].scores.copy()
    scores[place, 1:] = np.nan
    results[folder] = dataclasses.replace(results[folder], stopped=(stopped,), scores=scores)


def test_seeds_that_were_stopped_are_left_out_of_all_rows(with_halved):
    item, results, folders, setting = with_halved
    stop(results, folders["gem"])
    section = make_section(item, results, {}, setting)
    assert "gem: seed 42 stopped on task 't1', in epoch 1" in section["notes"][0]
    for row in rows_of(section).values():
        assert [len(number.values) for number in row.values()] == [1] * 6
        assert row["Overall"].mean == pytest.approx(41)  # of the second seed
    stop(results, folders["dns"], place=1)
    assert (
        "Every seed was stopped in some run" in make_section(item, results, {}, setting)["missing"]
    )


def test_a_users_method_with_a_stopped_seed_costs_no_other_row_a_seed(with_halved):
    item, results, folders, setting = with_halved
    stop(results, folders["halved"])
    section = make_section(item, results, {}, setting)
    assert section["notes"][0].startswith("Without halved: seed 42 stopped")
    assert "halved" not in rows_of(section)
    assert all(len(row["Overall"].values) == 2 for row in rows_of(section).values())


def drift_of(runs, seeds=(42, 123)):
    """Drift that is NaN for the first seed, as of one that was stopped."""
    shape = (len(runs), len(seeds), 2)
    rng = np.random.default_rng(0)
    values, cones, norms = (rng.uniform(1, 2, (*shape, k)) for k in (4, 6, 3))
    values[:, 0] = cones[:, 0] = norms[:, 0] = np.nan
    sides = {"image": Norms(np.arange(3), norms[:, :, 0], norms[:, :, 1])}
    kinds = ("classification",) * 2
    return Drift(tuple(runs), seeds, ("t0", "t1"), kinds, (3, 3), values, cones, sides)


@pytest.mark.parametrize("name", ["drift", "norms"])
def test_drift_is_of_the_seeds_that_came_to_the_end(tmp_path, monkeypatch, name):
    item = read_item(name, "pocket")
    results = {job.folder: result([40, 20], [50, 30], "cc") for job in item.needed}
    stop(results, item.jobs["canonical"]["vanilla"].folder)
    monkeypatch.setattr(views, "saved", lambda jobs, store, out: jobs)
    monkeypatch.setattr(views, "measure_drift", lambda runs, store, **options: drift_of(runs))
    section = make_section(item, results, {}, Setting({"pocket": None}, tmp_path, same=False))
    assert "vanilla: seed 42 stopped" in section["notes"][0]
    for table, _ in section["tables"]:
        numbers = [n for b in table.blocks.values() for row in b.values() for n in row.values()]
        assert numbers
        assert all(np.isfinite(number.mean) for number in numbers)
    if name == "drift":
        assert section["tables"][0][0].unit.endswith("seed 123")


def test_the_plan_says_what_is_measured_besides_runs(tmp_path):
    whole = read_store(hmcl16_store(tmp_path / "store", "meru-l", **SMALL))
    stores = {"meru-l": whole, "hycoclip-b": whole}
    items = [read_item(name, "meru-l") for name in ("time", "drift", "norms")]
    items += [read_item(name, "hycoclip-b") for name in ("ranks", "hierarchy")]
    text = plan_table(items, unique(items), stores, tmp_path)
    third = whole.orders["canonical"][2]
    assert f"task 3 ({third}) 4 times with each of vanilla, hmcl_mr, hmcl_ca" in text
    assert "reads 48 checkpoints" in text
    assert "to 50 anchors" in text
    assert "to 500 anchors" in text
    assert "after each of 15 tasks" in text
    assert "samples of imagenet" in text
    only = [read_item("time", "meru-l")]
    assert plan_table(only, {}, stores, tmp_path).startswith("0 runs")


def test_a_run_with_a_stopped_seed_is_read_back_as_such(tmp_path, monkeypatch):
    small = synthetic_stream(tasks=2, classes=4, dimension=8, train=32, test=16)
    item = read_item("modalities", NAME, ["train.batch=16"], seeds=[0, 1])
    jobs = {f: j for f, j in unique([item]).items() if j.method == "vanilla"}
    from hmcl_jax.continual import learner

    def found(vitals, seeds, task, sides, config):
        return [Stopped(0, 0, task, 1, "loss", sides)] if task == "task2" else []

    monkeypatch.setattr(learner, "find_stopped", found)
    with pytest.warns(BadNumbers):
        results, failures = run_jobs(jobs, {NAME: small}, tmp_path)
    (one,) = results.values()
    assert not failures
    assert one.stopped[0].seed == 0
    rows = dict.fromkeys((job.folder for job in item.needed), one)
    made = make_section(item, rows, {}, Setting({NAME: small}, tmp_path))
    assert made["notes"]
    (cell,) = (c for c in made["tables"][0][1] if (c.method, c.column) == ("vanilla", "BWT"))
    assert len(cell.ours.values) == 1


def test_errors_of_a_store_name_the_option(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    told = refused(
        monkeypatch, "main", "--store", f"meru-l={tmp_path / 'store'}", "--out", tmp_path / "out"
    )
    assert f"--store meru-l={tmp_path / 'store'}: " in told
    with pytest.raises(ConfigError, match="--store is written"):
        reproduce.read_stores(["meru-l=a", "meru-l=b"])
