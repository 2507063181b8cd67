"""Schedules: when each bucket communicates during training. One small file each, and its line in ``SCHEDULES``."""

from collections.abc import Sequence

from dear_mpi.collectives.program.user_file import is_in_file, load, source_of
from dear_mpi.kernels.lookup import lookup
from dear_mpi.training.schedules.dear import Dear
from dear_mpi.training.schedules.schedule import Schedule
from dear_mpi.training.schedules.sequential import Sequential
from dear_mpi.training.schedules.wfbp import Wfbp

__all__ = ["BASELINE", "SCHEDULES", "Dear", "Schedule", "Sequential", "Wfbp", "find_schedules", "source_text"]

SCHEDULES: dict[str, type[Schedule]] = {"sequential": Sequential, "wfbp": Wfbp, "dear": Dear}
BASELINE = "wfbp"  # what predicted speed-ups are over


def source_text(name: str) -> str:
    """A name of ours, or what a user's file has, by which ranks can see that they have the same schedule."""
    return source_of(name, "schedule", "MySchedule").text if is_in_file(name) else name


def find_schedules(names: Sequence[str]) -> dict[str, type[Schedule]]:
    """The schedules of some names, each looked up once.

    Raises:
        ValueError: a name is there twice, or has no schedule (see ``find_schedule``).
    """
    if len(set(names)) != len(names):
        raise ValueError(f"schedules must be different ones, not {', '.join(names)}")
    return {name: find_schedule(name) for name in names}


def find_schedule(name: str) -> type[Schedule]:
    """The schedule of a name in ``SCHEDULES``, or a class of a user's file: ``path/to/mine.py:Mine``.

    Raises:
        ValueError: there is none of this name, or it is no class derived from ``Schedule``.
    """
    if not is_in_file(name):
        return lookup("schedule", name, SCHEDULES)
    found = load(source_of(name, "schedule", "MySchedule"))
    if not (isinstance(found, type) and issubclass(found, Schedule)):
        raise ValueError(f"schedule {name!r} must be a class derived from Schedule, not {found!r}")
    return found
