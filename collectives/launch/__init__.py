"""Identify the launcher and the MPI library of this process, its GPU support, and waiting ranks."""
