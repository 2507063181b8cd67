"""dear-mpi: distributed training with DeAR over hand-written ring collectives.

Importing this package starts nothing: no MPI, no device, no thread.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
