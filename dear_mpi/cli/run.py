"""What commands share: they run on all ranks, write JSON, and end with one line and exit code 2 if input is bad."""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer

from dear_mpi.cli.commands import WITHOUT_WORK, added_flags, spelled
from dear_mpi.cli.files import Written, try_files
from dear_mpi.cli.flags import STALL_AFTER, Flags, Table, parameter, typed_as
from dear_mpi.cli.panels import PANELS
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.errors import AgreedError, ProgramError, TransportError
from dear_mpi.collectives.transports.agree import by_rank_0
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import World, launched_rank, run_world
from dear_mpi.reporting.files import aside, replacing
from dear_mpi.reporting.terminal import complain
from dear_mpi.reporting.units import parse_links, parse_seconds
from dear_mpi.training.declared import parsed

STAGES = ("input", "job")
NAMED = r"^((?:\w+: )?)(\w+)(?= (?:must|does not apply) )"  # an option, maybe behind a collective
SPELLED = [f"--{name.removesuffix('_file').replace('_', '-')}" for names in PANELS.values() for name in names.split()]


@dataclass(frozen=True)
class Output:
    """What a command gives: what --json writes, and what writes its other files, by their flags."""

    report: Any
    files: Mapping[str, Callable[[], object]] = field(default_factory=dict)


@contextmanager
def complaining(command: str, *, mpi: bool, flags: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Turn bad input into one line of rank 0 on standard error, and exit code 2 on all ranks.

    The line does not say in which stage ranks found it where that is the whole command, and has the name of an option
    as users type it, by ``flags``. MPI, which this may start, says who is rank 0; if not ``mpi``, the launcher's
    variables do.
    """
    try:
        yield
    except (ValueError, AgreedError, ProgramError) as error:
        told = (mpi or launch_of(os.environ).size > 1) and not isinstance(error, AgreedError)
        agreed = agreed_on(error) if told else error
        said = re.sub(f"^({'|'.join((*STAGES, command))}): ", "", str(agreed))
        said = re.sub(NAMED, lambda found: f"{found[1]}{flags.get(found[2], found[2])}", said)
        complain(said, launched_rank() if mpi else launch_of(os.environ).rank)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        launch = launch_of(os.environ)
        if launch.size > 1:  # of one rank alone, __main__.py says so: it may still import the command
            print(f"rank {launch.rank} was interrupted", file=sys.stderr)
        raise


def command_line(arguments: Sequence[str]) -> dict[str, str | None]:
    """The command and the names of the flags, which must be equal on all ranks. Values are compared where they are
    used; files may differ."""
    typed = {each.partition("=")[0] for each in arguments}
    asked = [each for each in arguments if each in WITHOUT_WORK]
    added = [spelled(name) for command in arguments[:1] for name in added_flags(command)]
    given = {flag: "given" if flag in typed else None for flag in (*SPELLED, *added)}
    return {"command": " ".join([*arguments[:1], *asked]) or "none", **given}


def check_all_ask(arguments: Sequence[str]) -> None:
    """Collective, of the ranks that are to show help: an error on all ranks if others have work to do."""
    if agreed := disagreement(lambda rank: command_line(arguments)):
        complain(str(agreed).removeprefix("input: "), launched_rank())
        sys.exit(2)


def disagreement(facts: Callable[[int], Mapping[str, Any]]) -> AgreedError | None:
    """Collective: compare facts as ``run_world`` does; return the error. None if no MPI can be used: nobody waits."""
    try:
        run_world(lambda world: None, facts=facts, stall_after_s=parse_seconds(STALL_AFTER))
    except AgreedError as agreed:
        return agreed
    except ValueError:
        pass
    return None


def agreed_on(error: Exception) -> Exception:
    """An error of this rank's input as all ranks raise it: the others may wait for it in ``run_world``."""

    def complain(rank: int) -> Mapping[str, Any]:
        raise error

    return disagreement(complain) or error


def with_flags(table: Table, *, alone: str = "", **defaults: Any) -> Callable[..., Callable[..., None]]:
    """Make a command of a function that takes a mapping of flags: those that were typed, and these defaults.

    Bad input ends it as ``complaining`` says. ``alone`` is the name of a command that runs in one process: under mpirun
    it is refused, as --threads is.
    """
    shown = [each.replace(default=defaults.get(name, each.default)) for name, each in table.items()]
    names = typed_as(table)
    shown.append(parameter("typer_context", typer.Context, inspect.Parameter.empty))

    def decorate(function: Callable[[Flags], None]) -> Callable[..., None]:
        def command(*, typer_context: Any, **flags: Any) -> None:
            source = typer_context.get_parameter_source
            typed = {name: flags[name] for name in flags if source(name).name != "DEFAULT"}
            mpi = "threads" in table and "threads" not in typed
            with complaining(typer_context.info_name, mpi=mpi, flags=names):
                if (alone or "threads" in typed) and launch_of(os.environ).size > 1:
                    raise ValueError(f"{alone or '--threads'} runs in one process: start it without mpirun")
                function(defaults | typed)

        command.__doc__ = function.__doc__
        command.__annotations__ = {each.name: each.annotation for each in shown}
        command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return command

    return decorate


def run_ranks(command: Callable[[World], Any], flags: Flags, *, device: str = "cpu", others: Written = ()) -> Any:
    """Call ``command(world)`` as every rank, as ``RUN_FLAGS`` say. The result, or the report of an ``Output``: rank 0
    writes it as JSON, and then the other files of the output.

    First the ranks compare their flags: one that acts on some ranks alone, such as --timeline, would leave the others
    waiting. Before the work rank 0 sees that the file of --json and ``others`` can be written. An older report is
    ``aside`` during the work: where all processes of a host die, a launcher may return 0, and then no report must be
    there. A file that cannot be written in the end is no reason to lose another one: it is said, and the exit code is
    1; 2 if it is that of --json.
    """
    json_file, stall_after = flags.get("json_file"), flags.get("stall_after", STALL_AFTER)

    def facts(rank: int) -> Mapping[str, Any]:
        if rank == 0:
            try_files([("--json", json_file), *others] if json_file is not None else others)
        return command_line(sys.argv[1:])

    def on_each_rank(world: World) -> tuple[Any, bool]:
        if world.rank == 0:
            set_aside()
        result = command(world)
        output = result if isinstance(result, Output) else Output(result)
        whole = write_files(world, {"output": lambda: write_json(output.report, json_file), **output.files})
        return output.report, whole

    how = {name: flags[name] for name in ("threads", "device_memory", "stall_abort") if name in flags}
    if "link" in flags:
        how["link"] = parsed("--link", parse_links, flags["link"])
    if "rates" in flags:
        from dear_mpi.simulate.machine import read_rates  # few commands have the flag

        how["rates"] = parsed("--rates", read_rates, flags["rates"])
    how["stall_after_s"] = parsed("--stall-after", parse_seconds, stall_after)
    if how.get("stall_abort") and not how["stall_after_s"]:
        raise ValueError(f"--stall-abort needs a --stall-after above 0s, not {stall_after}")
    select_gpu(device)
    try:
        with aside(json_file) as set_aside:  # around all ranks: of threads, rank 0 may end because another did
            report, whole = run_world(on_each_rank, facts=facts, **how)
    except TransportError:
        raise typer.Exit(1) from None  # the rank that failed has said why
    if not whole:
        raise typer.Exit(1)
    return report


def write_files(world: World, files: Mapping[str, Callable[[], object]]) -> bool:
    """Collective: rank 0 writes all files that it can, and says which it cannot; whether it could write all. An
    AgreedError, after the others are written, if the first one cannot be."""
    failed: dict[str, AgreedError] = {}
    for flag, write in files.items():
        try:
            by_rank_0(world.transport, flag, write, asleep=True)
        except AgreedError as error:
            failed[flag] = error
    first = failed.pop(next(iter(files)), None)
    for each in failed.values():
        complain(str(each), world.rank)
    if first is not None:
        raise first
    return not failed


def write_json(content: Any, path: Path | None) -> None:
    """Write a report to the file of ``--json``, if it is asked for."""
    if path is not None:
        with replacing("--json", path) as file:
            file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
