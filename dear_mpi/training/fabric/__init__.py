"""Move buckets through their route, live or virtually, as a schedule directs."""

from dear_mpi.training.fabric.fabric import Fabric
from dear_mpi.training.fabric.order import Handle

__all__ = ["Fabric", "Handle"]
