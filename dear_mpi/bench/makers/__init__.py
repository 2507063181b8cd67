"""Who carries a collective out: our plans, calls of MPI libraries, gloo, and the job of another MPI."""
