"""Predict what a program costs: replay it on a network of latency alpha, beta s/byte and gamma s/byte reduced.

The model. Every rank has a port, and every host one port to the network, each with two directions. A message begins
when both its ends are in their step, as large messages of MPI libraries do (rendezvous). Alpha later it moves: b bytes
take b beta, if the outgoing side of one port and the incoming side of the other are theirs alone. Messages that meet at
a port share it fairly (``network.py``): that is contention. A message that has arrived takes b gamma of the rank that
combines it. Messages inside a host use the ports of the ranks. Messages between hosts use the ports of the hosts, which
the ranks of a host share, with an alpha and beta of their own. A rank enters a step when all messages of its previous
one, sent and received, are there. For the ring this gives the closed forms in ``algorithms/ring.py``; for the naive
algorithm it shows the crowd at rank 0. Not modelled are segments, which let steps overlap, and that MPI libraries send
small messages before they are wanted.

Messages also take o seconds each of a rank's one processor, which does one thing after another. When a step begins, the
processor hands over the sends, o for each; a message begins no earlier. Then it turns to the messages that have
arrived: o for each, and right after it the sum. With o = 0 sends and plain receives do not need the processor.

Source: alpha, beta and o are L, G and o of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995), whose g is 0
here. Where messages begin, share and end is as in SimGrid, an independent simulator (decision 0013).
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
    """The time until the last rank is done, messages and bytes that each rank has sent, bytes by (from, to), and when
    each rank is done."""

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
    """Price the programs of all ranks for a buffer of ``count`` elements, in equal shards unless told otherwise; or a
    ProgramError: they deadlock (``verify`` says where).

    ``arrivals_s``: when each rank comes to the call; all at 0 if not given. Times are from 0 on, so after the last
    arrival a program takes ``time_s - max(arrivals_s)``.

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
