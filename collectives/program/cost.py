"""Predict a program's time on a network: latency alpha, beta s/byte, gamma s/byte reduced.

The model. Each rank has a port, and each host one port to the network that its ranks share, with its own alpha and
beta. A message begins when both ends are in their step (rendezvous). After alpha its b bytes take b beta, or longer if
messages share a side of a port (``network.py``). Combining takes b gamma on the receiving rank. A rank enters a step
when all messages of its previous step are complete. For the ring this gives the closed forms of ``algorithms/ring.py``.
The model omits segments, which let steps overlap, and the eager sending of small messages.

Each message also takes o seconds of a rank's one processor at both ends. At the start of a step it hands over the
sends, o each, and a message begins no earlier. Then it handles arrived messages: o each, followed by the sum.

Source: alpha, beta and o are L, G and o of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995), with g = 0.
Messages begin, share and end as in SimGrid (decision 0013).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.simulation import Simulation


@dataclass(frozen=True)
class Cost:
    """``done_s`` is each rank's end; ``link_nbytes`` counts bytes by (from, to)."""

    time_s: float
    messages: tuple[int, ...]
    nbytes: tuple[int, ...]
    link_nbytes: dict[tuple[int, int], int]
    done_s: tuple[float, ...]


def cost(
    programs: Sequence[Program],
    count: int,
    itemsize: int,
    network: Network,
    partition: Partition | None = None,
    *,
    arrivals_s: Sequence[float] = (),
) -> Cost:
    """Price the programs of all ranks for a buffer of ``count`` elements.

    ``arrivals_s``: when each rank enters the call; default 0. The programs then take ``time_s - max(arrivals_s)``.
    ProgramError: they deadlock.

    >>> from dear_mpi.collectives.algorithms.registry import programs
    >>> cost(programs("ring", "all_reduce", 4), 1000, 4, Network(beta=1e-9)).nbytes
    (6000, 6000, 6000, 6000)
    """
    chunks = (partition or Partition.of(count, len(programs))).chunks(programs[0].parts)
    run = Simulation(programs, [border * itemsize for border in chunks], network)
    run.to_the_end(arrivals_s)
    messages, nbytes, link_nbytes = [0] * len(programs), [0] * len(programs), Counter[tuple[int, int]]()
    for rank, program in enumerate(programs):
        for send in (send for step in program.steps for send in step.sends):
            sent = run.nbytes(send.chunks)
            messages[rank] += 1
            nbytes[rank] += sent
            link_nbytes[rank, send.peer] += sent
    done_s = tuple(rank.entered_s for rank in run.ranks)
    return Cost(max(done_s), tuple(messages), tuple(nbytes), dict(link_nbytes), done_s)
