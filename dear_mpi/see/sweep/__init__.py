"""Pictures of a sweep: the rows of ``dear-mpi simulate``, drawn in the way that suits what was varied."""
