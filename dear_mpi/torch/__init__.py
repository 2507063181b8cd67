"""Train PyTorch modules in their users' own loops (``DistributedOptimizer``).

``init_process_group``, of the extra ``process_group``, runs DDP and FSDP2 over our collectives.
"""

from typing import Any

from dear_mpi.collectives.program.user_file import entry_points_of, load_extra
from dear_mpi.ranks.world import started
from dear_mpi.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer", "init_process_group", "rank", "size"]


def rank() -> int:
    """Return this process's rank in ``MPI.COMM_WORLD``."""
    return started().Get_rank()


def size() -> int:
    return started().Get_size()


def __getattr__(name: str) -> Any:
    if name != "init_process_group":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in entry_points_of("torch"):
        raise ImportError(f"{name} is in the extra 'process_group', which is not installed")
    return load_extra("torch", name)
