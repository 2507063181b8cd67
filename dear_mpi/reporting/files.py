"""Files that a command will write: whether it can is found out before the work."""

import os
from pathlib import Path

__all__ = ["check_writable"]


def check_writable(flag: str, path: Path) -> None:
    """See that a file can be written; ``flag`` is how the user named it.

    Raises:
        ValueError: it is a folder, it is in none, or it is read-only.
    """
    if path.is_dir():
        raise ValueError(f"{flag} {str(path)!r} cannot be written: it is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{flag} {str(path)!r} cannot be written: there is no such folder, or it is read-only")
