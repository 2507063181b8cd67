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

SEGMENT_BYTES = 1 << 20  # makes no difference to the library


def serve(world: World) -> None:
    """Collective: answer until rank 0 is told to end."""

    def say(answer: Any) -> None:
        if world.rank == 0:
            print(MARK + json.dumps(answer), flush=True)

    interleaved: Interleaved | None = None
    say({"library": world.transport.name, "ranks": world.size})
    while order := rank_0_does(world, lambda: json.loads(sys.stdin.readline() or "null")):
        case, keys = Case(**order["case"]), [(name, SEGMENT_BYTES) for name in order["calls"]]
        if interleaved is None or interleaved.case != case:
            if interleaved is not None:
                interleaved.free()
            interleaved = Interleaved(case, keys, world, open_streams(case.device))
        found = interleaved.run(order["turns"])
        say({name: asdict(samples) for (name, _), samples in found.items()} | interleaved.left_out)


if __name__ == "__main__":
    run_world(serve)
