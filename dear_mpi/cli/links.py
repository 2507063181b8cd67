"""Run ``dear-mpi links``: measure every pair of ranks."""

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dear_mpi.bench.machine_file import Link
from dear_mpi.cli.files import check_files, written_by
from dear_mpi.cli.flags import Flags, flag, shared
from dear_mpi.cli.run import run_ranks, with_flags
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.doctor.links import Pair, at_once, device_ones, measure_links, one_at_a_time, parse_message
from dear_mpi.doctor.show import LinksReport, show_links
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.streams import STREAMS, Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar, console, note
from dear_mpi.reporting.units import plural
from dear_mpi.training.declared import parsed

QUIET_S = 2.0  # longer work is announced
AT_ONCE = "Measure pairs without a common rank at the same time: sooner done, but they may share a wire or a core."
FLAGS = shared("device_memory", "link", "threads", "stall_after", "stall_abort", "json_file")
FLAGS |= flag("device", str, "Memory of the messages: cpu or cuda.")
FLAGS |= flag("size", str, "Size of the messages that measure bandwidth.")
FLAGS |= flag("at_once", bool, AT_ONCE)
FLAGS |= flag("worst", int, "How many pairs the table has, the worst ones.", min=1)


@with_flags(FLAGS, device="cpu", size="1MiB", at_once=False, worst=20)
def links(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi links --json result_links.json"""
    check_files({}, written_by(flags))
    lookup("device", flags["device"], STREAMS)
    if flags["device"] == "cpu" and "device_memory" in flags:
        raise ValueError("--device-memory does not apply to the device 'cpu'")
    nbytes = parsed("--size", parse_message, flags["size"])
    run_ranks(lambda world: links_of(world, flags, nbytes), flags, device=flags["device"])


def links_of(world: World, flags: Flags, nbytes: int) -> dict[str, Any]:
    opened = list[Streams]()
    agree(world.transport, "links", lambda: asked(world, flags, nbytes, opened))
    rounds = (at_once if flags["at_once"] else one_at_a_time)(world.size)
    with opened[0].compute.use():
        path = "host" if flags["device"] == "cpu" else path_of(world)
        found = measured(world, rounds, nbytes, path)
    report = LinksReport(found, host_names(world.transport), world.transport.name, flags["at_once"])
    show_links(console(world), report, flags["worst"])
    return report.as_object()


def asked(world: World, flags: Flags, nbytes: int, opened: list[Streams]) -> dict[str, Any]:
    """Return the values that all ranks must agree on. Opens the device, or raises if there is none."""
    if world.size < 2:
        raise ValueError("there must be at least 2 ranks, not 1: mpirun -n 2, or --threads 2")
    opened.append(open_streams(flags["device"]))
    return {"size": nbytes, "device": flags["device"], "at_once": flags["at_once"]}


def path_of(world: World) -> str:
    """Collective: return the path of device memory here, by a trial if necessary."""
    return "device" if world.transport.takes(device_ones(1, np.uint8)) else "staged"


def host_names(transport: Transport) -> list[str]:
    """Name each rank's host, by numbers if several hosts share a name (emulated ones do)."""
    hosts, names = transport.hosts, transport.gather_values(os.uname().nodename)
    if len(set(names)) < len(set(hosts)):
        return [f"host {host}" for host in hosts]
    return [names[hosts.index(host)] for host in hosts]


def measured(world: World, rounds: Sequence[Sequence[Pair]], nbytes: int, path: str) -> list[Link]:
    """Measure all rounds; the first round predicts the duration of the rest."""
    begin_s = time.perf_counter()
    found = measure_links(world.transport, rounds[:1], nbytes, path)
    left_s = (time.perf_counter() - begin_s) * (len(rounds) - 1)
    if left_s > QUIET_S:
        pairs = plural(world.size * (world.size - 1) // 2, "pair")
        note(world, f"{pairs} in {plural(len(rounds), 'round')}: about {left_s:.0f} s more")
    with bar(world, len(rounds), format_pairs(rounds[0])) as progress:
        progress(format_pairs(rounds[0]))
        left = measure_links(world.transport, rounds[1:], nbytes, path, lambda pairs: progress(format_pairs(pairs)))
    return found + left


def format_pairs(pairs: Sequence[Pair]) -> str:
    """Name the first pairs, for the progress bar."""
    one, other = pairs[0]
    return f"ranks {one} and {other}"
