"""Direct exchange: every contribution goes straight to the owner of its chunk, which sums them in rank order.

            reduce_scatter, 4 ranks: what reaches rank 2

            rank 0 --+
            rank 1 --+--> rank 2 computes ((x0 + x1) + x2) + x3 of its chunk
            rank 3 --+

An owner combines all contributions at once, in rank order. Two-byte numbers are combined in fp32, rounded once. So
an element's result depends on nothing but the P numbers that are summed: it has the same bits whatever the size of
the buckets, the borders between chunks, the segments or the schedule, and tuning them never changes a result. And
fp16 or bf16 on the wire costs one rounding of each contribution, where a ring rounds at each of its P - 1 hops. The
all-gather is the mirror image: every owner sends its chunk straight to all others.

Cost for n bytes on P ranks: one step each of P - 1 messages, so alpha + (P-1)/P n (beta + gamma) where messages of one
step overlap in latency, and (P-1) alpha where they do not; an owner holds up to a window of segments of each peer.
Where ranks share memory it is the fastest algorithm: each number is read once. On a large network it sends P - 1
flows into every port at the same time, which congests switches.

Source: Rabenseifner's and others' "direct" reduce-scatter; for numbers of two bytes, ZeRO-style all-to-all with a
local sum, as in Megatron-LM's distributed optimiser.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int) -> Program:
    ahead = [(rank + distance) % size for distance in range(1, size)]
    sends = tuple(Send(peer, range(rank, rank + 1)) for peer in ahead)
    receives = tuple(Receive(peer, range(peer, peer + 1)) for peer in reversed(ahead))
    return Program("all_gather", rank, size, (Step(sends, receives),) if ahead else ())
