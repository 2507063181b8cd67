"""Read ``--network``: a text as for ``--link``, two of them, a preset, or a machine's file.

10gbit,50us                        each rank has a separate port to one switch
10gbit,50us,o=2us,gamma=0.1ns      and 2 us of the processor for each message, 0.1 ns for each byte combined
100gbit,2us/10gbit,50us,hosts=16   inside hosts / between 16 hosts, on each of which the ranks share a port
100gbit,2us/10gbit,50us,per_host=4 the same for any number of hosts of 4 ranks
NAME...                            of the group ``dear_mpi.networks``: a function of the text and the ranks
FILE.json                          of ``bench`` (fitted), ``links`` or ``doctor``, where the slowest links count
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import convert

from dear_mpi.bench.fit import fit_network
from dear_mpi.bench.machine_file import Link, MachineFile, Row
from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.program.user_file import entry_points_of, load_extra
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import check_seconds, parse_levels, parse_rates, parse_seconds

MOST_RANKS = 2**16

# Published clusters of 16 hosts of 4 GPUs. The values, not the cards' rates, reproduce most published throughputs for 4
# to 32 GPUs, of three models with and without overlap, within 10 % (docs/benchmarks/testbed.md).
PRESETS = {
    "paper-10gbe": "37gbit,10us/9.28gbit,19us,per_host=4",
    "paper-100gbib": "37gbit,10us/40gbit,8us,per_host=4",
}
PRESET_RANKS, PRESET_SOURCE = 64, "ddl-benchmarks, results of 2020-05-29"


@dataclass(frozen=True)
class Machine:
    """``origin``: ``given``, ``fitted``, ``measured`` or ``published``."""

    network: Network
    origin: str
    text: str

    def row(self) -> dict[str, Any]:
        network, between = self.network, self.network.between
        return {
            "network": self.text,
            "network_origin": self.origin,
            "alpha_s": network.alpha,
            "beta_s_per_B": network.beta,
            "gamma_s_per_B": network.gamma,
            "o_s": network.o,
            "hosts": network.hosts and len(set(network.hosts)),
            "alpha_between_s": between and between.alpha,
            "beta_between_s_per_B": between and between.beta,
            "o_between_s": between and between.o,
        }


def read_network(text: str, ranks: int) -> Machine:
    """Read a network for a number of ranks; ValueError if the text is wrong, or the network has fewer ranks.

    >>> read_network("8gbit,0s,o=1s", 4).network
    Network(alpha=0.0, beta=1e-09, gamma=0.0, o=1.0, hosts=None, between=None)
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks must be from 1 to {MOST_RANKS}, not {ranks}")
    name, shaped = re.split("[:,]", text)[0], entry_points_of("networks")
    if text.endswith(".json") and name not in shaped:
        return read_machine(text, ranks)
    if text.lower() in PRESETS:
        text = text.lower()
        if ranks > PRESET_RANKS:
            raise ValueError(f"network {text!r} has {PRESET_RANKS} ranks, not {ranks}")
        return Machine(spelled(PRESETS[text], ranks), "published", f"{text} = {PRESETS[text]}: {PRESET_SOURCE}")
    if name in shaped:
        found = load_extra("networks", name)(text, ranks)
        if not isinstance(found, Network):
            raise ValueError(f"network {text!r} must be read as a Network, not {found!r:.60}")
        return Machine(found, "given", text)
    if not text[:1].isdigit():
        try:
            lookup("network", name, dict.fromkeys([*PRESETS, *shaped]))
        except ValueError as error:
            raise ValueError(
                f"{error}; or a rate and a latency, as 10gbit,50us; or FILE.json of bench or doctor"
            ) from None
    return Machine(spelled(text, ranks), "given", text)


def spelled(text: str, ranks: int) -> Network:
    levels, blocks = parse_levels("network", text, ("o", "gamma"))
    found = list[Network]()
    for link, named in levels:
        o, gamma = (
            check_seconds(f"network {text!r}: {name}", parse_seconds(named.get(name, "0s"))) for name in ("o", "gamma")
        )
        if found and gamma:
            raise ValueError(f"network {text!r}: gamma= belongs to INSIDE, as sums cost the same for all messages")
        found.append(Network(alpha=link.latency_s, beta=1 / link.bandwidth, o=o, gamma=gamma))
    if blocks is None:
        return found[0]
    try:
        return replace(found[0], hosts=blocks.hosts(ranks), between=found[1])
    except ValueError as error:
        raise ValueError(f"network {text!r}: {error}") from None


def read_machine(text: str, ranks: int) -> Machine:
    """Read a machine's file, and scale it: each host has as many ranks as the first one."""
    found = read_file("network", text)
    if found.rows:
        return Machine(fitted(text, found.rows), "fitted", text)
    kinds, hosts = slowest(found), [rank.host for rank in found.ranks]
    network, *others = kinds.values()
    if others:
        per_host = hosts.count(hosts[0])
        blocks = tuple(rank // per_host for rank in range(ranks))
        network = replace(kinds[INSIDE], hosts=blocks, between=kinds[BETWEEN])
    return Machine(network, "measured", text)


def read_file(what: str, text: str) -> MachineFile:
    with reading(what, Path(text), "dear-mpi bench --json, or of dear-mpi doctor --json") as content:
        found: MachineFile = convert(content, MachineFile)
    return found


def fitted(text: str, rows: Sequence[Row]) -> Network:
    """Fit a network to means: an iteration includes rare slow calls, unlike a median."""
    fit = fit_network(rows, explains="mean_us")
    if fit is None:
        raise ValueError(f"network {text!r} has no rows of two sizes of an algorithm that sends messages")
    return fit.network


def slowest(found: MachineFile) -> dict[str, Network]:
    hosts, kinds = [rank.host for rank in found.ranks], defaultdict[str, list[Link]](list)
    for link in found.links:
        kinds[INSIDE if hosts[link.source] == hosts[link.dest] else BETWEEN].append(link)
    return {
        kind: Network(max(each.latency_us for each in links) * 1e-6, 1e-9 / min(each.GBps for each in links))
        for kind, links in kinds.items()
    }


def read_rates(text: str) -> tuple[float, float]:
    """Read ``--rates``, a text or a doctor's file: bytes/s of a rank inside its host, and of a host to others."""
    if not text.endswith(".json"):
        return parse_rates(text)
    kinds = slowest(read_file("rates", text))
    for kind in (INSIDE, BETWEEN):
        if kind not in kinds:
            take = "take dear-mpi doctor --json on several ranks of each of several hosts"
            raise ValueError(f"rates {text!r} has no links {kind}: {take}")
    return 1 / kinds[INSIDE].beta, 1 / kinds[BETWEEN].beta
