"""Reports as folders: what is written, what is never replaced, and the command lines."""

import functools
import json
import re
import shutil
import sys

import numpy as np
import pytest
from report_runs import make_runs, small_store, with_tree_points

from hmcl_jax.continual import RunError
from hmcl_jax.data.store import read_store, write_store
from hmcl_jax.report.analyse import analyse
from hmcl_jax.report.page import macros
from hmcl_jax.report.write import check_report, write_report

METHODS = ("vanilla", "hmcl_ca")
FIGURES = ("depth", "drift", "methods", "norms", "radial_tree", "retrieval", "stages", "training")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store on disk, runs over it, and their analysis."""
    rng = np.random.default_rng(3)
    folder = tmp_path_factory.mktemp("made")
    store = with_tree_points(small_store(), rng)
    settings = {"name": "small", "backbone": "made", "K": store.K, "tau": store.tau}
    write_store(folder / "store", store.tasks, **settings)
    store = read_store(folder / "store")
    runs = make_runs(folder / "runs", store, METHODS, rng, stopped={"hmcl_ca": (0,)})
    return folder, store, analyse([runs], store, pictures=2)


def test_a_report_is_whole(made, tmp_path):
    _, store, found = made
    page = write_report(tmp_path / "report", found)
    assert page == tmp_path / "report" / "report.html"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    names = {path.relative_to(page.parent).as_posix() for path in page.parent.rglob("*.*")}
    assert {f"figures/{f}.{e}" for f in FIGURES for e in ("png", "pdf", "svg")} <= names
    assert {"tables/methods.md", "tables/drift.tex", "analysis.json"} <= names
    text = page.read_text("utf8")
    assert text.count("data:image/svg+xml") == len(FIGURES) - 1  # stages are maps
    assert "seed 3 stopped on task" in text
    assert not re.search(r">[^<]*\bnan\b[^<]*</t[dh]", text)
    for path in (page.parent / "figures").glob("*.svg"):
        assert not re.search(r">[^<]*\bnan\b[^<]*</text>", path.read_text("utf8")), path
    numbers = json.loads((page.parent / "analysis.json").read_text())
    drift = np.array(numbers["drift"]["values"], float)
    np.testing.assert_array_equal(drift, found.drift.values)
    assert numbers["store"]["fingerprint"] == store.fingerprint
    assert numbers["drift"]["wilcoxon"]["hmcl_ca"][0]["pairs"] == 3
    assert numbers["scores"]["vanilla"][0][0][1] is None
    (tree, *_) = found.hierarchies
    shown = numbers["hierarchy"]["task1"]
    assert shown["scores"]["tie"][1][1][1] == pytest.approx(tree.scores["tie"][1, 1, 1])
    np.testing.assert_allclose(shown["radius"]["means"][0], tree.radius.means[0])
    assert numbers["traversals"][0]["paths"]["vanilla"]["all texts"][0][-1] == "[ROOT]"


@pytest.fixture
def undrawn(monkeypatch):
    """Without figures, which take their time; gives the folders that they would go to."""
    folders = []

    def no_figures(analysis, folder, formats, **options):
        folders.append(folder)
        folder.mkdir()
        return {}

    monkeypatch.setattr("hmcl_jax.report.write.draw_all", no_figures)
    return folders


def test_only_a_report_is_replaced_and_only_if_asked(made, tmp_path, undrawn):
    _, _, found = made
    out = tmp_path / "report"
    write_report(out, found, formats=["svg"])
    with pytest.raises(RunError, match="holds a report already; --replace replaces it"):
        write_report(out, found, formats=["svg"])
    assert len(undrawn) == 1  # refused before the work
    (out / "old").touch()
    write_report(out, found, formats=["svg"], replace=True)
    assert not (out / "old").exists()
    other = tmp_path / "other"
    other.mkdir()
    check_report(other)
    (other / "thesis.tex").touch()
    with pytest.raises(RunError, match="files that are not of a report; choose another --out"):
        write_report(other, found, replace=True)
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(RunError, match="is not a folder"):
        check_report(tmp_path / "link", replace=True)
    with pytest.raises(ValueError, match="formats must be some of"):
        write_report(tmp_path / "new", found, formats=["gif"])


def test_a_folder_that_cannot_be_written_is_refused_at_once(made, tmp_path, undrawn):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file: Not a directory; choose another --out"):
        write_report(tmp_path / "file" / "deep" / "report", made[2])
    assert undrawn == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_wrong_folders_are_named_before_the_stream_is_asked_for(made, tmp_path, analyse_command):
    folder, _, _ = made
    with pytest.raises(SystemExit, match=r"there is no folder .*nowhere"):
        analyse_command(tmp_path / "nowhere", "--out", tmp_path / "new")
    with pytest.raises(SystemExit, match="is the run of one method; give the folder above it"):
        analyse_command(folder / "runs" / "vanilla", "--out", tmp_path / "new")
    runs = shutil.copytree(folder / "runs", tmp_path / "runs")
    (runs / "results.json").write_text("{")
    with pytest.raises(SystemExit, match=r"damaged or of another kind: .*--resume\."):
        analyse_command(runs, "--out", tmp_path / "new")


def test_a_report_that_fails_leaves_the_old_one(made, tmp_path, monkeypatch, undrawn):
    _, _, found = made
    out = tmp_path / "report"
    write_report(out, found, formats=["svg"])
    before = (out / "report.html").read_bytes()

    def fails(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr("hmcl_jax.report.write.report_page", fails)
    with pytest.raises(OSError, match="disk full"):
        write_report(out, found, formats=["svg"], replace=True)
    assert (out / "report.html").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


@pytest.fixture
def analyse_command(hmcl):
    """`hmcl report`, in this process."""
    return functools.partial(hmcl, "report")


def test_command_line(made, tmp_path, analyse_command, undrawn, capsys, monkeypatch):
    folder, _, _ = made
    runs, out = folder / "runs", tmp_path / "report"
    options = (runs, "--stream", folder / "store", "--formats", "svg", "--out", out)
    analyse_command(*options, "--methods", "hmcl_ca", "--seed", "5")
    said = capsys.readouterr().out
    assert "There is no vanilla to compare with" in said
    assert f"wrote {out / 'report.html'}" in said.replace("\n", "")
    with pytest.raises(SystemExit, match=f"hmcl report: {out} holds a report already"):
        analyse_command(*options)
    analyse_command(*options, "--replace", "--anchors", "7")
    assert json.loads((out / "analysis.json").read_text())["drift"]["anchors"] == [7, 7, 7]
    monkeypatch.setattr("hmcl_jax.cli.report.analyse", None)  # refused before that
    with pytest.raises(SystemExit, match=r"--seed must be one of \[3, 5\], got 4"):
        analyse_command(*options, "--replace", "--seed", "4")


def test_the_store_is_found_or_asked_for(made, tmp_path, analyse_command, undrawn, capsys):
    folder, _, _ = made
    new = tmp_path / "new"
    wrong = "The store of .* has moved: --stream must be pocket, .* got 'nowhere'"
    with pytest.raises(SystemExit, match=wrong):
        analyse_command(folder / "runs", "--out", new)
    with pytest.raises(SystemExit, match="over another store"):
        analyse_command(folder / "runs", "--out", new, "--stream", "pocket")
    runs = shutil.copytree(folder / "runs", tmp_path / "runs")
    results = json.loads((runs / "results.json").read_text())
    (runs / "results.json").unlink()
    with pytest.raises(SystemExit, match=r"does not say which stream it is of .*--stream"):
        analyse_command(runs)
    results["about"]["experiment"]["stream"] = str(folder / "store")
    (runs / "results.json").write_text(json.dumps(results))
    analyse_command(runs)  # found where the results say
    assert "are not shown" not in capsys.readouterr().out
    assert (runs / "report" / "report.html").is_file()
    with pytest.raises(SystemExit, match="holds no run"):
        analyse_command(tmp_path, "--stream", folder / "store", "--out", new)
    assert not new.exists()


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_a_package_of_the_extra_nothing_is_begun(tmp_path, monkeypatch, package):
    macros.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*pip install 'hmcl_jax\[report\]'"):
        check_report(tmp_path / "report")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "b"], "--out is needed for several RUNs"),
        (["a", "--formats", "gif"], "--formats must be some of png, pdf, svg, got 'gif'"),
        (["a", "--anchors", "0"], "--anchors must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(arguments, said, analyse_command, capsys):
    with pytest.raises(SystemExit):
        analyse_command(*arguments)
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_with_a_report(tmp_path, hmcl):
    store = small_store(tasks=2)
    write_store(tmp_path / "store", store.tasks, name="s", backbone="b", K=10.0, tau=0.1)
    options = ["--stream", tmp_path / "store", "--out", tmp_path / "runs", "--methods", "vanilla"]
    options += ["--seeds", "1", "--set", "train.batch=16", "--report"]
    hmcl("run", *options)
    assert (tmp_path / "runs" / "report" / "report.html").is_file()
    hmcl("run", *options, "--resume")
