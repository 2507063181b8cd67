"""What launched this process, which MPI library it has, and whether that takes a GPU's memory."""
