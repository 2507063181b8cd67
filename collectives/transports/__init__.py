"""How bytes move between ranks: over MPI, between threads, over an emulated link, through memory of a host.

Also what a rank waits for (``waits.py``), and a thread that reports a wait that takes too long (``watchdog.py``).
"""
