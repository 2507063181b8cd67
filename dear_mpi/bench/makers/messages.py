"""Messages between the first and the last rank, and round a ring, as OSU's point-to-point benchmarks send them.

    native          MPI_Send and MPI_Recv; MPI_Sendrecv, in place MPI_Sendrecv_replace; where many messages travel at
                    once, MPI_Isend and MPI_Irecv, as in osu_bw
    -nonblocking    the ring by MPI_Isend and MPI_Irecv
    -persistent     MPI_Send_init and MPI_Recv_init once; starts and waits in each call, as in osu_bw_persistent

What a rank does is a few stages, one after the other. The messages of a stage are under way at once, and it is over
when all of them are. Source: OSU Micro-Benchmarks 7.4, c/mpi/pt2pt.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.bench.case import Prepared, Setup
from dear_mpi.collectives.plans.runners.native import prebuilt
from dear_mpi.kernels.array import Array

DATA, ANSWER = 1, 2  # tags
Call: TypeAlias = Callable[[], Any]


class Message(NamedTuple):
    """One end of it; ``verb`` is send or recv."""

    verb: str
    data: Array
    peer: int
    tag: int = DATA

    def call(self, comm: Any, name: str) -> Call:
        """The call of mpi4py; in its ``name``, {} stands for the verb."""
        return partial(getattr(comm, name.format(self.verb).capitalize()), octets(self.data), self.peer, self.tag)


Stages: TypeAlias = list[list[Message]]


def octets(array: Array) -> Any:
    """MPI does not have all of our types, and what is only moved is bytes."""
    from mpi4py import MPI

    return prebuilt([array.view("u1"), MPI.BYTE])


def at_once(sends: list[Message], receives: list[Message], rank: int) -> Stages:
    return [receives + sends]


def in_turn(sends: list[Message], receives: list[Message], rank: int) -> Stages:
    return [receives, sends] if rank else [sends, receives]


def answered(sends: list[Message], receives: list[Message], rank: int) -> Stages:
    """A byte says that all have come."""
    byte = np.zeros(1, np.uint8)
    answers = [Message("recv", byte, each.peer, ANSWER) for each in sends[:1]]
    answers += [Message("send", byte, each.peer, ANSWER) for each in receives[:1]]
    return [sends + receives, answers]


STAGES = {"sendrecv": at_once, "ping_pong": in_turn, "bandwidth": answered, "both_ways": at_once}


def neighbours(setup: Setup) -> tuple[int, int]:
    """From whom this rank receives, and to whom it sends."""
    rank, ranks = setup.transport.rank, setup.transport.size
    return (ranks - 1 - rank,) * 2 if setup.case.operation.pair else ((rank - 1) % ranks, (rank + 1) % ranks)


def stages(setup: Setup) -> Stages:
    """What this rank does where messages arrive in a buffer of their own; nothing if it is not of the pair."""
    (source, dest), window, arrive = neighbours(setup), setup.case.window, setup.out
    assert arrive is not None, "Form.why_not has seen it"
    sends = [Message("send", setup.x, dest)] * (window if setup.x.size else 0)
    receives = [Message("recv", place, source) for place in arrive.reshape(window, -1)] if arrive.size else []
    return [stage for stage in STAGES[setup.case.collective](sends, receives, setup.transport.rank) if stage]


class All:
    """Requests as one."""

    def __init__(self, requests: Sequence[Any]) -> None:
        self.requests = requests

    def Test(self) -> bool:
        return bool(type(self.requests[0]).Testall(self.requests))

    def Wait(self) -> None:
        type(self.requests[0]).Waitall(self.requests)


def begun(calls: Sequence[Call]) -> All:
    return All([call() for call in calls])


def nonblocking(setup: Setup, stage: Sequence[Message]) -> Callable[[], All]:
    return partial(begun, [message.call(setup.transport.native, "i{}") for message in stage])


def one_by_one(calls: Sequence[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def blocking(setup: Setup) -> Prepared:
    comm, (source, dest) = setup.transport.native, neighbours(setup)
    assert comm is not None, "prepare has seen it"
    if setup.case.collective == "sendrecv":
        sent, arrive = octets(setup.x), setup.out
        if arrive is None:
            return Prepared(partial(comm.Sendrecv_replace, sent, dest, DATA, source, DATA))
        return Prepared(partial(comm.Sendrecv, sent, dest, DATA, octets(arrive), source, DATA))

    def call_of(stage: Sequence[Message]) -> Call:
        if len(stage) == 1:
            return stage[0].call(comm, "{}")
        begin = nonblocking(setup, stage)
        return lambda: begin().Wait()

    return Prepared(one_by_one([call_of(stage) for stage in stages(setup)]))


def persistent(setup: Setup) -> Prepared:
    made = [[message.call(setup.transport.native, "{}_init")() for message in stage] for stage in stages(setup)]
    requests = [request for stage in made for request in stage]

    def call_of(stage: list[Any]) -> Call:
        if len(stage) == 1:
            return one_by_one([stage[0].Start, stage[0].Wait])
        return one_by_one([partial(type(stage[0]).Startall, stage), All(stage).Wait])

    return Prepared(one_by_one(list(map(call_of, made))), one_by_one([request.Free for request in requests]))
