"""Find a job's real MPI, GPUs and links, its faults and their remedies: ``dear-mpi doctor`` and ``dear-mpi links``."""

from dear_mpi.cli.commands import Command

DOCTOR = Command(
    "Report the MPI, GPUs and links of this job, with problems and remedies.",
    "dear_mpi.contrib.doctor.command:doctor",
)
LINKS = Command(
    "Measure latency and bandwidth of every pair of ranks, both directions apart, and name what is slow.",
    "dear_mpi.contrib.doctor.command:links",
)
