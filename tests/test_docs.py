"""The guide: its links lead somewhere, its examples run, what it names is there."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_links_lead_to_files_and_to_every_page():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf8")):
            assert (page.parent / link).exists(), (page.name, link)
        listed = f"({page.name})" in (ROOT / "docs" / "README.md").read_text("utf8")
        assert listed or page.name == "README.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(page), module_relative=False, optionflags=flags)
    assert found.failed == 0


def test_tests_that_are_named_exist():
    text = (ROOT / "docs" / "claims.md").read_text("utf8")
    named = re.findall(r"(tests/\w+\.py)(?:::(\w+))?", text)
    assert len(named) > 15
    for page in ("README.md", "SECURITY.md", "CONTRIBUTING.md", ".github/workflows/ci.yml"):
        named += re.findall(r"(tests/\w+\.py)()", (ROOT / page).read_text("utf8"))
    for names in re.findall(r"tests/test_\{(.+?)\}", (ROOT / ".ci" / "test_end").read_text("utf8")):
        named += [(f"tests/test_{name}.py", "") for name in names.split(",")]
    for path, function in named:
        source = (ROOT / path).read_text("utf8")
        assert not function or f"def {function}(" in source, (path, function)


def test_the_walk_through_the_code_is_short_and_goes_up():
    text = (ROOT / "docs" / "tour.md").read_text("utf8")
    hop = r"^(\d+)\. `([\w.]+)` in \[[\w.]+\]\(\.\./(hmcl_jax/(\w+)/\w+\.py)\)"
    hops = re.findall(hop, text, re.MULTILINE)
    assert [int(number) for number, *_ in hops] == list(range(1, len(hops) + 1))
    assert 9 < len(hops) <= 12
    layers = [("data", "evaluation", "continual", "report").index(layer) for *_, layer in hops]
    assert layers == sorted(layers)
    for _, name, path, _ in hops:
        source = (ROOT / path).read_text("utf8")
        for part in name.split("."):
            assert re.search(rf"^\s*(def|class) {part}\b", source, re.MULTILINE), (path, name)


@pytest.mark.slow
def test_the_reference_is_built_without_network(tmp_path):
    pytest.importorskip("pdoc", reason="the extra docs is not installed")
    script = ROOT / "docs" / "build_api.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "hmcl_jax" / "projection.html").read_text("utf8")
    assert "closest_admissible" in page
    for path in tmp_path.rglob("*.html"):
        assert not re.search(r'src="(?:https?:)?//', path.read_text("utf8")), path
