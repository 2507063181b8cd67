"""``dear-mpi doctor``: which MPI, GPUs and links a job really has, what is wrong with them, and how to mend it."""
