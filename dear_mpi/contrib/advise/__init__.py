"""Predict an unchanged script's iteration on other ranks and networks, under DDP and under our schedules."""

from dear_mpi.cli.commands import Command

COMMAND = Command(
    "Watch an unchanged PyTorch script for a few iterations, and predict it under DDP and our schedules.",
    "dear_mpi.contrib.advise.command:advise",
)
