"""The command ``dear-mpi bench-kernels``."""

from typing import Annotated, Any

from typer import Option

from dear_mpi.bench.kernels import MODELS, SEGMENTS, check_memory, show_kernels
from dear_mpi.bench.kernels import bench_kernels as run_kernels
from dear_mpi.cli.files import check_files
from dear_mpi.cli.flags import JsonFile
from dear_mpi.cli.run import check_alone, complaining, run_ranks
from dear_mpi.models.paper_models import load_modules
from dear_mpi.ranks.streams import open_streams, select_gpu
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.declared import listed, parsed


def bench_kernels(
    device: Annotated[str, Option(help="Where the kernels run: cpu or cuda.")] = "cpu",
    models: Annotated[str, Option(help="Models whose tensors are packed, with commas.")] = ",".join(MODELS),
    json_file: JsonFile = None,
) -> None:
    """Time pack, unpack and sums beside plain copies, on the tensors of the DeAR paper's models. Runs without MPI."""

    def command(world: World) -> list[dict[str, Any]]:
        rows = []
        with bar(world, 4 * len(tables) + len(SEGMENTS), "kernels") as progress:
            for row in run_kernels(streams, tables):
                rows.append(row)
                progress(f"{row['kernel']}, {row['tensors']}")
        show_kernels(world, rows, device)
        return rows

    with complaining(mpi=False):
        check_alone("bench-kernels", 1)
        names = listed("--models", models)
        check_distinct("--models", names)
        check_files({"--models": names}, [] if json_file is None else [("--json", json_file)])
        tables = {name: parsed("--models", load_modules, name) for name in names}
        check_memory(tables)
        select_gpu(device)
        streams = parsed("--device", open_streams, device)
        run_ranks(command, json_file, threads=1)
