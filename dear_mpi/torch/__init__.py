"""Train PyTorch modules in their users' own loops (``DistributedOptimizer``), or DDP and FSDP2 over our collectives."""

from dear_mpi.ranks.world import started
from dear_mpi.torch.backend import init_process_group
from dear_mpi.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer", "init_process_group", "rank", "size"]


def rank() -> int:
    """Return this process's rank in ``MPI.COMM_WORLD``."""
    return started().Get_rank()


def size() -> int:
    return started().Get_size()
