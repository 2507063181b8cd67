"""Check that all ranks are about to do the same: MPI gives garbage or a hang."""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from dear_mpi.collectives.program.errors import ArgumentError, CollectiveError, MismatchError, name_ranks
from dear_mpi.collectives.transports.transport import Transport

T = TypeVar("T")


def agree(transport: Transport, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
    """Collective: evaluate ``facts()`` on each rank and compare; ``what`` names the operation.

    On all ranks, naming each rank's value: ArgumentError: ``facts`` raised. MismatchError: a value or ``what`` differs.
    """
    try:
        mine: tuple[str, Mapping[str, Any], str | None] = (what, facts(), None)
    except (ValueError, CollectiveError) as error:
        mine = (what, {}, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any error: a rank that left here would leave the others waiting
        mine = (what, {}, f"{type(error).__name__}: {error}")
    while not transport.same(0):  # answer others' votes on repeating a cached plan
        pass
    answers = transport.gather_values(mine)
    what = answers[0][0]  # rank 0's: all messages are equal
    complaints = [message for _, _, message in answers]
    if any(complaints):
        raise ArgumentError(f"{what}: {by_rank(complaints, ', on ')}")
    if len({tuple(facts_there) for _, facts_there, _ in answers}) > 1 and len({there for there, _, _ in answers}) > 1:
        raise MismatchError(f"the ranks begin different operations: {by_rank([there for there, _, _ in answers])}")
    for name in answers[0][1]:
        values = [facts_there.get(name) for _, facts_there, _ in answers]
        if any(value != values[0] for value in values):
            raise MismatchError(f"{what}: {name} must be the same on all ranks, not {by_rank(values)}")


def said_by_rank_0(transport: Transport, what: str, say: Callable[[], T], *, asleep: bool = False) -> T:
    """Collective: return rank 0's ``say()`` on all ranks, or raise its error, as ``agree``.

    ``asleep``: the call is long, so other ranks wait without using cores.
    """
    said: list[T] = []

    def act() -> Mapping[str, Any]:
        try:
            if transport.rank == 0:
                said.append(say())
        finally:
            if asleep:
                transport.barrier(asleep=True)
        return {}

    agree(transport, what, act)
    return transport.gather_values(said)[0][0]


def run_checker(transport: Transport, plan: str) -> Callable[[], None]:
    numbers = itertools.count(1)
    return partial(agree, transport, "debug", lambda: {"the plan that is run": f"{plan}, run {next(numbers)}"})


def by_rank(values: list[Any], on: str = " on ") -> str:
    groups: dict[Any, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            groups.setdefault(value, []).append(rank)
    if list(groups.values()) == [list(range(len(values)))]:
        return str(next(iter(groups)))
    return "; ".join(f"{value}{on}{name_ranks(ranks)}" for value, ranks in groups.items())
