"""Forked children of a rank share its memory but are not ranks: they must neither call MPI nor end the job."""

import atexit
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

ADVICE = "end a forked child with os._exit before it comes back to dear-mpi"


@contextmanager
def no_child_leaves() -> Iterator[None]:
    """End a child that is forked inside the block and leaves it: what follows is for the rank alone."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            end_child(error)
        raise
    if os.getpid() != process:
        end_child(RuntimeError(ADVICE))


def end_child(error: BaseException | None) -> None:
    """End this process, which is a child, with the traceback of its error, and without anything that the rank does."""
    code = error.code or 0 if isinstance(error, SystemExit) else 0 if error is None else 1
    try:
        if isinstance(code, str):
            print(code, file=sys.stderr)
        elif error is not None and not isinstance(error, SystemExit):
            print(f"dear-mpi: forked child {os.getpid()} fails:", file=sys.stderr)
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also if its streams are closed
        os._exit(code if isinstance(code, int) else 1)


@cache
def end_children_at_exit() -> None:
    """End forked children at exit before MPI's own exit handler runs: only the rank may finalise MPI.

    The code of a child's ``sys.exit`` is not known there: it ends with 0, or with 1 after an exception.
    """
    process = os.getpid()

    def ends() -> None:
        if os.getpid() != process:  # an exception that ended it has been shown
            end_child(SystemExit(int(hasattr(sys, "last_type"))))

    atexit.register(ends)
