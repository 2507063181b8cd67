"""The algorithms of MPI libraries: time each one, and write rules that the library reads."""
