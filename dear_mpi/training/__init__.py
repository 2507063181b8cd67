"""Training: a line of parameters, buckets cut from it, a fabric that carries them, and the schedules that drive it.

``Session`` is the front door for a model of your own; ``Job`` (``runs/job.py``) is the command line's.

To read it from the ground up: ``line/``, ``fusion/``, ``fabric/``, ``schedules/``, ``trainer.py``, ``session.py``; then
what is decided from measured times: ``decisions.py``, ``costs/``, ``profiles/``, ``tuning/``; then what commands need:
``runs/``, ``checkpoints/``, ``timeline/``. Imports point down here, too: ``TRAINING`` in tests/rooms.py is the order.
"""

from dear_mpi.collectives.program.errors import AgreedError, CollectiveError
from dear_mpi.kernels.optimizers import SGD, Adam, AdamW
from dear_mpi.models.layer import Parameter
from dear_mpi.ranks.world import run_world
from dear_mpi.training.session import Session
from dear_mpi.training.trainer import TrainingError

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "AgreedError",
    "CollectiveError",
    "Parameter",
    "Session",
    "TrainingError",
    "run_world",
]
