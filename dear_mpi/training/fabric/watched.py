"""Lines that a route keeps from one iteration to the next are looked at, where ``debug`` wants it."""

from collections.abc import Callable, Mapping

from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.kernels.array import Array
from dear_mpi.training.facts import checksum


def watched(
    call: Callable[[float], object], lines: Mapping[str, Array], kept: dict[str, str], route: str, leg: str
) -> Callable[[float], object]:
    """A call that sees first that nothing else has changed lines since the last such call.

    Args:
        lines: by name, what the call works on.
        kept: their checksums; all calls on the same lines share it.
        leg: what the call does, and to which bucket.
    """

    def watch(factor: float) -> None:
        for name, line in lines.items():
            if kept.get(name, now := checksum(line)) != now:
                changed = f"has changed {name!r}, before {leg}"
                raise CollectiveError(f"something else than the route {route!r} {changed}")
        call(factor)
        kept.update({name: checksum(line) for name, line in lines.items()})

    return watch
