"""Define collective algorithms as data, prove them and predict their cost.

Nothing here needs MPI or NumPy.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step

__all__ = ["Program", "Receive", "Send", "Step"]
