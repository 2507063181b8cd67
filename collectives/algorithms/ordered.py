"""Direct exchange: every contribution goes straight to its chunk's owner, which sums in rank order.

            reduce_scatter, 4 ranks: the input of rank 2

            rank 0 --+
            rank 1 --+--> rank 2 computes ((x0 + x1) + x2) + x3 of its chunk
            rank 3 --+

All contributions are combined at once; two-byte numbers in fp32, rounded once (a ring: P - 1 times). So a result
depends only on the P numbers, not on buckets, borders, segments or schedule.

Cost for n bytes on P ranks: one step of P - 1 messages: alpha + (P-1)/P n (beta + gamma) if their latencies overlap,
else (P-1) alpha. Fastest in shared memory. On a large network P - 1 flows into every port congest switches.

Source: the "direct" reduce-scatter of Rabenseifner and others; all-pairs in MSCCL; Megatron-LM's distributed optimizer.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int) -> Program:
    ahead = [(rank + distance) % size for distance in range(1, size)]
    sends = tuple(Send(peer, range(rank, rank + 1)) for peer in ahead)
    receives = tuple(Receive(peer, range(peer, peer + 1)) for peer in reversed(ahead))
    return Program("all_gather", rank, size, (Step(sends, receives),) if ahead else ())


def broadcast(rank: int, size: int) -> Program:
    sends = tuple(Send(peer, range(size)) for peer in range(1, size) if rank == 0)
    receives = (Receive(0, range(size)),) if rank else ()
    return Program("broadcast", rank, size, (Step(sends, receives),) if size > 1 else ())
