"""Programs: what a collective algorithm is, what it must achieve, and the proof and the price of it.

program.py    a program as data: steps of sends and receives
contract.py   what each collective promises
partition.py  which part of a buffer belongs to which rank
replay.py     runs programs on symbols; verify.py proves them by it
lanes.py      matches sends with receives
network.py    what messages and sums cost, the ports of ranks and hosts, and how messages that meet share them
cost.py       what programs cost on it: the model
simulation.py runs them on it, event by event
trace.py      writes them for SimGrid, which does the same in its own way
user_file.py  what users write in files of their own
errors.py     what can go wrong

Nothing here needs MPI, NumPy, or a name of an algorithm.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step

__all__ = ["Program", "Receive", "Send", "Step"]
