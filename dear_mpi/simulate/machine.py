"""Read link speeds from a machine's file: the worst counts, because a ring is as fast as its slowest link."""

from collections import defaultdict
from pathlib import Path

from msgspec import convert

from dear_mpi.bench.machine_file import Link, MachineFile
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.program.network import Network
from dear_mpi.reporting.units import parse_rates

INSIDE, BETWEEN = "inside", "between"


def read_file(what: str, text: str) -> MachineFile:
    """Read a machine's file. Raises ValueError."""
    with reading(what, Path(text), "dear-mpi bench --json, or of dear-mpi doctor --json") as content:
        found: MachineFile = convert(content, MachineFile)
    return found


def slowest(found: MachineFile) -> dict[str, Network]:
    """Return the worst latency and bandwidth of links inside hosts, and between hosts, if any."""
    hosts, kinds = [rank.host for rank in found.ranks], defaultdict[str, list[Link]](list)
    for link in found.links:
        kinds[INSIDE if hosts[link.source] == hosts[link.dest] else BETWEEN].append(link)
    return {
        kind: Network(max(each.latency_us for each in links) * 1e-6, 1e-9 / min(each.GBps for each in links))
        for kind, links in kinds.items()
    }


def read_rates(text: str) -> tuple[float, float]:
    """Read ``--rates``: bytes/s of a rank inside its host, and of a host to others.

    They come from two bandwidths, or from the links in a file of the doctor. Raises ValueError if the text cannot be
    read, or the file lacks one kind of link.
    """
    if not text.endswith(".json"):
        return parse_rates(text)
    kinds = slowest(read_file("rates", text))
    for kind in (INSIDE, BETWEEN):
        if kind not in kinds:
            take = "take dear-mpi doctor --json on several ranks of each of several hosts"
            raise ValueError(f"rates {text!r} has no links {kind} hosts: {take}")
    return 1 / kinds[INSIDE].beta, 1 / kinds[BETWEEN].beta
