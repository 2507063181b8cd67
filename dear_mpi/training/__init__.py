"""Training: a line of parameters, buckets cut from it, the routes that they take, and the schedules that drive them.

``Session`` is the front door for a model of your own; ``Job`` (``runs/job.py``) is the command line's.

To read it from the ground up: ``routes/``, ``line/``, ``log/``, ``fusion/``, ``fabric/``, ``schedules/``,
``trainer.py``, ``group.py``; then what is decided from measured times: ``decisions.py``, ``costs/``, ``profiles/``,
``tuning/``; then ``checkpoints/``, ``session.py``, and what commands need: ``runs/``. Imports point down here, too:
``TRAINING`` in tests/rooms.py is the order.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dear_mpi.collectives.program.errors import AgreedError, CollectiveError
from dear_mpi.kernels.optimizers import KFAC, SGD, Adam, AdamW, Lamb, Muon, Optimizer
from dear_mpi.models.layer import Parameter
from dear_mpi.training.fabric.statistic import Statistic

if TYPE_CHECKING:
    from dear_mpi.ranks.world import run_world
    from dear_mpi.training.session import Session
    from dear_mpi.training.trainer import TrainingError

__all__ = ["KFAC", "SGD", "Adam", "AdamW", "AgreedError", "CollectiveError", "Lamb", "Muon", "Optimizer"]
__all__ += ["Parameter", "Session", "Statistic", "TrainingError", "run_world"]

# Loaded when asked for: what predicts training needs neither the engine nor a transport.
LATE = {"run_world": "ranks.world", "Session": "training.session", "TrainingError": "training.trainer"}


def __getattr__(name: str) -> Any:
    """A public name, from the module where it is written."""
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"dear_mpi.{LATE[name]}"), name)  # asked for once
    return found
