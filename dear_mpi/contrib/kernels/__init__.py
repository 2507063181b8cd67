from dear_mpi.cli.commands import Command

COMMAND = Command(
    "Time pack, unpack and sums, and plain copies, on the tensors of the DeAR paper's models. Runs without MPI.",
    "dear_mpi.contrib.kernels.command:bench_kernels",
)
