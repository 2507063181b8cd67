"""How much of the processors other machines of the same host took meanwhile: steal time, see proc_stat(5)."""

import time
from pathlib import Path

QUIET = 0.03  # of the processors, lost during a measurement: one that lost more is made again
ATTEMPTS = 3  # of which the quietest counts
LOOK_S, PATIENCE_S = 20.0, 600.0
STEAL = 7


def ticks() -> list[int]:
    """What all processors did since this machine started, as /proc/stat counts it, without what it counts twice."""
    head, *_ = Path("/proc/stat").read_text("utf-8").splitlines()
    return [int(each) for each in head.split()[1 : STEAL + 2]]


def stolen_since(before: list[int]) -> float:
    """The share of all ticks since then that others had."""
    spent = [now - then for now, then in zip(ticks(), before, strict=True)]
    return spent[STEAL] / max(1, sum(spent))


def await_quiet():
    """Wait until others have let the processors alone for a while; not for ever."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        before = ticks()
        time.sleep(LOOK_S)
        if stolen_since(before) < QUIET / 2:
            return
