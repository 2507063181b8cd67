"""Run ``dear-mpi bench-kernels``."""

from typing import Any

from dear_mpi.bench.kernels import MODELS, SEGMENTS, check_memory, show_kernels
from dear_mpi.bench.kernels import bench_kernels as run_kernels
from dear_mpi.cli.files import check_files, written_by
from dear_mpi.cli.flags import Flags, flag, shared
from dear_mpi.cli.run import run_ranks, with_flags
from dear_mpi.models.synthetic import load_modules
from dear_mpi.ranks.streams import open_streams, select_gpu
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.declared import listed, parsed

FLAGS = shared("json_file") | flag("device", str, "Where the kernels run: cpu or cuda.")
FLAGS |= flag("models", str, "Models whose tensors are packed, with commas.")


@with_flags(FLAGS, alone="bench-kernels", device="cpu", models=",".join(MODELS))
def bench_kernels(flags: Flags) -> None:
    """Example: dear-mpi bench-kernels --models resnet50"""

    def command(world: World) -> list[dict[str, Any]]:
        rows = []
        with bar(world, 4 * len(tables) + len(SEGMENTS), "kernels") as progress:
            for row in run_kernels(streams, tables):
                rows.append(row)
                progress(f"{row['kernel']}, {row['tensors']}")
        show_kernels(world, rows, flags["device"])
        return rows

    names = listed("--models", flags["models"])
    check_distinct("--models", names)
    check_files({"--models": names}, written_by(flags))
    tables = {name: parsed("--models", load_modules, name) for name in names}
    check_memory(tables)
    select_gpu(flags["device"])
    streams = parsed("--device", open_streams, flags["device"])
    run_ranks(command, {**flags, "threads": 1})
