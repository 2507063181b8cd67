"""``dear-mpi doctor``: which MPI, GPUs and links a job really has, what is wrong with them, and how to mend it.

examine.py    examines a job from one of its ranks
facts.py      all that is known about the ranks, gathered on all of them
in_use.py     which parts of the MPI library carry messages
huge_pages.py whether memory that processes share can have huge pages
links.py      latency and bandwidth between neighbours, measured
findings.py   from facts to findings with advice: pure functions
show.py       tables for people
"""
