"""Define what happens to a bucket, as data; schedules decide when it happens.

``stages.py`` and ``codes.py`` define stages, ``route.py`` orders them, ``proof.py`` proves, ``find.py`` finds them.
All names here are public, for route files and for packages that publish a wire (a ``Kind``).
"""

from typing import TYPE_CHECKING, Any

from dear_mpi.training.routes.find import FULL, SHARDED, Kind, share, whole
from dear_mpi.training.routes.proof import Memory
from dear_mpi.training.routes.route import ROW_BYTES, Payload, Route, Sizes
from dear_mpi.training.routes.stages import (
    ENGINE,
    MAIN,
    Act,
    BucketMemory,
    Pack,
    Shape,
    Stage,
    Unpack,
    Update,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)

if TYPE_CHECKING:
    from dear_mpi.training.routes.codes import Blocks, Decode, Encode, InRows, Recall, WithErrors, coded

__all__ = ["ENGINE", "MAIN", "Act", "Blocks", "BucketMemory", "Decode", "Encode", "InRows", "Memory", "Pack", "Payload"]
__all__ += ["Recall", "Route", "Shape", "Stage", "Unpack", "Update", "all_gather", "all_reduce", "all_to_all"]
__all__ += ["FULL", "ROW_BYTES", "SHARDED", "Kind", "Sizes", "WithErrors", "coded", "reduce_scatter", "share", "whole"]


def __getattr__(name: str) -> Any:
    """Load what compresses when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import dear_mpi.training.routes.codes as codes

    return getattr(codes, name)
