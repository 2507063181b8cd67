"""Keep forked children of a rank from calling MPI or ending the job: they share its memory but are no ranks."""

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
    """End any child that is forked in the block and leaves it: only the rank continues."""
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
    code = error.code or 0 if isinstance(error, SystemExit) else 0 if error is None else 1
    try:
        if isinstance(code, str):
            print(code, file=sys.stderr)
        elif error is not None and not isinstance(error, SystemExit):
            print(f"dear-mpi: forked child {os.getpid()} fails:", file=sys.stderr)
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 1)


@cache
def end_children_at_exit() -> None:
    """End forked children before MPI's exit handler: only the rank may finalize MPI.

    A child's ``sys.exit`` code is unknown here: it ends with 0, or with 1 after an exception.
    """
    process = os.getpid()

    def ends() -> None:
        if os.getpid() != process:
            end_child(SystemExit(int(hasattr(sys, "last_type"))))

    atexit.register(ends)
