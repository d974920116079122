"""The command `hmcl`: its policy for errors and exit codes, its configs, and `hmcl run`."""

import io
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from rich.console import Console

import hmcl_jax
from hmcl_jax.cli import main, methods, options
from hmcl_jax.cli.progress import ProgressView
from hmcl_jax.continual import METHODS, ConfigError, Schedule, TrainConfig, run_stream
from hmcl_jax.data.store import write_store
from hmcl_jax.data.synthetic import synthetic_stream

ROOT = Path(__file__).parent.parent


@pytest.fixture
def store(tmp_path):
    made = synthetic_stream(tasks=2, classes=4, dimension=8, train=70, test=40)
    path = tmp_path / "store.zip"
    write_store(path, made.tasks, name="s", backbone="synthetic", K=made.K, tau=made.tau)
    return path


def ended(*arguments):
    """The exit code, or the message of an error (exit code 1)."""
    with pytest.raises(SystemExit) as stopped:
        main.main(arguments)
    return stopped.value.code


def failing(monkeypatch, error):
    def fails(options):
        raise error

    monkeypatch.setattr(methods, "run", fails)
    monkeypatch.setattr(main, "RESUMABLE", ("methods",))


def test_help_version_and_unknown_commands(capsys):
    assert (ended(), ended("--help"), ended("--version")) == (0, 0, 0)
    shown = capsys.readouterr().out
    assert f"hmcl_jax {hmcl_jax.__version__}" in shown
    for name, about in main.COMMANDS.items():
        assert f"{name:<8} {about}" in shown
        assert ended(name, "--help") == 0
        assert capsys.readouterr().out.startswith(f"usage: hmcl {name}")
    main.main(["methods"])
    assert set(re.findall(r"^(\w+): ", capsys.readouterr().out, re.MULTILINE)) >= set(METHODS)
    assert ended("train") == 2
    assert "invalid choice: 'train'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("batch must be 3"), "hmcl methods: batch must be 3"),
        (FloatingPointError("diverged"), "hmcl methods: diverged"),
        (ModuleNotFoundError("no", name="rich.live"), "pip install 'hmcl_jax[run]'"),
        (PermissionError(13, "Permission denied", "x"), "Fix the problem above. Rerun with --resu"),
        (main.UsageError("--a goes with --b"), 2),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expected_errors_are_one_sentence(monkeypatch, capsys, error, code):
    failing(monkeypatch, error)
    found = ended("methods")
    assert code in found if isinstance(code, str) else found == code
    said = {130: "stopped. Rerun with --resume to continue.", 2: "error: --a goes with --b"}
    assert said.get(code, "") in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("shapes differ"), KeyError("x"), TypeError("y")])
def test_bugs_keep_their_traceback(monkeypatch, error):
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        main.main(["methods"])
    with pytest.raises(ValueError, match="beta must be in") as caught:
        hmcl_jax.task_anchor(2.0)
    assert main.is_explained(caught.value)  # what the core refuses is no bug


def test_configs_are_found_by_name_and_by_path(tmp_path):
    assert options.find_config(None) is None
    assert options.find_config("pocket").read_text().startswith("# The embedded stream")
    assert options.find_config("some/where.toml") == Path("some/where.toml")
    with pytest.raises(ConfigError, match=r"one of .*pocket.*, got 'pockets'"):
        options.find_config("pockets")


def test_scripts_of_a_checkout_call_the_command():
    scripts = [path.read_text() for path in (ROOT / "experiments").glob("*.py")]
    assert sum("hmcl_jax.cli.main" in text for text in scripts) >= 8
    assert all(len(text.splitlines()) < 12 for text in scripts)
    command = [sys.executable, ROOT / "experiments" / "frontier.py", "--pairs", "x", "--out", "x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "hmcl sweep: error: argument --pairs" in done.stderr
    installed = entry_points(group="console_scripts", name="hmcl")
    assert all(entry.load() is main.main for entry in installed)


def test_run_trains_refuses_and_resumes(store, tmp_path, hmcl, capsys):
    def run(out, *more):
        train = "train.classification={epochs=3, learning_rate=0.02}"
        settings = ["--set", "train.batch=32", "--set", train]
        hmcl("run", "--stream", store, "--seeds", "0,1", "--out", out, *settings, *more)

    out = tmp_path / "out"
    run(out, "--methods", "vanilla")
    assert "| vanilla |" in capsys.readouterr().out
    assert (out / "table.md").exists()
    with pytest.raises(SystemExit, match="--resume"):
        run(out, "--methods", "vanilla")
    run(out, "--methods", "vanilla", "--resume")
    for bad, message in (
        (["--stream", ""], "--stream must be pocket, pocket-modalities or the path of a store"),
        (["--mesh", "2"], "mesh must be of type str, got 2"),
        (["--processes", "2"], "could not be joined"),
        (["--methods", ""], "2"),  # the exit code
        (["--seeds", ","], "2"),
        (["--out", ""], "2"),
    ):
        with pytest.raises(SystemExit, match=message):
            run(tmp_path / "other", *bad)
    told = capsys.readouterr().err
    assert "--methods: must be names" in told
    assert "--seeds: invalid numbers value: ','" in told
    assert not (tmp_path / "other").exists()


def test_results_that_another_process_wrote_meanwhile_are_kept(tmp_path, hmcl, monkeypatch):
    path = tmp_path / "results.json"
    theirs = '{"methods": {"theirs": {}}}'
    monkeypatch.setattr("hmcl_jax.cli.run.run_stream", lambda *_, **__: path.write_text(theirs))
    with pytest.raises(SystemExit, match="also holds theirs, which would be lost"):
        hmcl("run", "--stream", "pocket", "--methods", "vanilla", "--out", tmp_path)
    assert path.read_text() == theirs


def test_progress_is_plain_lines_without_a_terminal(capsys):
    stream = synthetic_stream(tasks=3, classes=4, dimension=8, train=70, test=40)
    config = TrainConfig(classification=Schedule(3, 0.02), batch=32)
    with ProgressView(("vanilla",)) as view:
        run_stream(stream, ["vanilla"], [0], config, listener=view)
    lines = capsys.readouterr().out.splitlines()
    # Lines about epochs depend on the clock.
    assert len([line for line in lines if " done, " in line]) == 3
    assert "vanilla: task 3/3 task3 done" in lines[-1]
    assert "\x1b" not in "".join(lines)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    with ProgressView(("vanilla",), terminal) as view:
        run_stream(stream, ["vanilla"], [0], config, listener=view)
    assert "3/3" in terminal.file.getvalue()
