"""Move bytes between ranks: over MPI, between threads, over an emulated link, in a host's memory."""
