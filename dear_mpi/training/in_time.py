"""Calls of a schedule's code: one that takes too long, or fails, is refused by its hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dear_mpi.collectives.program import in_time as user
from dear_mpi.training.fabric.rules import Rules, ScheduleError

T = TypeVar("T")


def in_time(rules: Rules, call: Callable[[], T]) -> T:
    """What a call of a schedule's code returns, however long it takes, as long as it gets on from hook to hook.

    What a hook that never returns may touch is on the virtual fabric.

    Raises:
        ScheduleError: a hook takes too long, or fails.
    """
    try:
        return user.in_time(call, lambda: (rules.iteration, rules.point))
    except (ScheduleError, KeyboardInterrupt):
        raise
    except user.Endless as error:
        rules.refuse(str(error))
    except BaseException as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ScheduleError(f"schedule {rules.name!r} fails in {rules.where}: {said}") from error
