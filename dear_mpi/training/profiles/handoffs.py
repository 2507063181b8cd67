"""How long the two threads of a rank take to hand work over: time that is in no layer and in no collective.

    main thread   hands over | computes, waits ......................................... | goes on
    engine        no work .......... start_s | begins ............... ends | wake_s

An engine without work begins when the interpreter and a core are free: layers of Python keep both. So does the main
thread when what it waits for has ended. On a GPU streams wait instead, and this is not measured.
"""

from collections.abc import Iterator
from itertools import pairwise

from dear_mpi.training.fabric.order import SUMS
from dear_mpi.training.log.log import Record

OF_NO_BUCKET = {kind for kind, _ in SUMS}


def starts_s(record: Record) -> Iterator[float]:
    """From the time that something was handed over until it began, wherever the engine had no work meanwhile."""
    for before, event in pairwise(record.engine):
        if event.since is not None and before.end <= event.since:
            yield event.begin - event.since


def wakes_s(record: Record) -> Iterator[float]:
    """From the end of what the main thread waited for until it went on."""
    for wait in (event for event in record.within if event.kind == "wait"):
        of_bucket = wait.awaited not in OF_NO_BUCKET
        ends = [
            event.end
            for event in record.engine
            if event.number == wait.number and (event.kind not in OF_NO_BUCKET) == of_bucket
        ]
        meanwhile = [end for end in ends if wait.begin < end <= wait.end]
        if meanwhile:
            yield wait.end - max(meanwhile)
