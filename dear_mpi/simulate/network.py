"""What ``--network`` says: a text like that of ``--link``, two of them, a preset, or a file that ``bench`` wrote.

10gbit,50us                        each rank has a port of its own to one switch
10gbit,50us,o=2us,gamma=0.1ns      and 2 us of the processor for each message, 0.1 ns for each byte combined
100gbit,2us/10gbit,50us,hosts=16   inside hosts / between 16 hosts, on each of which the ranks share a port
FILE.json                          fitted from the rows of ``dear-mpi bench --json FILE.json``
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dear_mpi.bench.case import Row
from dear_mpi.bench.fit import fit_network
from dear_mpi.collectives.program.cost import Network
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import parse_link, parse_seconds

__all__ = ["PRESETS", "Preset", "Wires", "read_network"]


@dataclass(frozen=True)
class Preset:
    """A cluster that was published.

    Attributes:
        text: of its network.
        ranks: the most that it has.
        source: where its figures come from.
    """

    text: str
    ranks: int
    source: str


# 16 hosts of 4 GPUs. One alpha, beta and overhead for all models. The rates are what all-reduces of large models were
# seen to reach there, not those of the cards: 0.589 GB/s for an all-reduce of 64 ranks on 10 GbE, 2.6 on InfiniBand.
PRESETS = {
    "paper-10gbe": Preset("9.28gbit,30us", 64, "last-batch-ddl, table 1: BERT at 64 ranks"),
    "paper-100gbib": Preset("40.3gbit,5us", 64, "ddl-benchmarks, results of 2020-05-29: 32 ranks"),
}


@dataclass(frozen=True)
class Wires:
    """A network for so many ranks, and where its figures come from: ``given``, ``fitted`` or ``published``."""

    network: Network
    origin: str
    text: str


def read_network(text: str, ranks: int) -> Wires:
    """What a text means for a number of ranks.

    Raises:
        ValueError: it cannot be read, or has not so many ranks.

    >>> read_network("8gbit,0s,o=1s", 4).network
    Network(alpha=0.0, beta=1e-09, gamma=0.0, o=1.0, hosts=None, between=None)
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks}")
    if text.endswith(".json"):
        return Wires(fitted(Path(text)), "fitted", text)
    if text in PRESETS:
        preset = PRESETS[text]
        if ranks > preset.ranks:
            raise ValueError(f"network {text!r} has {preset.ranks} ranks, not {ranks}")
        return replace(read_network(preset.text, ranks), origin="published", text=f"{text}: {preset.source}")
    if not text[:1].isdigit():
        lookup("network", text, PRESETS)
    return Wires(spelled(text, ranks), "given", text)


def spelled(text: str, ranks: int) -> Network:
    """The network of a text without names."""
    hosts, classes = None, []
    for part in text.split("/"):
        fields = part.split(",")
        named = dict(field.split("=", 1) for field in fields if "=" in field)
        link = parse_link(",".join(field for field in fields if "=" not in field))
        hosts = named.pop("hosts", hosts)
        o, gamma = (parse_seconds(named.pop(name, "0s")) for name in ("o", "gamma"))
        if named:
            raise ValueError(f"network {text!r}: {', '.join(named)} is unknown. Allowed: o=, gamma=, hosts=")
        classes.append(Network(alpha=link.latency_s, beta=1 / link.bandwidth, o=o, gamma=gamma))
    if len(classes) == 1 and hosts is None:
        return classes[0]
    if len(classes) != 2 or hosts is None:
        raise ValueError(f"network {text!r} must be one link, or INSIDE/BETWEEN,hosts=N")
    return replace(classes[0], hosts=hosts_of(text, hosts, ranks), between=classes[1])


def hosts_of(text: str, hosts: str, ranks: int) -> tuple[int, ...]:
    """The host of each rank, in blocks."""
    if not hosts.isdecimal() or int(hosts) < 1 or ranks % int(hosts):
        raise ValueError(f"network {text!r}: hosts must divide the number of ranks, {ranks}, not {hosts}")
    return tuple(rank * int(hosts) // ranks for rank in range(ranks))


def fitted(path: Path) -> Network:
    """The network that explains the rows of a benchmark."""
    try:
        rows: Sequence[Row] = [Row(**row) for row in json.loads(path.read_text("utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"network {str(path)!r} must be a file of dear-mpi bench --json: {error}") from None
    fit = fit_network(rows)
    if fit is None:
        raise ValueError(f"network {str(path)!r} has no rows of two sizes of an algorithm that sends messages")
    return fit.network
