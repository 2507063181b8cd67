from dear_mpi.training.routes import Pack, Route, Unpack, Update, all_gather, reduce_scatter

half = Route(
    "half",
    out=(Pack(), reduce_scatter("gradients")),
    back=(Update(shard=True), all_gather("values"), Unpack()),
    wire="fp16",
)
