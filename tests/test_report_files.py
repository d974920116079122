"""Reports as folders: what is written, what is never replaced, and the command lines."""

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


def test_only_a_report_is_replaced_and_only_if_asked(made, tmp_path, undrawn, monkeypatch):
    _, _, found = made
    out = tmp_path / "report"
    write_report(out, found)
    with pytest.raises(RunError, match="holds a report already; --replace replaces it"):
        write_report(out, found)
    assert len(undrawn) == 1  # refused before the work
    (out / "old").touch()
    write_report(out, found, replace=True)
    assert not (out / "old").exists()
    (tmp_path / "link").symlink_to(out)
    (tmp_path / "other").mkdir()
    check_report(tmp_path / "other")
    thesis = tmp_path / "other" / "thesis.tex"
    thesis.touch()
    for wrong, said in (
        (tmp_path / "other", "files that are not of a report"),
        (tmp_path / "link", "is not a folder"),
        (thesis / "deep" / "report", r"thesis.tex: Not a directory"),
    ):
        with pytest.raises(RunError, match=f"{said}; choose another --out"):
            write_report(wrong, found, replace=True)
    assert list((tmp_path / "other").iterdir()) == [thesis]
    # A report that fails leaves the old one.
    before = (out / "report.html").read_bytes()
    monkeypatch.setattr("hmcl_jax.report.write.report_page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(out, found, replace=True)
    assert (out / "report.html").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"report", "link", "other"}


def test_command_line(made, tmp_path, hmcl, undrawn, capsys, monkeypatch):
    folder, _, _ = made
    runs, out = folder / "runs", tmp_path / "report"
    options = ("report", runs, "--stream", folder / "store", "--formats", "svg", "--out", out)
    hmcl(*options, "--methods", "hmcl_ca", "--seed", "5")
    said = capsys.readouterr().out
    assert "There is no vanilla to compare with" in said
    assert f"wrote {out / 'report.html'}" in said.replace("\n", "")
    hmcl(*options, "--replace", "--anchors", "7")
    assert json.loads((out / "analysis.json").read_text())["drift"]["anchors"] == [7, 7, 7]
    monkeypatch.setattr("hmcl_jax.cli.report.analyse", None)  # refused before that
    for wrong, message in (
        (options, f"hmcl report: {out} holds a report already"),
        ((*options, "--replace", "--seed", "4"), r"--seed must be one of \[3, 5\], got 4"),
        (("report", tmp_path / "nowhere"), "holds no run"),
        (("report", runs / "vanilla"), "is the run of one method; give the folder above it"),
    ):
        with pytest.raises(SystemExit, match=message):
            hmcl(*wrong)


def test_the_store_is_found_or_asked_for(made, tmp_path, hmcl, undrawn, capsys):
    folder, _, _ = made

    def refused(*words):
        with pytest.raises(SystemExit) as stopped:
            hmcl("report", *words)
        return str(stopped.value) + capsys.readouterr().err

    new = ("--out", tmp_path / "new")
    moved = refused(folder / "runs", *new)
    assert "has moved: --stream must be pocket" in moved
    assert "got 'nowhere'" in moved
    assert "over another store" in refused(folder / "runs", *new, "--stream", "pocket")
    runs = shutil.copytree(folder / "runs", tmp_path / "runs")
    results = json.loads((runs / "results.json").read_text())
    (runs / "results.json").write_text("{")
    assert "--resume." in refused(runs)
    (runs / "results.json").unlink()
    assert "name it with --stream" in refused(runs)
    results["about"]["experiment"]["stream"] = str(folder / "store")
    (runs / "results.json").write_text(json.dumps(results))
    hmcl("report", runs)  # found where the results say
    assert "are not shown" not in capsys.readouterr().out
    assert (runs / "report" / "report.html").is_file()
    assert not (tmp_path / "new").exists()
    assert "--out is needed for several RUNs" in refused("a", "b")
    assert "--formats must be some of png, pdf, svg, got 'gif'" in refused("a", "--formats", "gif")


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_a_package_of_the_extra_nothing_is_begun(tmp_path, monkeypatch, package):
    macros.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*pip install 'hmcl_jax\[report\]'"):
        check_report(tmp_path / "report")


@pytest.mark.slow
def test_a_run_with_a_report(tmp_path, hmcl):
    store = small_store(tasks=2)
    write_store(tmp_path / "store", store.tasks, name="s", backbone="b", K=10.0, tau=0.1)
    options = ["--stream", tmp_path / "store", "--out", tmp_path / "runs", "--methods", "vanilla"]
    options += ["--seeds", "1", "--set", "train.batch=16", "--report"]
    hmcl("run", *options)
    assert (tmp_path / "runs" / "report" / "report.html").is_file()
    hmcl("run", *options, "--resume")
