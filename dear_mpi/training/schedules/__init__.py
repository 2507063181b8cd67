"""Schedules: when each bucket communicates during training. One small file each, and its line in ``SCHEDULES``."""

import zlib

from dear_mpi.collectives.program.user_file import load, source_of
from dear_mpi.kernels.lookup import lookup
from dear_mpi.training.schedules.dear import Dear
from dear_mpi.training.schedules.schedule import Schedule
from dear_mpi.training.schedules.sequential import Sequential
from dear_mpi.training.schedules.wfbp import Wfbp

__all__ = ["SCHEDULES", "Dear", "Schedule", "Sequential", "Wfbp", "find_schedule", "source_text"]

SCHEDULES: dict[str, type[Schedule]] = {"sequential": Sequential, "wfbp": Wfbp, "dear": Dear}


def source_text(name: str) -> str:
    """A name of ours, or what a user's file has, by which ranks can see that they have the same schedule."""
    if ".py:" not in name:
        return name
    source = source_of(name, "schedule", "MySchedule")
    return f"{source.name} of a file with checksum {zlib.crc32(source.code):08x}"


def find_schedule(name: str) -> type[Schedule]:
    """The schedule of a name in ``SCHEDULES``, or a class of a user's file: ``path/to/mine.py:Mine``.

    Raises:
        ValueError: there is none of this name, or it is no class derived from ``Schedule``.
    """
    if ".py:" not in name:
        return lookup("schedule", name, SCHEDULES)
    found = load(source_of(name, "schedule", "MySchedule"))
    if not (isinstance(found, type) and issubclass(found, Schedule)):
        raise ValueError(f"schedule {name!r} must be a class derived from Schedule, not {found!r}")
    return found
