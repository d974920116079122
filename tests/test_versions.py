"""The oldest packages of the tests are the lower bounds of pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLDEST = ROOT / ".ci" / "oldest.txt"


def bounds(requirements):
    """Lower bounds by name; everything that is needed has one and nothing else."""
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)", text) for text in requirements]
    assert all(found), requirements
    return dict(match.groups() for match in found)


def with_extras(extras, name):
    """The requirements of an extra and of those it names."""
    found = []
    for text in extras[name]:
        named = re.fullmatch(r"hmcl_jax\[([\w,-]+)\]", text)
        found += (
            [r for other in named[1].split(",") for r in with_extras(extras, other)]
            if named
            else [text]
        )
    return found


@pytest.mark.skipif(not OLDEST.exists(), reason="not in a source distribution")
def test_the_oldest_packages_are_the_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    needed = project["dependencies"] + with_extras(project["optional-dependencies"], "test")
    pins = dict(line.split("==") for line in OLDEST.read_text("utf8").split())
    assert pins == bounds(needed)
