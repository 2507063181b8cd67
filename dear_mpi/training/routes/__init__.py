"""Define what happens to a bucket, as data; schedules decide when it happens.

All names here are public, for route files and for packages that publish a wire (a ``Kind``).
"""

from dear_mpi.training.routes.codes import ROW_BYTES, Decode, Encode, InRows, OfCodes, Recall
from dear_mpi.training.routes.find import FULL, SHARDED, Kind, coded, share, whole
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.stages import (
    ENGINE,
    MAIN,
    Act,
    BucketMemory,
    Memory,
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
from dear_mpi.training.routes.wires import Blocks

__all__ = [
    "ENGINE",
    "MAIN",
    "Act",
    "Blocks",
    "BucketMemory",
    "Decode",
    "Encode",
    "InRows",
    "Memory",
    "OfCodes",
    "Pack",
    "Stage",
]
__all__ += ["Recall", "Route", "Shape", "Unpack", "Update", "all_gather", "all_reduce", "all_to_all"]
__all__ += ["FULL", "ROW_BYTES", "SHARDED", "Kind", "coded", "reduce_scatter", "share", "whole"]
