"""Learning a stream of tasks: the training engine, the methods, runs and checkpoints."""

from hmcl_jax.continual.config import ConfigError, RunError, Schedule, TrainConfig
from hmcl_jax.continual.experiment import SEEDS
from hmcl_jax.continual.health import BadNumbers, Stopped
from hmcl_jax.continual.learner import Carried, Learned, Setting, learn_task
from hmcl_jax.continual.method import Method, MethodState
from hmcl_jax.continual.methods import METHODS, make_method
from hmcl_jax.continual.run import Event, RunOptions, StreamResult, run_stream
from hmcl_jax.continual.run_reader import SavedRun, read_runs
from hmcl_jax.continual.sweep import run_sweep

__all__ = [
    "METHODS",
    "SEEDS",
    "BadNumbers",
    "Carried",
    "ConfigError",
    "Event",
    "Learned",
    "Method",
    "MethodState",
    "RunError",
    "RunOptions",
    "SavedRun",
    "Schedule",
    "Setting",
    "Stopped",
    "StreamResult",
    "TrainConfig",
    "learn_task",
    "make_method",
    "read_runs",
    "run_stream",
    "run_sweep",
]
