"""Read TE-CCL's solved schedules: JSON with the flow of each chunk over each link, by epoch.

    all-gather     "7-Flows":       "Chunk 0 from 13 traveled over 13->9 in epoch 0"
    all-to-all     "7-chunk paths": "Demand at 1 for chunk 0 from 10 met by epoch 19":
                                        [[[5, "10->8 with volume 0.25 in epoch 5"], [13, "8->1 with ..."]], ...]

Parts of an all-to-all's chunks take different paths; chunk c is for rank c modulo the number of ranks. (Its flows are
not used: equal ones are there once.) Nodes that own chunks are ranks, in the order of their numbers; the others are
switches. A link takes a step for each epoch with a flow.

Source: microsoft/TE-CCL; Liu et al., Rethinking machine learning collective communication as a multi-commodity flow
problem, SIGCOMM 2024.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from dear_mpi.collectives.program import Program
from dear_mpi.contrib.networks.formats.dataflow import DataFlow, Value
from dear_mpi.contrib.networks.formats.msccl import MOST_WORK

N = r"(\d{1,6})"
FLOW = re.compile(rf"Chunk {N} from {N} traveled over {N}->{N} in epoch {N}\b")
DEMAND = re.compile(rf"Demand at {N} for chunk {N} from {N}\b")
HOP = re.compile(rf"{N}->{N} with volume (\d[\d.e-]{{0,25}}) in epoch {N}\b")
FINEST = 128  # parts of a chunk
TOLERANCE = 1e-3  # of a volume, which the solver rounds


class Flow(NamedTuple):
    """``parts``: of the chunk; ``text``: for errors."""

    epoch: int
    hop: int
    chunk: int
    owner: int
    source: int
    target: int
    parts: range
    text: str


def flows_of(content: Any) -> Iterator[Flow]:
    for text in next(each for name, each in content.items() if name.endswith("-Flows")):
        found = FLOW.match(text)
        if not found:
            raise ValueError(f"a flow must be like 'Chunk 0 from 1 traveled over 1->2 in epoch 0', not {text!r:.90}")
        chunk, owner, source, target, epoch = map(int, found.groups())
        yield Flow(epoch, 0, chunk, owner, source, target, range(1), text)


def flows_of_paths(demands: Any) -> tuple[list[Flow], int]:
    """Return the flows, and in how many parts they cut a chunk."""
    paths = list[tuple[int, int, list[re.Match[str]]]]()
    for demand, ways in demands.items():
        found, hops = DEMAND.match(demand), [[HOP.match(text) for _, text in way] for way in ways]
        matches = [[hop for hop in way if hop] for way in hops]
        if not found or matches != hops or not all(matches):
            like = "lists of [5, '10->8 with volume 0.25 in epoch 5']"
            raise ValueError(f"{demand!r:.90} must be like 'Demand at 1 for chunk 0 from 10', with {like}")
        paths += ((int(found[2]), int(found[3]), way) for way in matches)
    volumes = {float(way[0][3]) for _, _, way in paths}
    for finer in range(1, FINEST + 1):
        if all(abs(volume * finer / max(round(volume * finer), 1) - 1) < TOLERANCE for volume in volumes):
            break
    else:
        raise ValueError(f"the volumes are no multiples of a part of 1/1 to 1/{FINEST}")
    flows, used = list[Flow](), dict[tuple[int, int], int]()
    for chunk, owner, way in paths:
        first = used.get((owner, chunk), 0)
        last = used[owner, chunk] = first + round(float(way[0][3]) * finer)
        for number, hop in enumerate(way):
            parts = range(first, last)
            flows.append(Flow(int(hop[4]), number, chunk, owner, int(hop[1]), int(hop[2]), parts, hop[0]))
    for (owner, chunk), last in used.items():
        if last != finer:
            raise ValueError(f"the paths of chunk {chunk} from {owner} have the volume {last / finer:.4g}, not 1")
    return flows, finer


def read_teccl(content: Any) -> list[Program]:
    """Return all ranks' programs, unproved; ValueErrors name the flow."""
    gather = not any("with volume" in str(each) for name, each in content.items() if name.endswith("-Flows"))
    try:
        if gather:
            flows, finer = list(flows_of(content)), 1
        else:
            flows, finer = flows_of_paths(next(each for name, each in content.items() if name.endswith("hunk paths")))
    except (AttributeError, OverflowError, StopIteration, TypeError) as error:
        raise ValueError(f"its flows or paths have another form: {error!r:.90}") from None
    return programs_of(flows, finer, gather=gather)


def programs_of(flows: list[Flow], finer: int, *, gather: bool) -> list[Program]:
    flows.sort(key=lambda flow: (flow.epoch, flow.hop))
    ranks = {node: rank for rank, node in enumerate(sorted({flow.owner for flow in flows}))}
    size, highest = len(ranks), max((flow.chunk for flow in flows), default=0)
    parts = highest + 1 if gather else (highest // max(size, 1) + 1) * finer
    if not flows or parts * size * size > MOST_WORK:
        raise ValueError(f"{size} ranks with chunks 0 to {highest} in {finer} parts are too many, or none")
    flow_of = DataFlow("all_gather" if gather else "all_to_all", size, parts)
    # By rank, owner, chunk and part: the value, and the epoch of the flow that brought it.
    held, used = dict[tuple[int, int, int, int], tuple[Value, int]](), dict[tuple[int, int], tuple[int, int]]()
    for rank in range(size):
        for chunk in range(rank * parts, (rank + 1) * parts) if gather else range(size * parts):
            copy, part = divmod(chunk % parts, finer)
            number = copy if gather else chunk // parts + copy * size
            held[rank, rank, number, part] = flow_of.given(rank, chunk), -1
    for flow in flows:
        if not {flow.source, flow.target} <= ranks.keys() or flow.source == flow.target:
            raise ValueError(f"{flow.text!r}: both ends must be different nodes that own chunks")
        owner, source, target = ranks[flow.owner], ranks[flow.source], ranks[flow.target]
        epoch, step = used.get((source, target), (flow.epoch, 0))  # the last ones of the link
        step += epoch < flow.epoch
        for part in flow.parts:
            value, since = held.get((source, owner, flow.chunk, part), (None, flow.epoch))
            if value is None or since >= flow.epoch:
                raise ValueError(f"{flow.text!r}: node {flow.source} does not hold chunk {flow.chunk} at that time")
            if (target, owner, flow.chunk, part) not in held:
                value = flow_of.move(value, target, step)
                held[target, owner, flow.chunk, part] = value, flow.epoch
                step = value.made
        used[source, target] = flow.epoch, step
    results = {
        (rank, owner * parts + value.column % parts): value
        for (rank, owner, number, _), (value, _) in held.items()
        if gather or number % size == rank
    }
    return flow_of.programs(results)
