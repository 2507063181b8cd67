"""Standard output that cannot be written, such as on a full disk, is one line and exit code 1."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any


def to_nowhere(stream: IO[str]) -> None:
    """From now on what is written there is lost."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Output(io.TextIOWrapper):
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


@contextmanager
def output() -> Iterator[None]:
    """Meanwhile standard output is such a one; a command that lost text ends with exit code 1, if not with another."""
    given: Any = sys.stdout
    how = {name: getattr(given, name) for name in ("encoding", "errors", "line_buffering", "write_through")}
    sys.stdout = mine = Output(given.detach(), **how)
    try:
        yield
    except SystemExit as ended:
        mine.flush()
        if mine.lost and not ended.code:
            raise SystemExit(1) from None
        raise
