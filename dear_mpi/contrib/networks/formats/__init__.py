"""Programs, networks and workloads in the formats of others; ``dear-mpi convert``."""

from dear_mpi.cli.commands import Command

CONVERT = Command(
    "Convert programs, networks and workloads from and to other formats; programs are proved.",
    "dear_mpi.contrib.networks.convert:convert",
)
