"""What all pictures share: they are tried before the work, and written as a whole or not at all."""

from pathlib import Path
from typing import Any

from dear_mpi.reporting.files import check_writable, replacing

DOTS_PER_INCH = 150  # of a PNG
FORMATS = (".png", ".pdf", ".svg")  # matplotlib has others, in some of which colours are lost


def check_figure(flag: str, path: Path) -> None:
    """See that there will be a picture, before the work; ``flag`` is how the user named the file.

    Raises:
        ValueError: the file cannot be written, its ending tells no format, or matplotlib is missing.
    """
    check_writable(flag, path)
    try:
        import matplotlib.backend_bases  # noqa: F401
    except ImportError:
        raise ValueError(f"{flag} needs matplotlib: pip install matplotlib (our extra 'plot')") from None
    check_ending(flag, path)


def check_ending(flag: str, path: Path) -> None:
    """See that the name of a picture tells its format, which every rank can do.

    Raises:
        ValueError: it does not.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{flag} {str(path)!r} must end in .png, .pdf or .svg")


def write_figure(flag: str, path: Path, figure: Any) -> None:
    """Write a figure of matplotlib into a file, whose ending decides the format.

    An SVG has no date and no random names: the same figure gives the same file, which a repository can keep.

    Raises:
        ValueError: the file cannot be written.
    """
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    undated = {"metadata": {"Date": None}} if kind == "svg" else {}
    with replacing(flag, path) as file, matplotlib.rc_context({"svg.hashsalt": "dear-mpi"}):
        figure.savefig(file, dpi=DOTS_PER_INCH, format=kind, **undated)
