"""Read ``--network``: a text as for ``--link``, two of them, a preset, or a machine's file.

10gbit,50us                        each rank has a separate port to one switch
10gbit,50us,o=2us,gamma=0.1ns      and 2 us of the processor for each message, 0.1 ns for each byte combined
100gbit,2us/10gbit,50us,hosts=16   inside hosts / between 16 hosts, on each of which the ranks share a port
100gbit,2us/10gbit,50us,per_host=4 the same for any number of hosts of 4 ranks
fattree:8x8,2,10gbit,50us          a topology (``topology.py``) of such links, on which messages meet
FILE.json                          what ``bench``, ``links`` or ``doctor`` wrote (``bench/machine_file.py``)

A network is fitted to the rows of ``dear-mpi bench``. For files of ``links`` or ``doctor``, the slowest link inside
hosts and the slowest one between them count, because a ring is as fast as its slowest link.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dear_mpi.bench.fit import fit_network
from dear_mpi.bench.machine_file import MachineFile, Row
from dear_mpi.collectives.program.network import Network
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import check_seconds, parse_levels, parse_link, parse_seconds, whole_number
from dear_mpi.simulate.machine import BETWEEN, INSIDE, read_file, slowest
from dear_mpi.simulate.topology import TOPOLOGIES, ShapedNetwork, parse_topology

MOST_RANKS = 2**16

# Published clusters of 16 hosts of 4 GPUs. The values reproduce most published throughputs for 4 to 32 GPUs, of three
# models with and without overlap, within 10 % (docs/benchmarks/testbed.md). They are not the cards' rates.
PRESETS = {
    "paper-10gbe": "37gbit,10us/9.28gbit,19us,per_host=4",
    "paper-100gbib": "37gbit,10us/40gbit,8us,per_host=4",
}
PRESET_RANKS, PRESET_SOURCE = 64, "ddl-benchmarks, results of 2020-05-29"


@dataclass(frozen=True)
class Machine:
    """Describe a machine with some number of ranks.

    Attributes:
        network: the cost of a message between two ranks.
        origin: the source of the figures: ``given``, ``fitted``, ``measured`` or ``published``.
    """

    network: Network
    origin: str
    text: str

    def row(self) -> dict[str, Any]:
        """Return the network's keys of ``--json``; those for links between hosts are None if all messages cost the
        same."""
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


def read_network(text: str, ranks: int) -> Machine:
    """Read a network for a number of ranks.

    Raises:
        ValueError: the text cannot be read, or the network has another number of ranks.

    >>> read_network("8gbit,0s,o=1s", 4).network
    Network(alpha=0.0, beta=1e-09, gamma=0.0, o=1.0, hosts=None, between=None)
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks must be from 1 to {MOST_RANKS}, not {ranks}")
    if text.endswith(".json"):
        return read_machine(text, ranks)
    if text.lower() in PRESETS:
        text = text.lower()
        if ranks > PRESET_RANKS:
            raise ValueError(f"network {text!r} has {PRESET_RANKS} ranks, not {ranks}")
        spelled_out = f"{text} = {PRESETS[text]}: {PRESET_SOURCE}"
        return replace(read_network(PRESETS[text], ranks), origin="published", text=spelled_out)
    if re.split("[:,]", text)[0] in TOPOLOGIES:
        return shaped(text, ranks)
    if not text[:1].isdigit():
        try:
            lookup("network", text.partition(":")[0], dict.fromkeys([*PRESETS, *TOPOLOGIES]))
        except ValueError as error:
            raise ValueError(
                f"{error}; or a rate and a latency, as 10gbit,50us; or FILE.json of bench or doctor"
            ) from None
    return Machine(spelled(text, ranks), "given", text)


def spelled(text: str, ranks: int) -> Network:
    """Read a network from a text without names."""
    levels, blocks = parse_levels("network", text, ("o", "gamma"))
    found = list[Network]()
    for level in levels:
        o, gamma = (
            check_seconds(f"network {text!r}: {name}", parse_seconds(level.named.get(name, "0s")))
            for name in ("o", "gamma")
        )
        if found and gamma:
            raise ValueError(f"network {text!r}: gamma= belongs to INSIDE, as sums cost the same for all messages")
        found.append(Network(alpha=level.link.latency_s, beta=1 / level.link.bandwidth, o=o, gamma=gamma))
    if blocks is None:
        return found[0]
    try:
        return replace(found[0], hosts=blocks.hosts(ranks), between=found[1])
    except ValueError as error:
        raise ValueError(f"network {text!r}: {error}") from None


def shaped(text: str, ranks: int) -> Machine:
    """Read a topology and the cost of its links; a number without a unit belongs to the topology."""
    fields = text.split(",")
    begin = 2 if fields[1:] and whole_number(fields[1]) is not None else 1
    topology, link = parse_topology(",".join(fields[:begin])), fields[begin:]
    topology.check_room(ranks)
    named = [field for field in link if "=" in field]
    if named:
        raise ValueError(f"network {text!r}: a topology takes no {named[0]}: its links have a rate and a latency")
    if len(link) not in (1, 2):
        raise ValueError(f"network {text!r} must be a topology and a link, as {topology},10gbit,50us")
    found = parse_link(",".join(link), f"network {text!r}: the")
    network = Network(alpha=found.latency_s, beta=1 / found.bandwidth)
    if topology.sizes:
        network = ShapedNetwork(network.alpha, network.beta, topology=topology)
    return Machine(network, "given", text)


def read_machine(text: str, ranks: int) -> Machine:
    """Read the file of a machine and scale it to this number of ranks.

    Raises ValueError if it cannot be read, is no ``MachineFile``, or has too few rows.
    """
    found = read_file("network", text)
    if not found.rows:
        return Machine(slowest_links(found, ranks), "measured", text)
    return Machine(fitted(text, found.rows), "fitted", text)


def fitted(text: str, rows: Sequence[Row]) -> Network:
    """Fit a network to the means of a benchmark's rows.

    An iteration is the sum of many collectives, including rare slow ones, which a median ignores.
    """
    fit = fit_network(rows, explains="mean_us")
    if fit is None:
        raise ValueError(f"network {text!r} has no rows of two sizes of an algorithm that sends messages")
    return fit.network


def slowest_links(found: MachineFile, ranks: int) -> Network:
    """Return the network for hosts with as many ranks as the file's first host."""
    kinds = slowest(found)
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    hosts = [rank.host for rank in found.ranks]
    per_host = hosts.count(hosts[0])
    return replace(kinds[INSIDE], hosts=tuple(rank // per_host for rank in range(ranks)), between=kinds[BETWEEN])
