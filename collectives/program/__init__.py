"""Programs: what a collective algorithm is, what it must achieve, and the proof and the price of it.

Nothing here needs MPI, NumPy, or a name of an algorithm. Begin with ``program.py``, then ``verify.py`` and ``cost.py``.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step

__all__ = ["Program", "Receive", "Send", "Step"]
