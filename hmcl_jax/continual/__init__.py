"""Learning a stream of tasks: the shared training loop, the methods, runs and checkpoints."""

from hmcl_jax.continual.checkpoint import RunError
from hmcl_jax.continual.config import ConfigError, Schedule, TrainConfig
from hmcl_jax.continual.guard import BadNumbers, Stopped
from hmcl_jax.continual.method import Method, MethodState
from hmcl_jax.continual.methods import METHODS, make_method
from hmcl_jax.continual.run import SEEDS, Event, StreamResult, run_stream
from hmcl_jax.continual.saved import SavedRun, read_runs
from hmcl_jax.continual.sweep import run_sweep

__all__ = [
    "METHODS",
    "SEEDS",
    "BadNumbers",
    "ConfigError",
    "Event",
    "Method",
    "MethodState",
    "RunError",
    "SavedRun",
    "Schedule",
    "Stopped",
    "StreamResult",
    "TrainConfig",
    "make_method",
    "read_runs",
    "run_stream",
    "run_sweep",
]
