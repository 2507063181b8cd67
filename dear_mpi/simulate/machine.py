"""What is known of a machine: what messages cost on it, and what they and updates do to each other.

A file says it (``bench/machine_file.py``). Rows of ``dear-mpi bench`` tell most: a network is fitted to them, and with
``--beside`` they tell the contention. Of the links of ``dear-mpi doctor`` the slowest count, inside hosts and between
them, because a ring is as fast as its slowest link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import convert

from dear_mpi.bench.case import Row
from dear_mpi.bench.fit import fit_network
from dear_mpi.bench.machine_file import Link, MachineFile
from dear_mpi.collectives.program.json_file import read_json
from dear_mpi.collectives.program.network import Network
from dear_mpi.reporting.units import parse_rates
from dear_mpi.simulate.contention import FREE, Contention, contention_of

INSIDE, BETWEEN = "inside", "between"


@dataclass(frozen=True)
class Machine:
    """A machine of so many ranks.

    Attributes:
        network: what a message between two ranks costs.
        origin: where its figures come from: ``given``, ``fitted``, ``measured`` or ``published``.
        contention: what its file says about updates beside messages.
    """

    network: Network
    origin: str
    text: str
    contention: Contention = FREE

    def row(self) -> dict[str, Any]:
        """What ``--json`` has of the network; what is between hosts is None where all messages cost the same."""
        network, between = self.network, self.network.between
        return {
            "network": self.text,
            "network_origin": self.origin,
            "alpha_s": network.alpha,
            "beta_s_per_B": network.beta,
            "gamma_s_per_B": network.gamma,
            "o_s": network.o,
            "hosts": None if network.hosts is None else len(set(network.hosts)),
            "alpha_between_s": None if between is None else between.alpha,
            "beta_between_s_per_B": None if between is None else between.beta,
            "o_between_s": None if between is None else between.o,
        }


def read_machine(text: str, ranks: int) -> Machine:
    """What a file says of a machine like the one that it was written on, with so many ranks; a ValueError if it cannot
    be read, is no ``MachineFile``, or has too few rows."""
    found = read_file("network", text)
    if not found.rows:
        return Machine(slowest_links(found, ranks), "measured", text, contention=Contention(origin="unknown"))
    return Machine(fitted(text, found.rows), "fitted", text, contention=contention_of(found.rows))


def read_file(what: str, text: str) -> MachineFile:
    """The file of a machine, or a ValueError."""
    content = read_json(what, Path(text))
    try:
        return convert(content, MachineFile)
    except ValueError as error:
        files = "dear-mpi bench --json, or of dear-mpi doctor --json"
        raise ValueError(f"{what} {text!r} must be a file of {files}: {error}") from None


def fitted(text: str, rows: Sequence[Row]) -> Network:
    """The network that explains the means of a benchmark's rows. An iteration is the sum of many collectives, also of
    the few that take long, of which a median knows nothing."""
    fit = fit_network(rows, explains="mean_us")
    if fit is None:
        raise ValueError(f"network {text!r} has no rows of two sizes of an algorithm that sends messages")
    return fit.network


def slowest_links(found: MachineFile, ranks: int) -> Network:
    """The network of so many ranks on hosts of as many ranks as the first host has in the file."""
    kinds = slowest(found)
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    hosts = [rank.host for rank in found.ranks]
    per_host = hosts.count(hosts[0])
    return replace(kinds[INSIDE], hosts=tuple(rank // per_host for rank in range(ranks)), between=kinds[BETWEEN])


def slowest(found: MachineFile) -> dict[str, Network]:
    """The worst latency and bandwidth of the links inside hosts, and of those between them, where there are any."""
    hosts, kinds = [rank.host for rank in found.ranks], defaultdict[str, list[Link]](list)
    for link in found.links:
        kinds[INSIDE if hosts[link.source] == hosts[link.dest] else BETWEEN].append(link)
    return {
        kind: Network(max(each.latency_us for each in links) * 1e-6, 1e-9 / min(each.GBps for each in links))
        for kind, links in kinds.items()
    }


def read_rates(text: str) -> tuple[float, float]:
    """What ``--rates`` says: bytes/s of a rank inside its host, and of a host to others; of two bandwidths, or of the
    links in a file of the doctor. A ValueError if it cannot be read, or the file lacks one of the two kinds."""
    if not text.endswith(".json"):
        return parse_rates(text)
    kinds = slowest(read_file("rates", text))
    for kind in (INSIDE, BETWEEN):
        if kind not in kinds:
            take = "take dear-mpi doctor --json on several ranks of each of several hosts"
            raise ValueError(f"rates {text!r} has no links {kind} hosts: {take}")
    return 1 / kinds[INSIDE].beta, 1 / kinds[BETWEEN].beta
