"""Run commands on all ranks, write JSON, and end with exit code 2 after bad input."""

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

from dear_mpi.cli.commands import WITHOUT_WORK, as_typed
from dear_mpi.cli.flags import STALL_AFTER, Flags, Table, added, in_order, parameter, try_files, typed_as, written_by
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.errors import AgreedError, ProgramError, TransportError
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.collectives.transports.elastic import present
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import World, launched_rank, run_world
from dear_mpi.reporting.declared import parsed
from dear_mpi.reporting.files import aside, replacing
from dear_mpi.reporting.terminal import complain
from dear_mpi.reporting.units import parse_links, parse_seconds

NAMED = r"^((?:\w+: )?)(\w+)(?= (?:must|does not apply) )"  # an option, maybe after a collective


@dataclass(frozen=True)
class Output:
    """A command's ``--json`` report, and writers of other files, by flag."""

    report: Any
    files: Mapping[str, Callable[[], object]] = field(default_factory=dict)


@contextmanager
def complaining(command: str, *, mpi: bool, flags: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Turn bad input into one line of rank 0 on standard error, and exit code 2 on all ranks.

    ``flags`` maps options to what users type. With ``mpi``, MPI may start to find rank 0; without, the launcher's
    variables name it.
    """
    try:
        yield
    except (ValueError, AgreedError, ProgramError) as error:
        told = (mpi or launch_of(os.environ).size > 1) and not isinstance(error, AgreedError)
        agreed = agreed_on(error) if told else error
        said = re.sub(f"^(input|job|{command}): ", "", str(agreed))
        said = re.sub(NAMED, lambda found: f"{found[1]}{flags.get(found[2], found[2])}", said)
        rank = launched_rank() if mpi else launch_of(os.environ).rank
        complain(said, getattr(error, "reporter", rank))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        launch = launch_of(os.environ)
        if launch.size > 1:  # __main__.py handles a single failing rank, which may still be importing the command
            print(f"rank {launch.rank} was interrupted", file=sys.stderr)
        raise


def command_line(arguments: Sequence[str]) -> dict[str, str | None]:
    """Return the command and its flag names, which must be equal on all ranks; values are compared later."""
    typed = sorted({each.partition("=")[0] for each in arguments if each.startswith("--")} - {*WITHOUT_WORK})
    asked = [each for each in arguments if each in WITHOUT_WORK]
    return {"command": " ".join([*arguments[:1], *asked]) or "none", "flags": " ".join(typed) or None}


def check_all_ask(arguments: Sequence[str]) -> None:
    """Collective over ranks that show help: raise an error on all ranks if others have work."""
    if agreed := disagreement(lambda rank: command_line(arguments)):
        complain(str(agreed).removeprefix("input: "), launched_rank())
        sys.exit(2)


def disagreement(facts: Callable[[int], Mapping[str, Any]]) -> AgreedError | None:
    """Collective: compare facts like ``run_world``, and return the error."""
    try:
        run_world(lambda world: None, facts=facts, stall_after_s=parse_seconds(STALL_AFTER))
    except AgreedError as agreed:
        return agreed
    except ValueError:
        pass
    return None


def agreed_on(error: Exception) -> Exception:
    """Make a rank's input error one that all ranks raise: they may wait for it in ``run_world``."""

    def complain(rank: int) -> Mapping[str, Any]:
        raise error

    return disagreement(complain) or error


def with_flags(table: Table, *, alone: str = "", **defaults: Any) -> Callable[..., Callable[..., Any]]:
    """Turn a function of a flag mapping into a command: typed flags, and these defaults.

    Typer runs the result for the command's name and the typed words; extras' flags are looked up only if a word is no
    flag of ``table``. ``alone`` names a command that refuses mpirun, like --threads.
    """

    def decorate(function: Callable[[Flags], None]) -> Callable[..., Any]:
        def build(name: str, words: Sequence[str] | None) -> Any:
            own = {*map(as_typed, table)}
            known = words is not None and own.issuperset(each.partition("=")[0] for each in words if each[:1] == "-")
            whole = in_order(table if known else table | added(name, table))
            names = typed_as(whole)

            def command(*, typer_context: Any, **flags: Any) -> None:
                source = typer_context.get_parameter_source
                typed = {name: flags[name] for name in flags if source(name).name != "DEFAULT"}
                mpi = "threads" in table and "threads" not in typed
                with complaining(name, mpi=mpi, flags=names):
                    if (alone or "threads" in typed) and launch_of(os.environ).size > 1:
                        raise ValueError(f"{alone or '--threads'} runs in one process: start it without mpirun")
                    function(defaults | typed)

            shown = [each.replace(default=defaults.get(name, each.default)) for name, each in whole.items()]
            shown.append(parameter("typer_context", typer.Context, inspect.Parameter.empty))
            command.__doc__ = function.__doc__
            command.__annotations__ = {each.name: each.annotation for each in shown}
            command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
            return command

        return build

    return decorate


def run_ranks(command: Callable[[World], Any], flags: Flags, *, device: str = "cpu") -> Any:
    """Call ``command(world)`` on every rank of ``RUN_FLAGS``. Returns its result, or its ``Output``'s report.

    First the ranks compare flags, and rank 0 tries its files. An older report is ``aside`` meanwhile: a launcher may
    return 0 after all processes of a host died. A failed write is reported, with exit code 1, or 2 for --json.
    """
    json_file = flags.get("json_file")

    def facts(rank: int) -> Mapping[str, Any]:
        if rank == 0:
            try_files(written_by(flags))
        return command_line(sys.argv[1:])

    def on_each_rank(world: World) -> tuple[Any, bool]:
        if world.rank == 0:
            set_aside()
        result = command(world)
        survivors, output = present(world.transport), result if isinstance(result, Output) else Output(result)
        return write(world, output) if survivors is None else survivors.complete(lambda: write(world, output))

    def write(world: World, output: Output) -> tuple[Any, bool]:
        whole = True
        for flag, write in output.files.items():
            try:
                said_by_rank_0(world.transport, flag, write, asleep=True)
            except AgreedError as error:
                complain(str(error).removeprefix(f"{flag}: "), world.rank)
                whole = False
        said_by_rank_0(world.transport, "output", lambda: write_json(output.report, json_file), asleep=True)
        return output.report, whole

    how = {name: flags[name] for name in ("threads", "device_memory", "stall_abort", "elastic") if name in flags}
    if "link" in flags:
        how["link"] = parsed("--link", parse_links, flags["link"])
    if "rates" in flags:
        from dear_mpi.simulate.network import read_rates

        how["rates"] = parsed("--rates", read_rates, flags["rates"])
    how["stall_after_s"] = parsed("--stall-after", parse_seconds, flags.get("stall_after", STALL_AFTER))
    select_gpu(device)
    try:
        with aside(json_file) as set_aside:  # around all threads: another rank may end rank 0's
            report, whole = run_world(on_each_rank, facts=facts, **how)
    except TransportError:
        raise typer.Exit(1) from None  # the failing rank has reported the reason
    if not whole:
        raise typer.Exit(1)
    return report


def write_json(content: Any, path: Path | None) -> None:
    if path is not None:
        with replacing("--json", path) as file:
            file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
