"""Collectives made for a network: a graph of ranks, the least time on it, and a program that comes near."""

from dear_mpi.cli.commands import Command

CONVERT = Command(
    "Convert programs, networks and workloads from and to other formats; programs are proved.",
    "dear_mpi.contrib.networks.convert:convert",
)
