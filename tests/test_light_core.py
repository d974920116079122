"""The package stays light: what importing it brings along, and what a missing extra says."""

import subprocess
import sys

import pytest

import hmcl_jax
from hmcl_jax._extras import EXTRA_OF, require

HEAVY = (
    *("hmcl_jax.data", "hmcl_jax.evaluation", "hmcl_jax.continual", "hmcl_jax.report"),
    *("hmcl_jax.backbones", "hmcl_jax.cli", "hmcl_jax.flax_head", "argparse", *EXTRA_OF),
)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_the_package_imports_the_core_alone():
    # JAX itself may import some of these; what it brings along is not ours.
    code = (
        "import sys, jax, optax; before = set(sys.modules); import hmcl_jax;"
        f"print(*[name for name in {HEAVY!r} if name in set(sys.modules) - before])"
    )
    done = run(code)
    assert done.stdout.split() == [], done.stderr


def test_streams_and_the_flax_head_are_imported_on_first_use():
    code = "import hmcl_jax, sys; hmcl_jax.{}; print({!r} in sys.modules, 'flax' in sys.modules)"
    assert run(code.format("load_pocket", "hmcl_jax.data.pocket")).stdout == "True False\n"
    assert run(code.format("LorentzHead", "hmcl_jax.flax_head")).stdout == "True True\n"
    with pytest.raises(AttributeError, match="no attribute 'load_pockets'"):
        hmcl_jax.load_pockets  # noqa: B018


@pytest.mark.parametrize(
    ("package", "extra", "code"),
    [
        ("flax", "backbones", "from hmcl_jax.cli.main import main; main(['extract'])"),
        ("rich", "run", "from hmcl_jax.cli.main import main; main(['run', '--out', 'x'])"),
    ],
)
def test_a_missing_extra_says_how_to_install_it(package, extra, code):
    done = run(f"import sys; sys.modules[{package!r}] = None\n{code}")
    assert done.returncode == 1
    assert f"The package {package!r} is missing: pip install 'hmcl_jax[{extra}]'" in done.stderr


def test_every_extra_that_is_named_exists():
    from importlib.metadata import metadata

    extras = set(metadata("hmcl_jax").get_all("Provides-Extra"))
    assert set(EXTRA_OF.values()) <= extras
    assert {"run", "report", "data", "backbones", "convert", "cuda12", "all"} <= extras
    assert hmcl_jax.__version__
    assert require("json", "run").dumps([]) == "[]"
