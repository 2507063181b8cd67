"""Results as JSON files. That a file can be written is seen before the work and not after it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.ranks.world import World

__all__ = ["json_writer"]


def json_writer(world: World, path: Path | None) -> Callable[[Any], None]:
    """Collective: see that rank 0 can write the file, now rather than after the work; the call that writes it."""

    def check() -> Mapping[str, Any]:
        if path is not None and world.rank == 0 and not os.access(path.parent, os.W_OK):
            raise ValueError(f"--json {str(path)!r} cannot be written: there is no such folder, or it is read-only")
        return {}

    def write(value: Any) -> None:
        if path is not None and world.rank == 0:
            path.write_text(json.dumps(value, indent=1) + "\n")

    agree(world.transport, "output", check)
    return write
