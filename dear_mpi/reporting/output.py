"""Report unwritable standard output (a full disk) in one line, with exit code 1."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any


def printable(text: str) -> str:
    """Escape characters that command a terminal: names come from others' files.

    >>> printable("a\\x1b[2Jb"), printable("µs")
    ('a\\\\x1b[2Jb', 'µs')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def to_nowhere(stream: IO[str]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class StandardOutput(io.TextIOWrapper):
    """Report a failed write once, or nothing if the reader has left; then discard text.

    The command finishes its work, so that no rank waits.
    """

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


@contextmanager
def output() -> Iterator[None]:
    """Guard standard output until the process ends; lost text changes the exit code."""
    given: Any = sys.stdout
    if given is None:
        yield
        return
    how = {name: getattr(given, name) for name in ("encoding", "errors", "line_buffering", "write_through")}
    sys.stdout = mine = StandardOutput(given.detach(), **how)
    try:
        yield
    except SystemExit as ended:
        mine.flush()
        if mine.lost and not ended.code:
            raise SystemExit(1) from None
        raise
