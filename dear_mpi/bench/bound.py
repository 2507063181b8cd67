"""The least time that any algorithm for a collective can take on a network; rows have it of the fitted one."""

from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.operations import OPERATIONS
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import COLLECTIVES


def bound_us(row: Row, network: Network) -> float | None:
    """The latency of one message and, at full bandwidth, the bytes of busbw; None on a network of unlimited bandwidth,
    and of late arrivals: messages may be over before the last rank comes.

    Nothing moves before a message has begun, o + alpha, and the last one costs its receiver o. In between, those bytes
    must go through one side of the port of some rank (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for
    clusters of workstations, 2009). More rounds are no part of it: a rank may send to several at once, so some
    algorithms have one round. Sums are taken to cost nothing.
    """
    if row.collective not in COLLECTIVES or row.ranks == 1 or not network.beta or not row.is_balanced:
        return None
    crossing = row.bytes * OPERATIONS[row.collective].factor(row.ranks)
    return (network.alpha + 2 * network.o + crossing * network.beta) * 1e6
