"""Train PyTorch modules in their users' own loops (``DistributedOptimizer``), or DDP and FSDP2 over our collectives."""

from dear_mpi.torch.backend import init_process_group
from dear_mpi.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer", "init_process_group"]
