"""Add rooted collectives, barriers and messages of MPI to ``bench``."""
