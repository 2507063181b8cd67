"""What the commands with ``--timeline FILE`` share."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dear_mpi.collectives.transports.agree import by_rank_0
from dear_mpi.ranks.world import World
from dear_mpi.see.timeline.write import check_endings, check_timeline, write_timeline
from dear_mpi.training.declared import listed
from dear_mpi.training.recording import Show

FLAG = "--timeline"


def timeline_files(text: str | None) -> tuple[Path, ...]:
    """The files that the flag names, with commas.

    Raises:
        ValueError: an ending does not tell what to write.
    """
    paths = () if text is None else tuple(map(Path, listed(FLAG, text)))
    check_endings(FLAG, paths)
    return paths


def timeline_writer(world: World, paths: Sequence[Path]) -> Show | None:
    """Collective: what writes a timeline; None if there is nothing to write.

    Raises:
        ArgumentError: rank 0 cannot write a file; on all ranks.
    """
    if not paths:
        return None
    by_rank_0(world.transport, "timeline", lambda: check_timeline(FLAG, paths))
    return partial(write_timeline, FLAG, paths)
