from dear_mpi.training.routes import (
    MAIN, Pack, Route, Unpack, Update,
    all_gather, reduce_scatter,
)

mine = Route(
    "mine",
    out=(Pack(), reduce_scatter("gradients")),
    back=(Update(on=MAIN), all_gather("gradients"), Unpack()),
)
