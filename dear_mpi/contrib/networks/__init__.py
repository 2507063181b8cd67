"""Collectives made for a network: a graph of ranks, the least time on it, and a program that comes near."""

from dear_mpi.cli.commands import AddedFlag, Command

CONVERT = Command(
    "Convert programs, networks and workloads from and to other formats; programs are proved.",
    "dear_mpi.contrib.networks.convert:convert",
)
WATCH = AddedFlag(
    "Compare links with the file of --algorithm synth:FILE; if one changes, make the algorithm anew and switch to it.",
    "dear_mpi.contrib.networks.watch:Watcher",
)
