"""What a bucket goes through, as data. Schedules say when, routes say what.

``legs.py`` and ``codes.py`` have the acts, ``route.py`` puts them in order, ``memory.py`` and ``proof.py`` show that a
route trains, and ``find.py`` has ours by name, and reads a user's from a file.
"""

from dear_mpi.training.routes.codes import Decode, Encode
from dear_mpi.training.routes.legs import (
    ENGINE,
    MAIN,
    Leg,
    Pack,
    Unpack,
    Update,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from dear_mpi.training.routes.route import Route

__all__ = ["ENGINE", "MAIN", "Decode", "Encode", "Leg", "Pack", "Route", "Unpack", "Update"]
__all__ += ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]
