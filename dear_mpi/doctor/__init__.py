"""``dear-mpi doctor``: what MPI, GPUs and links a job really has, what is wrong with them, and what to do about it."""
