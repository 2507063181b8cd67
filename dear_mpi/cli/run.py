"""What commands share: they run on all ranks, write JSON, and end with one line and exit code 2 if input is bad."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from dear_mpi.cli.files import Written, try_files, written_by
from dear_mpi.cli.flags import STALL_AFTER, Flags, chosen
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.errors import AgreedError, ProgramError, TransportError
from dear_mpi.collectives.transports.agree import by_rank_0
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import World, launched_rank, run_world
from dear_mpi.reporting.files import aside, replacing
from dear_mpi.reporting.links import parse_links
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import parse_seconds
from dear_mpi.simulate.machine import read_rates
from dear_mpi.training.declared import parsed
from dear_mpi.training.runs.config import Config

# Flags of a job, for run_ranks.
JOB = ("device_memory", "threads", "link", "rates", "stall_after", "stall_abort", "json_file")


@contextmanager
def complaining(*, mpi: bool) -> Iterator[None]:
    """Turn bad input into one line of rank 0 on standard error, and exit code 2 on all ranks.

    Args:
        mpi: whether to ask MPI, which this may start, who is rank 0; otherwise the launcher's variables say it.
    """
    try:
        yield
    except (ValueError, AgreedError, ProgramError) as error:
        told = (mpi or launch_of(os.environ).size > 1) and not isinstance(error, AgreedError)
        agreed = agreed_on(error) if told else error
        complain(str(agreed), launched_rank() if mpi else launch_of(os.environ).rank)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print(f"rank {launch_of(os.environ).rank} was interrupted", file=sys.stderr)
        raise


def agreed_on(error: Exception) -> Exception:
    """An error of this rank's input as all ranks raise it: the others may wait for it in ``run_world``."""

    def complain(rank: int) -> Mapping[str, Any]:
        raise error

    try:
        run_world(lambda world: None, facts=complain, stall_after_s=parse_seconds(STALL_AFTER))
    except AgreedError as agreed:
        return error if str(agreed) == f"input: {error}" else agreed  # all ranks alike: in its own words
    except ValueError:
        pass  # no MPI can be used, so no rank waits in it
    return error


def complain(message: str, rank: int) -> None:
    """Say it if this is rank 0: on one line however long it is, so that it can be searched for."""
    if rank == 0:
        console(stderr=True).print(f"error: {message}", style="bold red", markup=False, soft_wrap=True)


def check_alone(what: str, threads: int | None) -> None:
    """Refuse to start what runs in one process as several."""
    if threads is not None and launch_of(os.environ).size > 1:
        raise ValueError(f"{what} runs in one process: start it without mpirun")


def run_ranks(
    command: Callable[[World], Any],
    json_file: Path | None = None,
    *,
    others: Written = (),
    device: str = "cpu",
    stall_after: str = STALL_AFTER,
    stall_abort: bool = False,
    link: str | None = None,
    rates: str | None = None,
    **how: Any,
) -> Any:
    """Call ``command(world)`` as every rank (``how``: see ``run_world``); the result, which rank 0 writes as JSON.

    ``stall_after`` is a time, such as 30s, ``link`` is like 10gbit,50us, and ``rates`` like 100gbit/10gbit. Before the
    work rank 0 sees that this file and ``others``, which ``command`` writes, can be written. An older report is
    ``aside`` during the work: where all processes of a host die, a launcher may return 0, and then no report must be
    there.
    """

    def facts(rank: int) -> Mapping[str, Any]:
        if rank == 0:
            try_files([("--json", json_file), *others] if json_file is not None else others)
        return {"command": " ".join(sys.argv[1:2])}

    def on_each_rank(world: World) -> Any:
        if world.rank == 0:
            set_aside()
        result = command(world)
        by_rank_0(world.transport, "output", lambda: write_json(result, json_file))
        return result

    how["link"] = None if link is None else parsed("--link", parse_links, link)
    how["rates"] = None if rates is None else parsed("--rates", read_rates, rates)
    how |= {"stall_after_s": parsed("--stall-after", parse_seconds, stall_after), "stall_abort": stall_abort}
    if stall_abort and not how["stall_after_s"]:
        raise ValueError(f"--stall-abort needs a --stall-after above 0s, not {stall_after}")
    select_gpu(device)
    try:
        with aside(json_file) as set_aside:  # around all ranks: of threads, rank 0 may end because another did
            return run_world(on_each_rank, facts=facts, **how)
    except TransportError:
        raise typer.Exit(1) from None  # the rank that failed has said why


def write_json(content: Any, path: Path | None) -> None:
    """Write a report to the file of ``--json``, if it is asked for."""
    if path is not None:
        with replacing("--json", path) as file:
            file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def run_job(command: Callable[[World, Config], Any], flags: Flags) -> None:
    """Call ``command`` as every rank of the training job that the flags ask for."""
    threads = flags.get("threads")
    with complaining(mpi=threads is None):
        check_alone("--threads", threads)
        config = Config.of(chosen(Config, flags))
        if config.device == "cpu" and "device_memory" in flags:
            raise ValueError("--device-memory does not apply to the device 'cpu'")
        how = {name: flags[name] for name in JOB if name in flags}
        others = [(flag, path) for flag, path in written_by(flags) if flag != "--json"]
        run_ranks(lambda world: command(world, config), device=config.device, others=others, **how)
