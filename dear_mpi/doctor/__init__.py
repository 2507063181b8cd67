"""Find a job's real MPI, GPUs and links, its faults, and their remedies: ``dear-mpi doctor``."""
