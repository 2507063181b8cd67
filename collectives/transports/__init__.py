"""How bytes move between ranks: over MPI, between threads, over an emulated link, through memory of a host."""
