"""Training: a line of parameters, buckets cut from it, the routes that they take, and the schedules that drive them.

``Session`` is the front door for a model of your own; ``Job`` (``runs/job.py``) is the command line's.

To read it from the ground up: ``routes/``, ``line/``, ``log/``, ``fusion/``, ``fabric/``, ``schedules/``,
``trainer.py``, ``session.py``; then what is decided from measured times: ``decisions.py``, ``costs/``, ``profiles/``,
``tuning/``; then what commands need: ``runs/``, ``checkpoints/``. Imports point down here, too: ``TRAINING`` in
tests/rooms.py is the order.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Loaded when asked for: what predicts training needs neither the engine nor a transport.
HOMES = {
    "AgreedError": "collectives.program.errors",
    "CollectiveError": "collectives.program.errors",
    "SGD": "kernels.optimizers",
    "Adam": "kernels.optimizers",
    "AdamW": "kernels.optimizers",
    "Parameter": "models.layer",
    "run_world": "ranks.world",
    "Session": "training.session",
    "TrainingError": "training.trainer",
}
__all__ = [*HOMES]

if TYPE_CHECKING:
    from dear_mpi.collectives.program.errors import AgreedError as AgreedError
    from dear_mpi.collectives.program.errors import CollectiveError as CollectiveError
    from dear_mpi.kernels.optimizers import SGD as SGD
    from dear_mpi.kernels.optimizers import Adam as Adam
    from dear_mpi.kernels.optimizers import AdamW as AdamW
    from dear_mpi.models.layer import Parameter as Parameter
    from dear_mpi.ranks.world import run_world as run_world
    from dear_mpi.training.session import Session as Session
    from dear_mpi.training.trainer import TrainingError as TrainingError


def __getattr__(name: str) -> Any:
    """A public name, from the module where it is written."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"dear_mpi.{HOMES[name]}"), name)  # asked for once
    return found


def __dir__() -> list[str]:
    return __all__
