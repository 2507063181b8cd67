"""Train a model: flat buffer of parameters, buckets, routes, and the schedules that drive them.

Use ``Session`` for your own model; the command line uses ``Job`` (``runs/job.py``).

Read bottom-up: ``routes/``, ``buckets/``, ``events/`` (log and timelines), ``fusion/`` (policies), ``fabric/``,
``schedules/``, ``trainer.py``, ``options.py``, ``group.py``; then decisions from measured times:
``events/profiler.py``, ``fusion/tuning.py``, ``fusion/decisions.py``; then ``checkpoint.py``, ``session.py`` and
``runs/`` (for commands).
``TRAINING`` in tests/rooms.py has this order.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dear_mpi.collectives.program.errors import AgreedError, CollectiveError, RanksLost
from dear_mpi.kernels.optimizers import SGD, Adam, AdamW, Lamb, Muon, Optimizer
from dear_mpi.models.layer import Parameter

if TYPE_CHECKING:
    from dear_mpi.ranks.world import run_world
    from dear_mpi.training.fabric.statistic import Statistic
    from dear_mpi.training.session import Session
    from dear_mpi.training.trainer import TrainingError

__all__ = ["SGD", "Adam", "AdamW", "AgreedError", "CollectiveError", "Lamb", "Muon", "Optimizer"]
__all__ += ["Parameter", "RanksLost", "Session", "Statistic", "TrainingError", "run_world"]

# Loaded lazily: predictions need neither the engine nor a transport.
LATE = {"run_world": "ranks.world", "Session": "training.session", "TrainingError": "training.trainer"}
LATE["Statistic"] = "training.fabric.statistic"


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"dear_mpi.{LATE[name]}"), name)  # cached
    return found
