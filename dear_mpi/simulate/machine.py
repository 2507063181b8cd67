"""What is known of a machine: what messages cost on it, and what they and updates do to each other.

A file says it. The rows of ``dear-mpi bench --json FILE.json`` tell most: a network is fitted to them, and with
``--beside`` they tell the contention. Of the links in ``dear-mpi doctor --json FILE.json`` the slowest count, inside
hosts and between them, because a ring is as fast as its slowest link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any

from dear_mpi.bench.case import Row
from dear_mpi.bench.fit import fit_network
from dear_mpi.collectives.program.json_file import read_json
from dear_mpi.collectives.program.network import Network
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.reporting.units import LEAST_BANDWIDTH, check_seconds
from dear_mpi.simulate.contention import FREE, Contention, contention_of
from dear_mpi.simulate.topology import Topology

KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "list[int]": (list,)}
KINDS |= {"float | None": (int, float, NoneType)}
MOST, MOST_US = 10**15, 86400e6  # a day
RANGES: dict[str, tuple[float, float]] = {  # of what a fit looks at
    **dict.fromkeys(("ranks", "segment_bytes"), (1, MOST)),
    **dict.fromkeys(("bytes", "count"), (0, MOST)),
    **dict.fromkeys(("update_us", "update_beside_us"), (0, MOST_US)),
    **dict.fromkeys(("p50_us", "mean_us"), (1e-6, MOST_US)),
    "delay_us": (-MOST_US, MOST_US),
}


@dataclass(frozen=True)
class Machine:
    """A machine of so many ranks.

    Attributes:
        network: what a message between two ranks costs; with a topology, between two that are next to one switch.
        origin: where its figures come from: ``given``, ``fitted``, ``measured`` or ``published``; or ``replayed``, if
            they are given and SimGrid has to say what follows from them.
        contention: what its file says about updates beside messages.
    """

    network: Network
    origin: str
    text: str
    topology: Topology | None = None
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
    """What a file says of a machine like the one that it was written on, with so many ranks.

    Raises:
        ValueError: it cannot be read, has neither rows of a benchmark nor links, or too few of them, or a figure in it
            is none that can be measured.
    """
    content = read_json("network", Path(text))
    if isinstance(content, dict) and "links" in content:
        network = slowest_links(f"network {text!r}", content, ranks)
        return Machine(network, "measured", text, contention=Contention(origin="unknown"))
    try:
        rows = [Row(**row) for row in content]
    except TypeError as error:
        files = "dear-mpi bench --json, or of dear-mpi doctor --json"
        raise ValueError(f"network {text!r} must be a file of {files}: {error}") from None
    for number, row in enumerate(rows):
        check_row(f"network {text!r}, row {number}", row)
    return Machine(fitted(text, rows), "fitted", text, contention=contention_of(rows))


def check_row(where: str, row: Row) -> None:
    """See that the values of a row are of their types, and those that matter in their ranges."""
    for field in fields(Row):
        value, kinds = getattr(row, field.name), KINDS[str(field.type)]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{where}: {field.name} must be of the type {field.type}, not {value!r}")
    if row.dtype not in DTYPES:
        raise ValueError(f"{where}: dtype must be one of {', '.join(DTYPES)}, not {row.dtype!r}")
    for name, (least, most) in RANGES.items():
        value = getattr(row, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"{where}: {name} must be from {least:g} to {most:g}, not {value!r}")


def fitted(text: str, rows: Sequence[Row]) -> Network:
    """The network that explains the means of a benchmark's rows. An iteration is the sum of many collectives, also of
    the few that take long, of which a median knows nothing.

    Raises:
        ValueError: they are too few.
    """
    fit = fit_network(rows, explains="mean_us")
    if fit is None:
        raise ValueError(f"network {text!r} has no rows of two sizes of an algorithm that sends messages")
    return fit.network


def slowest_links(where: str, report: dict[str, Any], ranks: int) -> Network:
    """The network of so many ranks on hosts of as many ranks as the first host has in a doctor's report.

    Raises:
        ValueError: the report has no links, or not what belongs to them.
    """
    kinds: dict[bool, list[Network]] = {False: [], True: []}  # by whether they are between hosts
    try:
        hosts = [rank["host"] for rank in report["ranks"]]
        for number, link in enumerate(report["links"]):
            latency_s = check_seconds(f"{where}, link {number}: latency_us * 1e-6", link["latency_us"] * 1e-6)
            bandwidth = link["GBps"] * 1e9
            if not bandwidth >= LEAST_BANDWIDTH:
                raise ValueError(f"{where}, link {number}: GBps must be above 0, not {link['GBps']!r}")
            kinds[hosts[link["source"]] != hosts[link["dest"]]].append(Network(latency_s, 1 / bandwidth))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{where} is no report of dear-mpi doctor --json: {error!r}") from None
    known = [links for links in kinds.values() if links]
    if not known:
        raise ValueError(f"{where} has no links: let the doctor examine two ranks or more")
    inside, *others = (Network(max(each.alpha for each in links), max(each.beta for each in links)) for links in known)
    if not others:
        return inside
    per_host = hosts.count(hosts[0])
    return Network(inside.alpha, inside.beta, hosts=tuple(rank // per_host for rank in range(ranks)), between=others[0])
