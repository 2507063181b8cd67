"""Hierarchical ring: rings between hosts, one per column, and a ring inside every host.

            2 hosts of 3 ranks: an all_gather in two phases

            host 0     0 --> 1 --> 2 --> (0)          2. a ring inside the host passes on what the
                       |     |     |                     columns have brought
            host 1     3 --> 4 --> 5 --> (3)          1. a ring in each column (0-3, 1-4, 2-5) passes
                                                         the chunks of its ranks from host to host

Every chunk crosses the network between two hosts once; each of a host's Q ranks brings in 1/Q. Ranks of a smaller host
serve several columns. Each phase is a level (``LEVELS`` of ``registry.py``) for routes.

Cost for n bytes on R hosts of Q ranks, with alpha and beta inside, alpha' and beta' between: (R-1) alpha' + (R-1)/R n/Q
beta' + (Q-1) alpha + (Q-1)/Q n beta if each rank has its own network port (else Q times the beta'). A transfer inside
has R ranges of chunks, packed if they are small.

Source: Jia et al., Highly scalable deep learning training system with mixed-precision (2018), section 3.3.
"""

from collections.abc import Sequence

from dear_mpi.collectives.algorithms.ring import around, merged
from dear_mpi.collectives.program.hosts import at_place, by_host, placed, served, servers
from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int, hosts: Sequence[int]) -> Program:
    steps = between(rank, size, hosts).steps + inside(rank, size, hosts).steps
    return Program("all_gather", rank, size, steps)


def between(rank: int, size: int, hosts: Sequence[int]) -> Program:
    """First phase: a rank ends with the chunks of its columns."""
    members, rings = by_host(hosts), list[list[Step]]()
    for column in range(max(map(len, members))):
        if rank in (ring := at_place(column, members)):
            rings.append(around(rank, ring, [ranks[column : column + 1] for ranks in members]))
    return Program("all_gather", rank, size, tuple(merged(rings, len(members) - 1)))


def inside(rank: int, size: int, hosts: Sequence[int]) -> Program:
    members, home, _ = placed(rank, hosts)
    ring = around(rank, home, [served(each, hosts) for each in home])
    return Program("all_gather", rank, size, tuple(merged([ring], max(map(len, members)) - 1)))


def exchange(rank: int, size: int, hosts: Sequence[int]) -> Program:
    """Exchange chunks within columns, with hosts in the order of ``pairwise.py``."""
    members, home, _ = placed(rank, hosts)
    host, count = members.index(home), len(members)
    steps = []
    for distance in range(1, count // 2 + 1):
        near = {*members[(host + distance) % count], *members[(host - distance) % count]}
        sends = (Send(peer, range(peer, peer + 1)) for peer in served(rank, hosts) if peer in near)
        receives = (Receive(peer, range(peer, peer + 1)) for peer in servers(rank, hosts) if peer in near)
        steps.append(Step(tuple(sends), tuple(receives)))
    return Program("all_to_all", rank, size, tuple(steps))
