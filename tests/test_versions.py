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


@pytest.mark.skipif(not OLDEST.exists(), reason="not in a source distribution")
def test_the_oldest_packages_are_the_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["test"]
    pins = dict(line.split("==") for line in OLDEST.read_text("utf8").split())
    assert pins == bounds(needed)
