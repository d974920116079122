"""What the code never does, read from its source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [
    path
    for folder in ("hmcl_jax", "experiments", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__"}
# What runs code of the user's; only plugins.py, when asked to.
RUNNERS = {"runpy.run_path", "runpy.run_module", "importlib.import_module"}
RUNNERS |= {"importlib.metadata.entry_points", "metadata.entry_points", "entry_points"}
ALLOWED = {"runpy.run_path", "importlib.metadata.entry_points"}


def dotted(node):
    """``a.b.c`` of a chain of attributes."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def forbidden(source):
    """Whatever could run code that is in a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [name for name in names if name.split(".")[0] in MODULES]
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if called in CALLS | RUNNERS | {"os.system", "os.popen"}:
            found.append(called)
        if called == "torch.load" and getattr(given.get("weights_only"), "value", None) is not True:
            found.append(called)
        pickles = given.get("allow_pickle")
        if pickles is not None and getattr(pickles, "value", True) is not False:
            found.append(f"{called}(allow_pickle=...)")
        if getattr(given.get("shell"), "value", False):
            found.append(f"{called}(shell=True)")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from yaml import load",
        "import joblib.numpy_pickle",
        "eval('1')",
        "x = torch.load(path)",
        "x = torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "subprocess.run(text, shell=True)",
        "runpy.run_path(path)",
    ],
)
def test_the_search_finds_what_it_looks_for(source):
    assert forbidden(source)


def test_the_search_lets_pass_what_is_harmless():
    assert not forbidden("np.load(path, allow_pickle=False); ast.literal_eval(x); re.compile(y)")


def test_nothing_is_unpickled_or_evaluated():
    assert len(SOURCES) > 80
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        plugins = name == "hmcl_jax/continual/plugins.py"
        assert set(forbidden(path.read_text("utf8"))) == (ALLOWED if plugins else set()), name
