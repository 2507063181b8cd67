"""The job that ``other_mpi.py`` starts: the MPI library's own collectives, when they are asked for, line by line."""

import json
import sys
from dataclasses import asdict
from typing import Any

from dear_mpi.bench.case import Case
from dear_mpi.bench.interleaved import Interleaved
from dear_mpi.bench.other_mpi import MARK, rank_0_does
from dear_mpi.ranks.streams import open_streams
from dear_mpi.ranks.world import World, run_world

__all__ = ["serve"]

LIBRARY = ("native", 1 << 20)


def serve(world: World) -> None:
    """Collective: answer until rank 0 is told to end."""

    def say(answer: Any) -> None:
        if world.rank == 0:
            print(MARK + json.dumps(answer), flush=True)

    interleaved: Interleaved | None = None
    say({"library": world.transport.name, "ranks": world.size})
    while order := rank_0_does(world, lambda: json.loads(sys.stdin.readline() or "null")):
        case = Case(**order["case"])
        if interleaved is None or interleaved.case != case:
            if interleaved is not None:
                interleaved.free()
            interleaved = Interleaved(case, [LIBRARY], world, open_streams(case.device))
        samples = interleaved.run(order["turns"]).get(LIBRARY)
        say({"left_out": interleaved.left_out[LIBRARY[0]]} if samples is None else asdict(samples))


if __name__ == "__main__":
    run_world(serve)
