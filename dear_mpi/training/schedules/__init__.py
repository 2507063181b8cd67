"""Decide when each bucket communicates: a file per family of schedules."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from dear_mpi.collectives.program.user_file import (
    WithExtras,
    is_in_file,
    load,
    load_extra,
    source_of,
    telling,
)
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import check_distinct, named_values
from dear_mpi.training.fusion import USUAL
from dear_mpi.training.schedules.dear import Dear, DearEager
from dear_mpi.training.schedules.local import DiLoCo, Local, PostLocal
from dear_mpi.training.schedules.schedule import Nominal, Schedule
from dear_mpi.training.schedules.sharded import Fsdp, Zero
from dear_mpi.training.schedules.wfbp import ByteScheduler, Ddp, Horovod, MgWfbp, Sequential, Wfbp

__all__ = ["BASELINE", "SCHEDULES", "Dear", "Fsdp", "Nominal", "Schedule", "Sequential", "Wfbp"]
__all__ += ["find_schedules", "own_fusion"]

SCHEDULES: dict[str, type[Schedule]] = {
    "sequential": Sequential,
    "wfbp": Wfbp,
    "ddp": Ddp,
    "mg-wfbp": MgWfbp,
    "horovod": Horovod,
    "bytescheduler": ByteScheduler,
    "zero": Zero,
    "fsdp": Fsdp,
    "dear": Dear,
    "dear-eager": DearEager,
}
ROUNDS: dict[str, type[Schedule]] = {"local": Local, "post-local": PostLocal, "diloco": DiLoCo}
NAMES = (*SCHEDULES, *(f"{name}:10" for name in ROUNDS))
MINE = "MySchedule"
BASELINE = "wfbp"  # of predicted speed-ups


def published(name: str) -> type[Schedule]:
    return checked(name, load_extra("schedules", name))


ALL_SCHEDULES = WithExtras[type[Schedule]](ChainMap(ROUNDS, SCHEDULES), "schedules", published)


def find_schedules(names: Sequence[str]) -> dict[str, type[Schedule]]:
    check_distinct("schedules", names)
    return {name: find_schedule(name) for name in names}


def own_fusion(fusion: str, schedule: type[Schedule]) -> str:
    return schedule.fusion if fusion == "own" else fusion


def find_schedule(name: str) -> type[Schedule]:
    """Find a schedule by name, perhaps with options, or a user's class; ValueError: none.

    >>> find_schedule("wfbp").fusion, vars(find_schedule("bytescheduler:credit=8"))["credit"]
    ('25MB', 8)
    """
    if is_in_file(name):
        source = source_of(name, "schedule", MINE)
        found, texts = checked(name, load(replace(source, given=""))), source.given[1:-1].split(",")
        texts = list(filter(None, texts))
    else:
        base, *texts = name.split(":")
        found = lookup("schedule", base, ALL_SCHEDULES)
    return found.specialised(**options_of(name, found, texts)) if texts else found


def checked(name: str, found: Any) -> type[Schedule]:
    if not (isinstance(found, type) and issubclass(found, Schedule)):
        raise ValueError(f"schedule {name!r} must be a class derived from Schedule, not {found!r}")
    if not isinstance(found.fusion, str):
        raise ValueError(f"schedule {name!r}: fusion must be a text such as '{USUAL}', not {found.fusion!r}")
    if not (isinstance(found.options, Mapping) and all(map(callable, found.options.values()))):
        raise ValueError(f"schedule {name!r}: options must map names to functions, not be {found.options!r}")
    return found


def options_of(name: str, schedule: type[Schedule], given: Sequence[str]) -> dict[str, Any]:
    """Parse ``option=value``; a bare value sets the first option."""
    what, options = f"schedule {name!r}", schedule.options
    if not options:
        option, whose = given[0].partition("=")[0], schedule.__name__ if is_in_file(name) else name.partition(":")[0]
        remedy = f": name what may be set in {whose}.options" * is_in_file(name)
        raise ValueError(f"{what}: {whose} has no options, so not {option!r} either{remedy}")
    _, named = named_values(what, (text if "=" in text else f"{next(iter(options))}={text}" for text in given))
    found = {}
    for option, text in named.items():
        read = lookup(f"{what}: option", option, options)
        with telling(f"{what}: {option}={text} cannot be read") if is_in_file(name) else nullcontext():
            found[option] = read(f"{what}: {option}", text)
    return found
