"""Read networks: InfraGraph's infrastructures, and ``lstopo`` XML of one machine.

Both become a graph of parts and links, whose GPUs (InfraGraph: ``xpu``) are the ranks. Two ranks have a link with the
rate of all paths with the fewest links. Ports limit what ranks share: the links of a rank, those that leave a machine
(InfraGraph), and those above a bridge (lstopo).

Sources: Keysight/infragraph (schema); hwloc 2 (``pci_link_speed`` in GB/s, NVLinkBandwidth and XGMIBandwidth in MB/s).
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from dear_mpi.contrib.networks.formats.xml import Attributes, read_elements
from dear_mpi.contrib.networks.graph import Graph, Port

RATES = {"gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9}
SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
GPU_CLASSES = ("0300", "0302", "0380", "1200")  # of PCI: display, 3D, other display, accelerator
MATRICES = ("NVLinkBandwidth", "XGMIBandwidth")
MOST_COUNT, MOST_PARTS, MOST_DEPTH = 4096, 1 << 17, 100

Edges: TypeAlias = Mapping[str, Mapping[str, float]]
"""Bytes/s by both ends."""


def reached(edges: Edges, start: str, ends: Collection[str]) -> dict[str, float]:
    """Return the rate of the shortest paths to each end that pass no other end."""
    rates, hops, waiting = {start: math.inf}, {start: 0}, deque([start])
    while waiting:
        at = waiting.popleft()
        for other, rate in edges[at].items() if at == start or at not in ends else ():
            if other not in hops:
                hops[other], rates[other] = hops[at] + 1, 0.0
                waiting.append(other)
            if hops[other] == hops[at] + 1:
                rates[other] += min(rates[at], rate)
    return {end: rates[end] for end in ends if end in rates and end != start}


def graph_of(edges: Edges, ranks: Collection[str], groups: Iterable[Iterable[str]], alpha: float) -> Graph:
    """``groups``: parts of the machine whose links to the rest are shared."""
    numbers, links, ports = (
        {name: rank for rank, name in enumerate(ranks)},
        dict[tuple[int, int], float](),
        list[Port](),
    )
    for name, rank in numbers.items():
        links.update({(rank, numbers[other]): rate for other, rate in reached(edges, name, numbers).items()})
    for group in ([[rank] for rank in ranks], groups):
        for names in map(set, group):
            inside = tuple(sorted(numbers[name] for name in names & numbers.keys()))
            rate = sum(rate for name in names for other, rate in edges[name].items() if other not in names)
            if 0 < len(inside) < len(numbers) and 0 < rate < math.inf:
                ports.append(Port(inside, rate, rate))
    if not links:
        raise ValueError(f"{len(numbers)} GPUs have known rates, and no two of them are connected")
    return Graph(len(numbers), links, tuple(dict.fromkeys(ports)), alpha)


class InfraGraph:
    def __init__(self, content: Any) -> None:
        self.content, self.left, self.alpha = content, MOST_PARTS, 0.0
        self.edges = defaultdict[str, dict[str, float]](dict)
        self.ranks: list[str] = []
        self.machines: list[str] = []
        for instance in content.get("instances") or ():
            for number in range(self.count(instance)):
                self.machines.append(f"{instance['name']}.{number}.")
                self.build(self.machines[-1], self.find(content, "devices", instance["device"]))
        for edge in content.get("edges") or ():
            self.connect(self.ends(edge["ep1"]), self.ends(edge["ep2"]), edge, content)

    def count(self, part: Any) -> int:
        found = part.get("count", 1)
        if type(found) is not int or not 0 <= found <= MOST_COUNT:
            raise ValueError(f"the count of {part.get('name')!r:.60} must be from 0 to {MOST_COUNT}, not {found!r:.30}")
        self.left -= found
        if self.left < 0:
            raise ValueError(f"it has more than {MOST_PARTS} parts and links")
        return found

    def find(self, where: Any, what: str, name: str) -> Any:
        for each in where.get(what) or ():
            if each.get("name") == name:
                return each
        raise ValueError(f"{what} have no {name!r:.60}")

    def build(self, prefix: str, device: Any) -> None:
        for part in device.get("components") or ():
            names = [f"{prefix}{part['name']}.{number}" for number in range(self.count(part))]
            if part.get("choice") == "xpu":
                self.ranks += names
            for name in names if part.get("choice") == "device" and prefix.count(".") < 8 else ():
                self.build(f"{name}.", self.find(self.content, "devices", part["name"]))
        for edge in device.get("edges") or ():
            one, other = ([prefix + name for name in self.inner(device, edge[end])] for end in ("ep1", "ep2"))
            self.connect(one, other, edge, device)

    def inner(self, device: Any, end: Any) -> list[str]:
        return self.parts(device, f"{end['device']}.{end['component']}" if end.get("device") else end["component"])

    def ends(self, end: Any) -> list[str]:
        name, numbers = self.slice(end["instance"])
        instance = self.find(self.content, "instances", name)
        inner = self.parts(self.find(self.content, "devices", instance["device"]), end["component"])
        hosts = numbers_of(numbers, self.count(instance))
        return [f"{name}.{host}.{each}" for host, each in product(hosts, inner)]

    def slice(self, text: str) -> tuple[str, str]:
        found = re.fullmatch(r"([^\[\]]+)(?:\[([-\d:]{1,30})\])?", text)
        if not found:
            raise ValueError(f"{text!r:.60} is no endpoint, such as nic[0:2]")
        return found[1], found[2] or ""

    def parts(self, device: Any, text: str) -> list[str]:
        """Return the parts of a device that an endpoint names, such as ``cx5[0:2].port[1]``."""
        head, _, rest = text.partition(".")
        name, numbers = self.slice(head)
        part = self.find(device, "components", name)
        names = [f"{name}.{number}" for number in numbers_of(numbers, self.count(part))]
        inner = self.parts(self.find(self.content, "devices", name), rest) if rest else []
        return [f"{one}.{other}" for one, other in product(names, inner)] if rest else names

    def connect(self, ones: list[str], others: list[str], edge: Any, where: Any) -> None:
        link = self.find(where, "links", edge["link"])
        physical = link.get("physical") or {}
        bandwidth, latency = physical.get("bandwidth") or {}, physical.get("latency") or {}
        rate = sum(float(bandwidth.get(unit) or 0) * factor for unit, factor in RATES.items())
        self.alpha = max(self.alpha, sum(float(latency.get(unit) or 0) * factor for unit, factor in SECONDS.items()))
        straight = edge.get("scheme") == "one2one"
        self.left -= max(len(ones), len(others)) if straight else len(ones) * len(others)
        if self.left < 0 or not 0 <= rate < math.inf:
            raise ValueError(
                f"link {edge['link']!r:.60} connects {len(ones)} with {len(others)} parts at {rate} bytes/s"
            )
        for one, other in (zip(ones, others, strict=False) if straight else product(ones, others)) if rate else ():
            if one != other:
                self.edges[one][other] = self.edges[other][one] = rate


def numbers_of(text: str, count: int) -> list[int]:
    """
    >>> numbers_of("", 3), numbers_of("1", 3), numbers_of("0:3:2", 3)
    ([0, 1, 2], [1], [0, 2])
    """
    if text and ":" not in text:
        return [range(count)[int(text)]]
    return list(range(count)[slice(*(int(each) if each else None for each in text.split(":")))])


def read_infragraph(content: Any) -> Graph:
    """ValueErrors name the device, link or endpoint."""
    try:
        found = InfraGraph(content if isinstance(content, dict) else {})
    except (AttributeError, KeyError, IndexError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it has another form: {error!r:.90}") from None
    if not found.machines:
        raise ValueError("it must have instances and edges (InfraGraph), or flows (TE-CCL)")
    groups = [[name for name in found.edges if name.startswith(machine)] for machine in found.machines]
    return graph_of(found.edges, found.ranks, groups, found.alpha)


def read_lstopo(path: Path) -> Graph:
    """ValueErrors name the line."""
    edges, ranks = defaultdict[str, dict[str, float]](dict), dict[str, None]()
    above, below, ids = list[str](), dict[str, list[str]](), dict[str, str]()
    matrices, buffer = list[tuple[str, list[str], list[str]]](), list[str]()

    def begin(name: str, attributes: Attributes, line: int) -> None:
        buffer.clear()
        if name.startswith("distances2"):
            matrices.append((attributes.get("name", ""), [], []))
        elif name == "object":
            part, kind = attributes.get("gp_index", f"line {line}"), attributes.get("type", "")
            if kind in ("Bridge", "PCIDev"):
                bridges = [each for each in above if each in below]
                rate = float(attributes.get("pci_link_speed", 0)) * 1e9
                speed = math.inf if attributes.get("depth") == "0" else rate
                if speed:
                    parent = bridges[-1] if bridges else "machine"
                    edges[parent][part] = edges[part][parent] = speed
                if kind == "Bridge":
                    below[part] = [part]
                elif rate and attributes.get("pci_type", "")[:4] in GPU_CLASSES:
                    ranks[part] = None
                for bridge in bridges:
                    below[bridge].append(part)
            above.append(part)
            ids[f"{kind}:{part}"] = next((each for each in above if each in ranks), part)
            if len(above) > MOST_DEPTH:
                raise ValueError(f"more than {MOST_DEPTH} objects inside each other")

    def end(name: str) -> None:
        if name == "object":
            above.pop()
        elif name in ("indexes", "u64values") and matrices:
            _, indexes, values = matrices[-1]
            (indexes if name == "indexes" else values).extend("".join(buffer).split())

    read_elements(path, begin, end, buffer.append)
    for name, indexes, values in matrices:
        if name in MATRICES and len(values) == len(indexes) ** 2:
            parts = [ids.get(each if ":" in each else f"OSDev:{each}", each) for each in indexes]
            for (one, other), value in zip(product(parts, parts), values, strict=True):
                if one != other and value.isdecimal() and len(value) < 12 and int(value):
                    edges[one][other] = int(value) * 1e6
    try:
        return graph_of(edges, ranks, below.values(), 0.0)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
