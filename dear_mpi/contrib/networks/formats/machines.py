"""Read networks: InfraGraph's infrastructures, and ``lstopo`` XML of one machine.

Both become the content of a graph file: a graph of parts and links, whose GPUs (InfraGraph: ``xpu``) are the ranks. Two
ranks have a link with the rate of all paths with the fewest links. Ports limit what ranks share: the links of a rank,
those that leave a machine (InfraGraph), and those above a bridge (lstopo).

Sources: Keysight/infragraph (schema); hwloc 2 (``pci_link_speed`` in GB/s, NVLinkBandwidth and XGMIBandwidth in MB/s).
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert

from dear_mpi.collectives.program.json_file import in_words
from dear_mpi.contrib.networks.formats.xml import Element, read_tree
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import grouped

RATES = {"gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9}
SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
GPU_CLASSES = ("0300", "0302", "0380", "1200")  # of PCI: display, 3D, other display, accelerator
MATRICES = ("NVLinkBandwidth", "XGMIBandwidth")
MOST_COUNT, MOST_COMPONENTS, MOST_DEPTH = 4096, 1 << 17, 4
ENDPOINT = re.compile(r"([^\[\]]+)(?:\[((?:-?\d{1,9})?(?::(?:-?\d{1,9})?){0,2})\])?")

Edges: TypeAlias = Mapping[str, Mapping[str, float]]
"""Bytes/s by both ends."""


def reached(edges: Edges, start: str, ends: Collection[str]) -> dict[str, float]:
    """Return the rate of the shortest paths to each end that pass no other end.

    ``passed``: the parts that all shortest paths to a part pass. The last one's rate limits their sum.
    """
    rates, hops, passed, waiting = {start: math.inf}, {start: 0}, {start: [start]}, deque([start])
    while waiting:
        at = waiting.popleft()
        rates[at] = min(rates[at], rates[passed[at][-1]])
        for other, rate in edges[at].items() if at == start or at not in ends else ():
            if other not in hops:
                hops[other], rates[other], passed[other] = hops[at] + 1, 0.0, [*passed[at], at]
                waiting.append(other)
            if hops[other] == hops[at] + 1:
                rates[other] += min(rates[at], rate)
                passed[other] = [each for each in passed[other] if each == at or each in passed[at]]
    return {end: rates[end] for end in ends if end in rates and end != start}


def graph_of(edges: Edges, ranks: Iterable[str], groups: Iterable[Iterable[str]], alpha: float) -> dict[str, Any]:
    """Return the content of a graph file; ``groups``: parts of the machine whose links to the rest are shared."""
    numbers = {name: rank for rank, name in enumerate(dict.fromkeys(ranks))}
    links = [
        (rank, numbers[other], rate)
        for name, rank in numbers.items()
        for other, rate in reached(edges, name, numbers).items()
    ]
    if not links:
        raise ValueError(f"no two of its {len(numbers)} GPUs are connected by links with known rates")
    ports = dict[tuple[tuple[int, ...], float], None]()
    for names in map(set, [*([name] for name in numbers), *groups]):
        inside = tuple(sorted(numbers[name] for name in names & numbers.keys()))
        rate = sum(rate for name in names for other, rate in edges[name].items() if other not in names)
        if 0 < len(inside) < len(numbers) and 0 < rate < math.inf:
            ports[inside, rate] = None
    shared = [{"ranks": inside, "out": rate, "into": rate} for inside, rate in ports]
    return {"ranks": len(numbers), "alpha_s": alpha, "links": links, "ports": shared}


class Component(Struct):
    """Those of one name, or the instances of a device. Components of the choice ``device`` have its name."""

    name: str
    count: Annotated[int, Meta(ge=0, le=MOST_COUNT)] = 1
    choice: str = ""
    device: Any = ""

    @property
    def inner(self) -> str:
        return self.name if self.choice == "device" else str(self.device or "")


class Edge(Struct):
    ep1: dict[str, str]
    ep2: dict[str, str]
    link: str
    scheme: Literal["one2one", "many2many"] = "many2many"


class Link(Struct):
    name: str
    physical: dict[str, dict[str, float | str]] = {}


class Device(Struct):
    """A device, or a file, whose components are instances of devices."""

    name: str = ""
    components: list[Component] = []
    instances: list[Component] = []
    links: list[Link] = []
    edges: list[Edge] = []
    devices: list["Device"] = []

    def members(self) -> dict[str, Component]:
        return {each.name: each for each in (*self.components, *self.instances)}


class InfraGraph:
    """The components of a file, by names such as ``host.0.card.1``, and the links between them."""

    def __init__(self, file: Device) -> None:
        self.devices = {device.name: device for device in file.devices}
        self.ranks, self.alpha, self.left = list[str](), 0.0, MOST_COMPONENTS
        self.edges = defaultdict[str, dict[str, float]](dict)
        self.add(file, "")

    def add(self, device: Device, prefix: str) -> None:
        """Add the components and links of a device, or of the file."""
        if prefix.count(".") > 2 * MOST_DEPTH:
            raise ValueError(f"{prefix:.60} is more than {MOST_DEPTH} devices deep")
        components, links = device.members(), {link.name: link.physical for link in device.links}
        for component in components.values():
            self.count(component.count)
            names = [f"{prefix}{component.name}.{number}" for number in range(component.count)]
            if component.choice == "xpu":
                self.ranks += names
            for name in names if component.inner else ():
                self.add(lookup("device", component.inner, self.devices), f"{name}.")
        for number, edge in enumerate(device.edges):
            try:
                ones, others = ([prefix + name for name in self.names(components, end)] for end in (edge.ep1, edge.ep2))
                self.connect(ones, others, lookup("link", edge.link, links), one2one=edge.scheme == "one2one")
            except ValueError as error:
                raise ValueError(f"edges[{number}] of {device.name!r:.60}: {error}") from None

    def count(self, more: int) -> None:
        self.left -= more
        if self.left < 0:
            raise ValueError(f"it has more than {MOST_COMPONENTS} components and links")

    def names(self, components: Mapping[str, Component], end: Mapping[str, str]) -> list[str]:
        """Return the names of an endpoint's components, such as ``cx5[0:2].port[1]``."""
        found = [""]
        for text in ".".join(end[each] for each in ("instance", "device", "component") if each in end).split("."):
            if not (match := ENDPOINT.fullmatch(text)):
                raise ValueError(f"{text!r:.60} is no endpoint, such as nic[0:2]")
            component = lookup("component", match[1], components)
            numbers = numbers_of(match[2] or "", component.count)
            found = [f"{name}.{component.name}.{number}" for name, number in product(found, numbers)]
            components = lookup("device", component.inner, self.devices).members() if component.inner else {}
        if component.inner:
            raise ValueError(f"{text!r:.60} is a device: name its component")
        return [name[1:] for name in found]

    def connect(self, ones: list[str], others: list[str], link: Mapping[str, Any], *, one2one: bool) -> None:
        bandwidth, latency = link.get("bandwidth", {}), link.get("latency", {})
        rate = sum(float(bandwidth.get(unit, 0)) * factor for unit, factor in RATES.items())
        if not 0 <= rate < math.inf:
            raise ValueError(f"its link has {rate} bytes/s")
        self.alpha = max(self.alpha, sum(float(latency.get(unit, 0)) * factor for unit, factor in SECONDS.items()))
        self.count(max(len(ones), len(others)) if one2one else len(ones) * len(others))
        for one, other in (zip(ones, others, strict=False) if one2one else product(ones, others)) if rate else ():
            if one != other:
                self.edges[one][other] = self.edges[other][one] = rate


def numbers_of(text: str, count: int) -> list[int]:
    """
    >>> numbers_of("", 3), numbers_of("1", 3), numbers_of("0:3:2", 3)
    ([0, 1, 2], [1], [0, 2])
    """
    if ":" in text or not text:
        return list(range(count)[slice(*(int(each) if each else None for each in text.split(":")))])
    if not -count <= int(text) < count:
        raise ValueError(f"an endpoint's [{text}] must be below {count}")
    return [range(count)[int(text)]]


def read_infragraph(content: Any) -> dict[str, Any]:
    """ValueErrors name the device and the edge."""
    if not isinstance(content, dict) or not content.get("instances"):
        raise ValueError("it must have instances and edges (InfraGraph), or flows (TE-CCL)")
    try:
        found = InfraGraph(convert(content, Device, strict=False))
    except ValidationError as error:
        raise ValueError(in_words(str(error), content)) from None
    machines = grouped(found.edges, lambda name: tuple(name.split(".")[:2]))
    return graph_of(found.edges, found.ranks, machines.values(), found.alpha)


def read_lstopo(path: Path) -> dict[str, Any]:
    """ValueErrors name the line."""
    root, edges = read_tree(path), defaultdict[str, dict[str, float]](dict)
    ranks, groups, places = list[str](), list[list[str]](), dict[str, str]()

    def add(element: Element, bridge: str, gpu: str) -> list[str]:
        """Add an object below a bridge, perhaps in a GPU; return the bridges and PCI devices in it."""
        kind, part = element.attributes.get("type", ""), element.attributes.get("gp_index", element.where)
        inside = [part] if kind in ("Bridge", "PCIDev") else []
        if inside:
            try:
                rate = float(element.attributes.get("pci_link_speed", 0)) * 1e9
            except ValueError as error:
                raise ValueError(f"{element.where}: pci_link_speed: {error}") from None
            if speed := math.inf if element.attributes.get("depth") == "0" else rate:
                edges[bridge][part] = edges[part][bridge] = speed
            if kind == "Bridge":
                bridge = part
            elif rate and element.attributes.get("pci_type", "")[:4] in GPU_CLASSES:
                ranks.append(part)
                gpu = gpu or part
        places[f"{kind}:{part}"] = gpu or part
        for inner in element.inner:
            inside += add(inner, bridge, gpu) if inner.name == "object" else []
        if kind == "Bridge":
            groups.append(inside)
        return inside

    add(root, "machine", "")
    for matrix in (each for each in root.inner if each.attributes.get("name") in MATRICES):
        indexes, values = (
            [word for element in matrix.inner if element.name == name for word in element.text.split()]
            for name in ("indexes", "u64values")
        )
        ends = [places.get(each if ":" in each else f"OSDev:{each}", each) for each in indexes]
        if len(values) == len(ends) ** 2:
            for (one, other), value in zip(product(ends, ends), values, strict=True):
                if one != other and value.isdecimal() and len(value) < 12 and int(value):
                    edges[one][other] = int(value) * 1e6
    return graph_of(edges, ranks, groups, 0.0)
