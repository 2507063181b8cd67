"""What launched this process, which MPI library it has, whether that takes a GPU's memory, and who waits for whom."""
