from dear_mpi.training.routes import (
    Pack, Route, Unpack, Update,
    all_gather, reduce_scatter,
)

mine = Route(
    "mine",
    out=(Pack(), reduce_scatter("gradients")),
    back=(Update(shard=True), all_gather("values"), Unpack()),
)
