import os
from typing import Any

import numpy as np
import typer

from dear_mpi.cli.flags import Flags, check_files, flag, shared, written_by
from dear_mpi.cli.run import run_ranks, with_flags
from dear_mpi.collectives.launch.cuda_aware import OVERRIDES
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.contrib.doctor.examine import examine, look
from dear_mpi.contrib.doctor.findings import findings
from dear_mpi.contrib.doctor.links import all_pairs, device_ones, measure_links, parse_message
from dear_mpi.contrib.doctor.show import as_object, show_doctor, show_links
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.streams import STREAMS, Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.reporting.declared import parsed
from dear_mpi.reporting.terminal import bar, console

SIZE = flag("size", str, "Size of the messages that measure bandwidth.")
EXAMINED = flag("device", str | None, "What to examine: cpu or cuda.", show_default="cuda on ranks that have a GPU")


@with_flags(shared("device_memory", "json_file") | EXAMINED | SIZE, device_memory="auto", size="1MiB")
def doctor(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi doctor"""
    launch, device, device_memory = launch_of(os.environ), flags.get("device"), flags["device_memory"]

    def command(world: World) -> dict[str, Any]:
        facts = examine(world, alone, device_memory=device_memory, nbytes=nbytes)
        found = findings(facts)
        if launch.rank == world.rank == 0:  # without MPI, each process has its own world
            show_doctor(facts, found)
        return as_object(facts, found)

    alone = look(launch, device)  # collective: before errors of single ranks
    lookup("device", "cpu" if device is None else device, STREAMS)
    lookup("device_memory", device_memory, OVERRIDES)
    nbytes = parsed("--size", parse_message, flags["size"])
    file = flags.get("json_file") if launch.rank == 0 else None
    report = run_ranks(command, {"json_file": file, "threads": None if alone.usable else 1})
    raise typer.Exit(int(any(finding["severity"] == "broken" for finding in report["findings"])))


RUN = shared("device_memory", "link", "threads", "stall_after", "stall_abort", "json_file")


@with_flags(RUN | flag("device", str, "Memory of the messages: cpu or cuda.") | SIZE, device="cpu", size="1MiB")
def links(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi links --json result_links.json"""
    check_files({}, written_by(flags))
    device, nbytes, opened = flags["device"], parsed("--size", parse_message, flags["size"]), list[Streams]()
    lookup("device", device, STREAMS)
    if device == "cpu" and "device_memory" in flags:
        raise ValueError("--device-memory does not apply to the device 'cpu'")

    def command(world: World) -> dict[str, Any]:
        def asked() -> dict[str, Any]:
            if world.size < 2:
                raise ValueError("there must be at least 2 ranks, not 1: mpirun -n 2, or --threads 2")
            opened.append(open_streams(device))
            return {"size": nbytes, "device": device}

        agree(world.transport, "links", asked)
        pairs = all_pairs(world.size)
        with opened[-1].compute.use(), bar(world, len(pairs), "pairs of ranks") as progress:
            path = "host"
            if device != "cpu":
                path = "device" if world.transport.takes(device_ones(1, np.uint8)) else "staged"
            found = measure_links(world.transport, pairs, nbytes, path, lambda pair: progress(f"ranks {pair}"))
        return show_links(console(world), found, host_names(world.transport), world.transport.name)

    run_ranks(command, flags, device=device)


def host_names(transport: Transport) -> list[str]:
    """Name each rank's host, by numbers if several hosts share a name (emulated ones do)."""
    hosts, names = transport.hosts, transport.gather_values(os.uname().nodename)
    if len(set(names)) < len(set(hosts)):
        return [f"host {host}" for host in hosts]
    return [names[hosts.index(host)] for host in hosts]
