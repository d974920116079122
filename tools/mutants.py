"""Do the tests notice a mistake in the method's core? Breaks one place at a time and runs them.

    python tools/mutants.py --module projection --sample 60 --seed 0
    python tools/mutants.py --out mutants.json            # all four modules
    python tools/mutants.py --out mutants.json --again    # only those that survived

A mutant is a module with one operator, number, comparison or branch changed, as cosmic-ray makes
them (``pip install cosmic-ray``); those in annotations and texts of errors, and those that Python
itself refuses, are left out. A seeded sample is tried in a copy of the tree, against the tests
that tools/mutation.toml names: a few fast ones first and, if none of them fails, more. A mutant is
killed if a test fails, and has run out of time if it takes several times as long as the module
itself. Each survivor is printed as a diff.

Processes are forked from one that has imported JAX but has not started it, one at a time, and
share the programs they compile.
"""

import argparse
import ast
import compileall
import difflib
import json
import math
import os
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import scipy.stats

ROOT = Path(__file__).resolve().parent.parent
TESTS = tomllib.loads((ROOT / "tools" / "mutation.toml").read_text("utf8"))
# Most arrays have no such operators, so these mutants are easily killed.
BITWISE = ("BitAnd", "BitOr", "BitXor", "LShift", "RShift")
PATIENCE = 3600.0  # seconds of wall; machines may be busy
CRASH = 70
Place = tuple[int, int]  # line from 1, column from 0


class Mutant(NamedTuple):
    """One changed place of a module."""

    module: str
    operator: str
    diff: str
    source: str


def counted(source: str) -> Callable[[str, Place, Place], bool]:
    """Says of an operator of cosmic-ray and a place whether tests should notice that mutant.

    Not in annotations and texts of errors, nor where Python itself refuses it: the star of
    ``f(*, x)`` is no product, and ``is`` does not go with a literal.
    """
    silent, products, literals = [], [], []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign):
            silent.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            silent.append(node.returns)
        elif isinstance(node, ast.Raise):
            silent += [text for text in ast.walk(node) if isinstance(text, ast.JoinedStr)]
        elif isinstance(node, ast.BinOp):
            products.append(node)
        elif isinstance(node, ast.Compare):
            sides = [x.value for x in (node.left, *node.comparators) if isinstance(x, ast.Constant)]
            literals += [node for value in sides if value not in (None, True, False)]

    def inside(start: Place, end: Place, nodes: Sequence[Any]) -> bool:
        return any(
            (node.lineno, node.col_offset) <= start
            and end <= (node.end_lineno, node.end_col_offset)
            for node in nodes
            if node is not None
        )

    def counts(operator: str, start: Place, end: Place) -> bool:
        if "ReplaceBinaryOperator" in operator and not any(
            (node.left.end_lineno, node.left.end_col_offset) <= start
            and end <= (node.right.lineno, node.right.col_offset)
            for node in products
        ):
            return False
        if operator.endswith(("_Is", "_IsNot")) and inside(start, end, literals):
            return False
        return not inside(start, end, silent)

    return counts


def mutants(module: str, sample: int, seed: int) -> tuple[int, list[Mutant]]:
    """How many mutants a module has, and a sample of them."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    source = (ROOT / "hmcl_jax" / f"{module}.py").read_text("utf8")
    counts = counted(source)
    nodes = list(ast_nodes(get_ast(source)))
    places = []
    for name in plugins.operator_names():
        kind = plugins.get_operator(name)
        if kind.arguments():
            continue  # replaces variables that a user names
        spots = (spot for node in nodes for spot in kind().mutation_positions(node))
        places += [(name, number, *spot) for number, spot in enumerate(spots)]
    random.Random(f"{seed} {module}").shuffle(places)  # a larger sample holds the smaller ones
    places = [place for place in places if counts(place[0], *place[2:])]
    found = []
    for name, occurrence, _, _ in places[: sample or None]:
        changed = mutate_code(source, plugins.get_operator(name)(), occurrence)
        lines = difflib.unified_diff(source.split("\n"), changed.split("\n"), n=0, lineterm="")
        diff = "\n".join([f"hmcl_jax/{module}.py", *list(lines)[2:]])
        found.append(Mutant(module, name.removeprefix("core/"), diff, changed))
    return len(places), found


class Watch:
    """A pytest plugin that notes the test that failed, and keeps every compiled program."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_call(self, item: Any) -> None:
        import jax

        # After the fixtures have set the cache, and before anything is compiled.
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or f"import of {report.nodeid}"


def run_tests(tree: Path, tests: Sequence[list[str]], note: Path, limit: int) -> None:
    """What a forked process does: one group of tests after the other. It never returns."""
    code = CRASH
    watch = Watch()
    try:
        # A mutant may loop or allocate without end; no core files of those that crash.
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_DATA, (8 * 2**30, 8 * 2**30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        output = os.open(note.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--tb=short"]
        options.append(f"--basetemp={tree.parent / 'pytest'}")
        for group in tests:
            code = int(pytest.main([*options, *group], plugins=[watch]))
            if code:
                break
        # An installed hmcl_jax would pass all tests, whatever the mutant.
        home = getattr(sys.modules.get("hmcl_jax"), "__file__", None)
        if home and not home.startswith(str(tree)):
            code = CRASH
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        note.write_text(watch.failed)
        os._exit(code)  # a fork must not run what its parent has registered for its own end


def try_once(tree: Path, tests: Sequence[list[str]], limit: int) -> dict[str, Any]:
    """Runs groups of tests in a copy of the tree until one fails: what became of it, by which."""
    note = tree.parent / "failed"
    note.unlink(missing_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        run_tests(tree, tests, note, limit)
    end = time.monotonic() + PATIENCE
    while not (found := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    code, usage = os.waitstatus_to_exitcode(found[1]), found[2]
    failed = note.read_text() if note.exists() else ""
    if code == CRASH:
        sys.exit(f"mutants: the tests did not run.\n{note.with_suffix('.txt').read_text()}")
    outcome = "killed" if code else "survived"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        outcome = "timed out"
    by = failed or ("import" if code == 4 else f"exit {code}" if code else "")
    seconds = usage.ru_utime + usage.ru_stime
    return {"outcome": outcome, "by": by, "seconds": seconds}


def copy_tree(tree: Path) -> None:
    """The package and its tests, with bytecode, as later processes write none."""
    for folder in ("hmcl_jax", "tests"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", tree)
    compileall.compile_dir(tree / "hmcl_jax", quiet=2)


def campaign(
    tree: Path, chosen: Sequence[Mutant], known: dict[str, dict[str, Any]], out: Path | None
) -> list[dict[str, Any]]:
    """Tries the mutants of one module, except those of which it is `known` what became."""
    module = chosen[0].module
    path = tree / "hmcl_jax" / f"{module}.py"
    original = path.read_text("utf8")
    tests = TESTS[module]["first"], TESTS[module]["then"]
    left = [mutant for mutant in chosen if mutant.diff not in known]
    if left:
        whole = try_once(tree, tests, 10_000)
        if whole["outcome"] != "survived":
            sys.exit(f"mutants: {module} itself fails, by {whole['by']}; mend that first.")
        print(f"{module} itself: {whole['seconds']:.1f} s of CPU", flush=True)
        limit = 20 + 3 * math.ceil(whole["seconds"])
        for stale in (tree / "hmcl_jax" / "__pycache__").glob(f"{module}.*"):
            stale.unlink()  # it may have the time and size of a mutant
        sys.dont_write_bytecode = True
    for number, mutant in enumerate(left):
        path.write_text(mutant.source, "utf8")
        result = try_once(tree, tests, limit)
        known[mutant.diff] = {"module": module, "operator": mutant.operator, **result}
        what = f"{result['outcome']} {result['by']}"
        print(f"{module} {number + 1}/{len(left)}: {what} {result['seconds']:.1f} s", flush=True)
        if out:
            out.write_text(json.dumps(known, indent=1))
    path.write_text(original, "utf8")
    if left and try_once(tree, tests[:1], limit)["outcome"] != "survived":
        sys.exit(f"mutants: {module} itself fails now; what was found is not to be trusted.")
    sys.dont_write_bytecode = False
    return [{**known[mutant.diff], "diff": mutant.diff} for mutant in chosen]


def row(name: str, of: int, results: Sequence[dict[str, Any]]) -> list[Any]:
    """A line of the table: counts, share with interval, share without bit operators, seconds."""

    def count(outcome: str, among: Sequence[dict[str, Any]] = results) -> int:
        return sum(result["outcome"] == outcome for result in among)

    def seconds(survived: bool) -> Any:
        own = [r["seconds"] for r in results if (r["outcome"] == "survived") == survived]
        return statistics.median(own) if own else ""

    noticed = len(results) - count("survived")
    interval = scipy.stats.binomtest(noticed, len(results)).proportion_ci(method="wilson")
    low, high = 100 * interval.low, 100 * interval.high
    share = f"{100 * noticed / len(results):.1f} % [{low:.1f}, {high:.1f}]"
    hard = [r for r in results if not r["operator"].endswith(BITWISE)]
    without = f"{100 * (1 - count('survived', hard) / len(hard)):.1f} %" if hard else ""
    counts = [count(outcome) for outcome in ("killed", "timed out", "survived")]
    return [name, of, len(results), *counts, share, without, seconds(False), seconds(True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--module", choices=sorted(TESTS), action="append", help="default: all")
    parser.add_argument("--sample", type=int, default=60, help="mutants per module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file of results; it is taken up again")
    parser.add_argument("--programs", type=Path, help="a folder that keeps compiled programs")
    parser.add_argument("--again", action="store_true", help="try the survivors in --out again")
    arguments = parser.parse_args()
    if arguments.sample < 0:
        parser.error(f"--sample must be at least 0, got {arguments.sample}.")
    if arguments.again and not arguments.out:
        parser.error("--again needs the --out of an earlier run.")
    try:
        import cosmic_ray  # noqa: F401
    except ImportError:
        parser.error("this needs cosmic-ray: python -m pip install cosmic-ray.")
    os.environ |= {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    known: dict[str, dict[str, Any]] = {}
    if arguments.out and arguments.out.exists():
        known = json.loads(arguments.out.read_text("utf8"))
        if arguments.again:
            known = {d: r for d, r in known.items() if r["outcome"] != "survived"}
    # What a test session imports, done once. Nothing of hmcl_jax, and nothing that starts JAX.
    import flax.linen  # noqa: F401
    import jax.test_util  # noqa: F401
    import optax  # noqa: F401
    import scipy.linalg
    import scipy.special  # noqa: F401

    rows, survivors, everything = [], [], []
    total = 0
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        copy_tree(tree)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
            (arguments.programs or Path(name) / "programs").resolve()
        )
        for module in arguments.module or sorted(TESTS):
            count, chosen = mutants(module, arguments.sample, arguments.seed)
            results = campaign(tree, chosen, known, arguments.out)
            rows.append(row(module, count, results))
            survivors += [result for result in results if result["outcome"] == "survived"]
            everything += results
            total += count
    rows.append(row("all", total, everything))
    header = ["module", "mutants", "tried", "killed", "timed out", "survived"]
    header += ["noticed [95 %]", "without bit operators", "s killed", "s survived"]
    for survivor in survivors:
        print(f"\n{survivor['diff']}")
    sys.path.append(str(ROOT / "benchmarks"))
    from timing import print_json, print_table

    print_table(header, rows)
    keys = (*header[1:6], "noticed")
    modules = {line[0]: dict(zip(keys, line[1:7], strict=True)) for line in rows}
    print_json("mutants", seed=arguments.seed, **modules)


if __name__ == "__main__":
    main()
