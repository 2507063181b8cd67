"""Standard output that cannot be written, such as on a full disk or after ``>&-``, is one line and exit code 1."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any


def printable(text: str) -> str:
    """The text with all that could command a terminal as escapes; line breaks stay.

    Names, kernels and hosts come from files of others: their escape sequences could hide or forge lines.

    >>> printable("a\\x1b[2Jb"), printable("µs")
    ('a\\\\x1b[2Jb', 'µs')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def to_nowhere(stream: IO[str]) -> None:
    """From now on what is written there is lost."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class StandardOutput(io.TextIOWrapper):
    """What it cannot write it says once, unless nobody reads any more, as behind ``head``; from then on text goes
    nowhere. All else that a command does is done, so that no rank waits for this one."""

    lost = False

    def write(self, text: str) -> int:
        with self.unless_full():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self.unless_full():
            super().flush()

    @contextmanager
    def unless_full(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            to_nowhere(self)
        except OSError as error:
            to_nowhere(self)
            self.lost = True
            with suppress(OSError):
                print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)


def open_closed() -> None:
    """Open each standard stream that the caller has closed, so that no file of the job gets its number.

    As in GNU's tools, input and output get a descriptor that fails with "Bad file descriptor" when it is used. Errors
    go to /dev/null.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # the least free number: those below are open
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    if sys.stderr is None:
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


@contextmanager
def output() -> Iterator[None]:
    """From here to the end of the process standard output is such a one; a command that lost text ends with exit code
    1, if not with another."""
    open_closed()
    given: Any = sys.stdout
    how = {name: getattr(given, name) for name in ("encoding", "errors", "line_buffering", "write_through")}
    sys.stdout = mine = StandardOutput(given.detach(), **how)
    try:
        yield
    except SystemExit as ended:
        mine.flush()
        if mine.lost and not ended.code:
            raise SystemExit(1) from None
        raise
