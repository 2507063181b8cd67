"""Local steps: each rank trains alone, and every fourth iteration all take the average of their values."""

from dear_mpi.training.routes import MAIN, Pack, Route, Unpack, Update, all_gather, reduce_scatter

local = Route(
    "local",
    out=(Pack(), Update(alone=True, on=MAIN), reduce_scatter("values", op="average", every=4)),
    back=(all_gather("values", every=4), Unpack()),
)
