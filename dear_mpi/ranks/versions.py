"""What this process runs on."""

import platform
import sys

import numpy as np


def versions() -> dict[str, str | None]:
    """Of Python and of what it has loaded; a job of threads has no mpi4py."""
    mpi4py = sys.modules.get("mpi4py")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": None if mpi4py is None else str(mpi4py.__version__),
    }
