"""Who carries a collective out: our plans, calls of MPI, and gloo."""
