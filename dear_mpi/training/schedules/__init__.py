"""Schedules: when each bucket communicates during training. One small file each, and its line in ``SCHEDULES``."""

from dear_mpi.training.schedules.dear import Dear
from dear_mpi.training.schedules.schedule import Schedule
from dear_mpi.training.schedules.sequential import Sequential
from dear_mpi.training.schedules.wfbp import Wfbp

__all__ = ["SCHEDULES", "Dear", "Schedule", "Sequential", "Wfbp"]

SCHEDULES: dict[str, type[Schedule]] = {"sequential": Sequential, "wfbp": Wfbp, "dear": Dear}
