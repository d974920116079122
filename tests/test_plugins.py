"""Methods of the user's own: of a file, and of an installed package."""

import sys

import numpy as np
import pytest

from hmcl_jax.continual import ConfigError, TrainConfig, run_stream
from hmcl_jax.continual.experiment import read_experiment
from hmcl_jax.continual.methods import METHODS, list_methods, make_method
from hmcl_jax.continual.plugins import is_users, load_methods, load_plugin
from hmcl_jax.data.synthetic import synthetic_stream

FILE = """
import dataclasses
from hmcl_jax.continual import Method
from hmcl_jax.continual.methods import Entry

@dataclasses.dataclass(frozen=True)
class Still(Method):
    share: float = 0.5

    def check(self):
        assert self.share < 1, "share is too large"

    def combine(self, gradients, heads, state, num_minibatches, spec):
        return {m: self.share * g for m, g in gradients[0].items()}

METHODS = {"still": Entry(Still(share=0.0), "no gradient at all", "0", "-")}
"""

pytestmark = pytest.mark.usefixtures("known_methods")


def write(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


def test_a_method_of_a_file_runs_like_any_other(tmp_path):
    assert load_methods(write(tmp_path, FILE)) == ("still",)
    assert "still: no gradient at all" in list_methods()
    store = synthetic_stream(tasks=2, classes=4, dimension=8, train=32, test=16)
    found = run_stream(store, ["still"], [0], TrainConfig(batch=16))["still"]
    assert np.array_equal(found.heads["image"][0], np.eye(8, 9, k=1))
    settings = read_experiment(None, ["methods.still.share=0.25"], methods=["still"]).settings
    assert settings == {"still": {"share": 0.25}}
    with pytest.raises(ConfigError, match=r"methods\.still: .*share is too large"):
        make_method("still", {"share": 2.0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "must have METHODS = {name: Entry"),
        ("METHODS = {'a b': 1}", "letters, digits"),
        ("METHODS = {'mine': 1}", r"METHODS\['mine'\] must be an Entry of a Method, got 1"),
        ("1 / 0", "mine.py failed: ZeroDivisionError"),
        ("import sys; sys.exit()", "mine.py failed: SystemExit"),
        (FILE.replace("Still(share=0.0)", "Still"), "must be an Entry of a Method"),
        (FILE.replace('"still"', '"EWC"'), "'EWC' is a method already"),
        (FILE.replace("share=0.0", "share=2.0"), "still cannot be made: .*share is too large"),
        (FILE.replace("share=0.0", "share=frozenset()"), "only what JSON has: TypeError"),
    ],
)
def test_a_file_that_is_none_is_refused_and_adds_nothing(tmp_path, text, message):
    before = dict(METHODS)
    with pytest.raises(ConfigError, match=message):
        load_methods(write(tmp_path, text))
    assert before == METHODS
    with pytest.raises(ConfigError, match="must be a Python file, got"):
        load_methods(tmp_path)


def test_a_gradient_of_another_shape_is_refused(tmp_path):
    load_methods(write(tmp_path, FILE.replace("self.share * g", "self.share * g[:1]")))
    store = synthetic_stream(tasks=1, classes=4, dimension=8, train=32, test=16)
    with pytest.raises(ConfigError, match=r"combine of still must .*\(8, 9\).*got .*\(1, 9\)"):
        run_stream(store, ["still"], [0], TrainConfig(batch=16))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with two entry points, one of which fails when it is imported."""
    about = tmp_path / "stillness-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stillness\nVersion: 1.0\n")
    points = "calm = stillness:METHODS\nbroken = stillness_broken:METHODS\n"
    (about / "entry_points.txt").write_text(f"[hmcl_jax.methods]\n{points}")
    (tmp_path / "stillness.py").write_text(FILE)
    (tmp_path / "stillness_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("stillness", None)


def test_an_entry_point_is_loaded_only_when_it_is_named(installed):
    assert "stillness" not in sys.modules
    assert load_plugin("calm") == ("still",)
    assert is_users("still")
    assert not is_users("vanilla")
    assert make_method("still").code.startswith("stillness 1.0 ")
    assert "stillness_broken" not in sys.modules
    with pytest.raises(ConfigError, match="'still' is a method already"):
        load_plugin("calm")
    with pytest.raises(ConfigError, match=r"broken = stillness_broken:METHODS failed: ZeroDiv"):
        load_plugin("broken")
    with pytest.raises(ConfigError, match=r"got 'clam', of which there are 0; installed: .*calm"):
        load_plugin("clam")


def test_other_code_is_another_run(tmp_path):
    described = []
    for text in (FILE, FILE, FILE.replace("self.share * g", "-self.share * g")):
        METHODS.pop("still", None)
        load_methods(write(tmp_path, text))
        described.append(make_method("still").described())
    assert described[0] == described[1] != described[2]
    assert described[0]["share"] == 0.0
