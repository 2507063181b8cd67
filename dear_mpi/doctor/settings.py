"""Settings of the kernel, as its files have them."""

from pathlib import Path


def read(file: Path) -> str:
    """What stands in it; "" if it cannot be read.

    >>> read(Path("/no/such/file"))
    ''
    """
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""


def chosen(file: Path) -> str:
    """The word in brackets: of several that can be had, the one that is set."""
    return read(file).partition("[")[2].partition("]")[0]
