"""What launched this process, which MPI library it has, and whether that takes a GPU's memory.

Also which ranks are on its host and what each waits for (``neighbours.py``), and a child process that watches while MPI
starts and ends (``sentinel.py``).
"""
