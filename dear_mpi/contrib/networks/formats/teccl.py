"""Read TE-CCL's solved schedules: JSON with the flow of each chunk over each link, by epoch.

    all-gather     "7-Flows":       "Chunk 0 from 13 traveled over 13->9 in epoch 0"
    all-to-all     "7-chunk paths": "Demand at 1 for chunk 0 from 10 met by epoch 19":
                                        [[[5, "10->8 with volume 0.25 in epoch 5"], [13, "8->1 with ..."]], ...]

Parts of an all-to-all's chunks take different paths; chunk c is for rank c modulo the number of ranks. (Its flow list
drops duplicates, so we read the paths.) Nodes that own chunks are ranks, in the order of their numbers; the others are
switches. A link takes a step for each epoch with a flow.

Source: microsoft/TE-CCL; Liu et al., Rethinking machine learning collective communication as a multi-commodity flow
problem, SIGCOMM 2024.
"""

import re
from typing import Any, NamedTuple

from dear_mpi.collectives.program import Program
from dear_mpi.contrib.networks.formats.dataflow import MOST_WORK, DataFlow, Value

N = r"(\d{1,6})"
FLOW = re.compile(rf"Chunk {N} from {N} traveled over {N}->{N} in epoch {N}\b")
DEMAND = re.compile(rf"^Demand at {N} for chunk {N} from {N}\b")
HOP = re.compile(rf"^({N}->{N} with volume (\d(?:\.\d{{1,20}})?(?:e-\d\d)?) in epoch {N}\b)")
FINEST = 128  # parts of a chunk
TOLERANCE = 1e-3  # of a volume, which the solver rounds


class Hop(NamedTuple):
    """A flow over one link; ``number``: in its path; ``parts``: of the chunk; ``text``: for errors."""

    epoch: int
    number: int
    chunk: int
    owner: int
    source: int
    target: int
    parts: range
    text: str


def hops_of_flows(flows: Any) -> list[Hop]:
    hops = list[Hop]()
    for text in flows:
        found = FLOW.match(str(text))
        if not found:
            raise ValueError(f"a flow must be like 'Chunk 0 from 1 traveled over 1->2 in epoch 0', not {text!r:.90}")
        chunk, owner, source, target, epoch = map(int, found.groups())
        hops.append(Hop(epoch, 0, chunk, owner, source, target, range(1), text))
    return hops


def hops_of_paths(demands: Any) -> tuple[list[Hop], int]:
    """Return the hops, and in how many parts they cut a chunk."""
    paths = list[tuple[int, int, float, list[Any]]]()
    for demand, ways in demands.items():
        try:
            ((_, chunk, owner),) = DEMAND.findall(demand)
            for way in ways:
                found = [HOP.findall(text)[0] for _, text in way]
                paths.append((int(chunk), int(owner), float(found[0][3]), found))
        except (IndexError, TypeError, ValueError):
            like = "lists of [5, '10->8 with volume 0.25 in epoch 5']"
            raise ValueError(f"{demand!r:.90} must be like 'Demand at 1 for chunk 0 from 10', with {like}") from None
    volumes = {volume for _, _, volume, _ in paths}
    for finer in range(1, FINEST + 1):
        if all(abs(volume * finer / max(round(volume * finer), 1) - 1) < TOLERANCE for volume in volumes):
            break
    else:
        raise ValueError(f"the volumes are no multiples of a part of 1/1 to 1/{FINEST}")
    hops, used = list[Hop](), dict[tuple[int, int], int]()
    for chunk, owner, volume, found in paths:
        first = used.get((owner, chunk), 0)
        last = used[owner, chunk] = first + round(volume * finer)
        for number, (text, source, target, _, epoch) in enumerate(found):
            hops.append(Hop(int(epoch), number, chunk, owner, int(source), int(target), range(first, last), text))
    for (owner, chunk), last in used.items():
        if last != finer:
            raise ValueError(f"the paths of chunk {chunk} from {owner} have the volume {last / finer:.4g}, not 1")
    return hops, finer


def read_teccl(content: Any) -> list[Program]:
    """Return all ranks' programs, unproved; ValueErrors name the flow."""
    named = {name.partition("-")[2].lower(): each for name, each in content.items()}  # 7-Flows, 8-Chunk paths
    flows = named.get("flows", [])
    gather = "with volume" not in str(flows)
    try:
        hops, finer = (hops_of_flows(flows), 1) if gather else hops_of_paths(named.get("chunk paths", {}))
    except (AttributeError, TypeError) as error:
        raise ValueError(f"its flows or paths have another form: {error!r:.90}") from None
    return programs_of(hops, finer, gather=gather)


def programs_of(hops: list[Hop], finer: int, *, gather: bool) -> list[Program]:
    if not hops:
        raise ValueError("it has no flows, or no chunk paths")
    ranks = {node: rank for rank, node in enumerate(sorted({hop.owner for hop in hops}))}
    size, highest = len(ranks), max(hop.chunk for hop in hops)
    parts = highest + 1 if gather else (highest // size + 1) * finer
    if parts * size * size > MOST_WORK:
        raise ValueError(f"{size} ranks with chunks 0 to {highest} in {finer} parts are too many")
    flow = DataFlow("all_gather" if gather else "all_to_all", size, parts)
    # By rank, owner and the owner's chunk of our program: the value, and the epoch of the flow that brought it.
    held = {(rank, rank, chunk): (value, -1) for (rank, chunk), value in flow.given().items()}
    used = dict[tuple[int, int], tuple[int, int]]()  # epoch and step of each link's last flow
    for hop in sorted(hops, key=lambda hop: (hop.epoch, hop.number)):
        if not {hop.source, hop.target} <= ranks.keys() or hop.source == hop.target:
            raise ValueError(f"{hop.text!r}: both ends must be different nodes that own chunks")
        owner, source, target = ranks[hop.owner], ranks[hop.source], ranks[hop.target]
        first = owner * parts + hop.chunk if gather else hop.chunk % size * parts + hop.chunk // size * finer
        epoch, step = used.get((source, target), (hop.epoch, 0))
        step += epoch < hop.epoch
        for chunk in (first + part for part in hop.parts):
            value, since = held.get((source, owner, chunk), (None, hop.epoch))
            if value is None or since >= hop.epoch:
                raise ValueError(f"{hop.text!r}: node {hop.source} does not hold chunk {hop.chunk} at that time")
            if (target, owner, chunk) not in held:
                value = flow.move(value, target, step)
                held[target, owner, chunk] = value, hop.epoch
                step = value.made
        used[source, target] = hop.epoch, step

    def result(rank: int, chunk: int) -> Value | None:
        sent = chunk if gather else rank * parts + chunk % parts
        return held.get((rank, chunk // parts, sent), (None, 0))[0]

    return flow.programs(result)
