"""``dear-mpi doctor``: what MPI, GPUs and links this job really has, what is wrong with them, and what to do about it.

facts.py      all that is known about the ranks, gathered on all of them
links.py      latency and bandwidth between neighbours, measured
findings.py   from facts to findings with advice: pure functions
show.py       tables for people
command.py    the command
"""
