"""Train PyTorch modules in their users' own loops: ``DistributedOptimizer``."""

from dear_mpi.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
