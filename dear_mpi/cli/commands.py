"""Register commands: a help line and a function's place each, imported when the command runs (docs/how-to/extra.md)."""

import os
from collections.abc import Collection, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.user_file import entry_points_of, load_extra, load_place
from dear_mpi.reporting.files import check_ending
from dear_mpi.reporting.terminal import console

WITHOUT_WORK = ("--help", "--version")
OPEN = ("train", "compare", "bench", "explain", "simulate")  # to flags of extras


class Command(NamedTuple):
    """``help`` starts a command's help, and the docstring of the function at ``place`` continues it."""

    help: str
    place: str  # module:function


class AddedFlag(NamedTuple):
    """A flag of an extra for a command of core.

    With ``endings`` it takes a file, and ``place`` is ``write(flag, path, result)``. Else ``place`` is an ``Observe``
    of ``train``, or makes a ``Look`` of ``bench``.
    """

    help: str
    place: str  # module:name
    endings: tuple[str, ...] = ()
    metavar: str = ""  # of a text: neither a file nor a switch


def as_typed(name: str) -> str:
    return f"--{name.removesuffix('_file').replace('_', '-')}"


KINDS: dict[str, type[Any]] = {"commands": Command, "flags": AddedFlag}  # by group

# To add a command to core, write its file and add a line here.
COMMANDS = {
    "train": Command("Train a model with one communication schedule.", "dear_mpi.cli.train:train"),
    "compare": Command(
        "Time one model under several schedules and wires, which take turns.", "dear_mpi.cli.train:compare"
    ),
    "demo": Command(
        "Train a classifier with DeAR, then compare DeAR with other schedules. Takes two minutes on 4 ranks.",
        "dear_mpi.cli.train:demo",
    ),
    "bench": Command("Time our collectives and the MPI library's in turns.", "dear_mpi.cli.bench:bench"),
    "explain": Command(
        "Show a collective algorithm step by step: its messages, and the chunks of each rank; or show a route.",
        "dear_mpi.cli.explain:explain",
    ),
    "simulate": Command(
        "Predict training on any number of ranks and any network, without MPI: the trainer runs on a virtual clock.",
        "dear_mpi.cli.simulate:simulate",
    ),
}


def find_command(name: str) -> Command | None:
    """Return a command of core or an extra; None if none can be imported."""
    return COMMANDS.get(name) or published("commands", name)


def all_commands() -> dict[str, Command]:
    return COMMANDS | extras_in("commands") | COMMANDS  # core's commands win


@cache
def added_flags(command: str) -> dict[str, AddedFlag]:
    found = {}
    for entry, extra in extras_in("flags").items() if command in OPEN else ():
        of, _, flag = entry.partition(".")
        name = flag.replace("-", "_")
        if of not in OPEN or not name.isidentifier():
            warn(f"{entry!r} in the group 'dear_mpi.flags' must be COMMAND.FLAG, of one of {', '.join(OPEN)}")
        elif of == command:
            found[name] = extra
    return found


def typed_acts(command: str, flags: Mapping[str, Any], core: Collection[str]) -> dict[str, Any]:
    """Return what typed flags of extras lead to, by Python name; for a file, a function of the command's result.

    ``core``: other flags: with only these, no package's metadata is read. Only rank 0 loads what writes.

    Raises:
        ValueError: a file has another ending, or the extra needs another package.
    """
    found: dict[str, Any] = {}
    for name in flags:
        each = None if name in core or not flags[name] else added_flags(command).get(name)
        if each is None:
            continue
        flag = as_typed(name)
        if each.endings:
            check_ending(flag, flags[name], each.endings)
            if launch_of(os.environ).rank > 0:
                found[name] = bool  # on rank 0 only
                continue
        try:
            act = load_place(each.place)
        except ImportError as error:
            raise ValueError(f"{flag} needs another package: {error}") from None
        found[name] = partial(act, flag, flags[name]) if each.endings else act
    return found


def extras_in(group: str) -> dict[str, Any]:
    return {name: extra for name in sorted(entry_points_of(group)) if (extra := published(group, name)) is not None}


@cache
def published(group: str, name: str) -> Any:
    """Return an extra's object by name; None, with a warning of rank 0, if it is unusable."""
    if name not in entry_points_of(group):
        return None
    try:
        found = load_extra(group, name)
        if not isinstance(found, KINDS[group]):
            what = KINDS[group].__name__
            raise ValueError(f"{name!r} in the group 'dear_mpi.{group}' must be a {what}, not {found!r:.60}")
    except ValueError as error:
        warn(str(error))
        return None
    return found


def warn(text: str) -> None:
    if launch_of(os.environ).rank == 0:
        console(stderr=True).print(f"warning: {text}", style="yellow", soft_wrap=True)
