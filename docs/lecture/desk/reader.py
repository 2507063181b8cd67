"""What a reader writes: a cell is the file ``your.py`` of the current folder, and is read as any user's file."""

import contextlib
import io
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dear_mpi.collectives.program.user_file import Endless, Source, defined, in_time, load, telling

FILE = "your.py"
MOST_PRINTED = 4000  # characters


@dataclass
class Cell:
    """A text, in its file, and what it prints when it is loaded, and in one run: proofs call it again and again."""

    text: str
    printed: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        load.cache_clear()  # it is run anew, and prints anew

    def name(self, kind: str) -> str:
        """``your.py:NAME`` of the last thing of this kind (``user_file.py`` has them); ValueError: there is none."""
        Path(FILE).write_text(self.text, encoding="utf-8")
        names = defined(self.source(kind, ""))
        if not names:
            wanted = {"schedule": "a class", "route": "a value"}.get(kind, "a function")
            raise ValueError(f"the cell defines no {kind}: it must have {wanted}")
        return f"{FILE}:{names[-1]}"

    def source(self, kind: str, name: str) -> Source:
        return Source(kind, Path(FILE).resolve(), self.text.encode("utf-8"), name)

    def value(self, kind: str) -> Any:
        """The last thing of this kind itself."""
        with contextlib.redirect_stdout(self.printed):
            return load(self.source(kind, self.name(kind).partition(":")[2]))

    def prints(self, run: Callable[[], object]) -> None:
        """Keep what is printed in one run, up to where it fails: why, is said elsewhere."""
        with contextlib.redirect_stdout(self.printed), contextlib.suppress(ValueError, Endless), telling("this run"):
            in_time(run)

    @property
    def output(self) -> str:
        text = self.printed.getvalue()
        return text if len(text) <= MOST_PRINTED else f"{text[:MOST_PRINTED]}\n…"


def line_of(error: BaseException | None) -> int | None:
    """The line of the cell in which an error was raised, or that cannot be read; None if it was elsewhere."""
    found = None
    while error is not None:
        if isinstance(error, SyntaxError):
            return error.lineno
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.endswith(FILE):
                found = frame.lineno
        error = error.__cause__
    return found
