"""The command line. Every rank parses it; rank 0 alone prints. Bad input ends all ranks with exit code 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dear_mpi.bench.collective import Settings
from dear_mpi.bench.collective import bench as run_bench
from dear_mpi.bench.kernels import MODELS, SEGMENTS, bench_kernels
from dear_mpi.bench.table import show_bench, show_kernels
from dear_mpi.bench.tune import Tuning
from dear_mpi.cli.demo import DEMO
from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.errors import AgreedError, ProgramError
from dear_mpi.doctor.command import doctor
from dear_mpi.figures.json_file import json_writer
from dear_mpi.figures.units import parse_bytes, parse_link, parse_sizes
from dear_mpi.ranks.streams import open_streams, select_gpu
from dear_mpi.ranks.world import World, launched_rank, run_world
from dear_mpi.see.explain import explain_algorithm
from dear_mpi.see.tables import (
    bar,
    comparison_progress,
    show_comparison,
    show_training,
    training_progress,
)
from dear_mpi.training.compare import compare as run_comparison
from dear_mpi.training.config import Config
from dear_mpi.training.train import train as run_training

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Run that many ranks as threads of this process, without MPI.")
]
LinkText = Annotated[str | None, typer.Option("--link", help="Emulate this link between ranks, e.g. 10gbit,50us.")]
Model = Annotated[str | None, typer.Option(help="mlp, cnn, gpt, synthetic:resnet50 (densenet201, inceptionv4, ...).")]
Fusion = Annotated[str | None, typer.Option(help="none, layers:4, buckets:8, or a size such as 25MB.")]
NAMES = ", ".join(ALGORITHMS)
Algorithm = Annotated[
    str | None,
    typer.Option(help=f"{NAMES}; FILE.py:FUNCTION, auto, auto:FILE (see bench --tune), or native: MPI's own."),
]
Segment = Annotated[str | None, typer.Option(help="Largest message, e.g. 256KiB.")]
ForwardTime = Annotated[float | None, typer.Option(help="Seconds of forward compute of a synthetic model.")]
BackwardTime = Annotated[float | None, typer.Option(help="Seconds of its backward compute; twice that of forward.")]
Compute = Annotated[str | None, typer.Option(help="How a synthetic model spends its time: sleep or spin.")]
Iterations = Annotated[int | None, typer.Option(help="Passes of training.")]
Seed = Annotated[int | None, typer.Option(help="Fixes the weights and the order of the data.")]
Dtype = Annotated[str | None, typer.Option(help="Type of the model: fp32 or fp64.")]
Device = Annotated[str | None, typer.Option(help="Where the model is: cpu, or cuda (a GPU for each rank).")]
DeviceMemory = Annotated[str, typer.Option(help="How a GPU's buffers get to MPI: direct, staged, or auto (tried out).")]
Wire = Annotated[str | None, typer.Option(help="Type in which gradients travel: fp64, fp32, fp16 or bf16.")]


@contextmanager
def complaining(threads: int | None) -> Iterator[None]:
    """Turn bad input into one line on standard error and exit code 2; under mpirun, rank 0 says it for all."""
    try:
        yield
    except (ValueError, AgreedError, ProgramError) as error:
        if (launch_of(os.environ).rank if threads is not None else launched_rank()) == 0:
            # On one line however long it is, so that it can be searched for.
            Console(stderr=True).print(
                f"error: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True
            )
        raise typer.Exit(2) from None


def check_alone(what: str, threads: int | None) -> None:
    """What runs in one process must not be started as several."""
    if threads is not None and launch_of(os.environ).size > 1:
        raise ValueError(f"{what} runs in one process: start it without mpirun")


def config_of(flags: dict[str, Any]) -> Config:
    """Flags to configuration; those that were not given take the model's preset."""
    segment = flags.get("segment")
    settings = {field.name: flags.get(field.name) for field in fields(Config)}
    return Config.of(settings | {"segment_bytes": None if segment is None else parse_bytes(segment)})


@app.command()
def train(
    context: typer.Context,
    model: Model = None,
    data: Annotated[str | None, typer.Option(help="digits, FILE.npz (arrays x, y), or FILE.txt for gpt.")] = None,
    schedule: Annotated[str | None, typer.Option(help="sequential, wfbp or dear.")] = None,
    fusion: Fusion = None,
    algorithm: Algorithm = None,
    segment: Segment = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd.")] = None,
    nesterov: Annotated[bool | None, typer.Option("--nesterov", help="Nesterov's form of momentum.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="L2 penalty.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per iteration, of the whole job.")] = None,
    iterations: Iterations = None,
    dtype: Dtype = None,
    wire: Wire = None,
    device: Device = None,
    device_memory: DeviceMemory = "auto",
    seed: Seed = None,
    debug: Annotated[bool | None, typer.Option("--debug", help="Compare every collective over the ranks.")] = None,
    window: Annotated[int | None, typer.Option("--context", help="Bytes of text that gpt sees at once.")] = None,
    forward_time: ForwardTime = None,
    backward_time: BackwardTime = None,
    compute: Compute = None,
    link: LinkText = None,
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """Train a model with a communication schedule.

    mpirun -n 4 dear-mpi train --model cnn --data digits --schedule dear
    """
    flags = context.params | {"context": window}

    def command(world: World, config: Config) -> None:
        write = json_writer(world, json_file)
        with training_progress(world, config) as progress:
            report = run_training(config, world, progress)
        show_training(world, report)
        write(report)

    with complaining(threads):
        check_alone("--threads", threads)
        config, speed = config_of(flags), None if link is None else parse_link(link)
        select_gpu(config.device)
        run_world(lambda world: command(world, config), link=speed, threads=threads, device_memory=device_memory)


@app.command()
def compare(
    context: typer.Context,
    model: Model = "synthetic:resnet50",
    schedules: Annotated[str, typer.Option(help="Names, with commas; speed-ups are against the first.")] = "wfbp,dear",
    data: Annotated[str | None, typer.Option(help="digits, FILE.npz (arrays x, y), or FILE.txt for gpt.")] = None,
    fusion: Fusion = None,
    algorithm: Algorithm = None,
    segment: Segment = None,
    batch: Annotated[int | None, typer.Option(help="Examples per iteration, of the whole job.")] = None,
    iterations: Iterations = None,
    dtype: Dtype = None,
    wire: Wire = None,
    device: Device = None,
    device_memory: DeviceMemory = "auto",
    seed: Seed = None,
    forward_time: ForwardTime = None,
    backward_time: BackwardTime = None,
    compute: Compute = None,
    link: LinkText = None,
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """Time one model under several schedules that take turns.

    mpirun -n 4 dear-mpi compare --model synthetic:resnet50 --schedules sequential,wfbp,dear --link 1gbit,50us
    """
    names = schedules.split(",")

    def command(world: World, config: Config) -> None:
        write = json_writer(world, json_file)
        with comparison_progress(world, config, names) as progress:
            rows = run_comparison(config, world, names, progress)
        show_comparison(world, rows)
        write(rows)

    with complaining(threads):
        check_alone("--threads", threads)
        config, speed = config_of(context.params), None if link is None else parse_link(link)
        select_gpu(config.device)
        run_world(lambda world: command(world, config), link=speed, threads=threads, device_memory=device_memory)


@app.command()
def demo(threads: Threads = None) -> None:
    """A first look: train a classifier with DeAR, then hold DeAR against its peers. A minute on 4 ranks."""
    with complaining(threads):
        for part in DEMO:
            run_world(part.show, link=None if part.link is None else parse_link(part.link), threads=threads)


@app.command()
def bench(
    collective: Annotated[
        str, typer.Option(help="all_reduce, reduce_scatter, all_gather, broadcast, reduce; several with commas.")
    ] = "all_reduce",
    sizes: Annotated[
        str,
        typer.Option(help="Bytes of the full buffer, whole elements of them; with commas; 4B:64MiB: by powers of 4."),
    ] = "256KiB:64MiB",
    algorithms: Annotated[
        str, typer.Option(help=f"backends, with commas: {NAMES}, auto; native, mpich, openmpi, gloo, prototype.")
    ] = "",
    placement: Annotated[str, typer.Option(help="Results in place (in) or in a second buffer (out).")] = "in",
    dtype: Annotated[str, typer.Option(help="fp64, fp32, fp16 or bf16.")] = "fp32",
    op: Annotated[str, typer.Option(help="sum, prod, min, max or average.")] = "sum",
    segment: Annotated[str, typer.Option(help="Largest message, e.g. 512KiB; several with commas.")] = "",
    device: Annotated[str, typer.Option(help="Where the buffer is: cpu or cuda.")] = "cpu",
    memory: Annotated[
        str, typer.Option(help="On cpu: shared (our plans reach it from all ranks of a host) or private.")
    ] = "shared",
    device_memory: DeviceMemory = "auto",
    seconds: Annotated[float, typer.Option(help="How long to measure each size at most, in up to 200 calls.")] = 2.0,
    other_mpi: Annotated[
        str, typer.Option(metavar="COMMAND", help="Launcher of the other MPI, e.g. 'mpirun.mpich -f hosts'.")
    ] = "",
    tune: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the fastest of ours by size, for --algorithm auto:FILE.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Time our collectives against those of MPI libraries and others, in turns.

    mpirun -n 4 dear-mpi bench --algorithms native,ring,auto,mpich --sizes 4B:64MiB
    """

    def command(world: World, settings: Settings) -> int:
        write = json_writer(world, json_file)
        tuning = None if tune is None else Tuning(tune, settings.names, world)
        with bar(world, len(list(settings.cases())), "warming up") as progress:
            report = run_bench(settings, world, progress)
        show_bench(world, report)
        write([asdict(row) for row in report.rows])
        if tuning is not None:
            tuning.write(report.rows)
        return sum(row.wrong for row in report.rows)

    with complaining(None):
        settings = Settings(
            sizes=tuple(parse_sizes(sizes)),
            collectives=tuple(collective.split(",")),
            algorithms=tuple(algorithms.split(",")) if algorithms else (),
            placement=placement,
            dtype=dtype,
            op=op,
            segments=tuple(map(parse_bytes, segment.split(","))) if segment else (),
            device=device,
            memory=memory,
            seconds=seconds,
            other_mpi=other_mpi,
        )
        select_gpu(device)
        if run_world(lambda world: command(world, settings), device_memory=device_memory):
            raise typer.Exit(1)


app.command()(doctor)


@app.command("bench-kernels")
def time_kernels(
    device: Annotated[str, typer.Option(help="Where: cpu or cuda.")] = "cpu",
    models: Annotated[str, typer.Option(help="Whose tensors, with commas.")] = ",".join(MODELS),
    json_file: JsonFile = None,
) -> None:
    """Time pack, unpack and sums against plain copies, for the tensors of the paper's models; on one rank, no MPI."""

    def command(world: World) -> None:
        write, rows = json_writer(world, json_file), []
        with bar(world, 4 * len(names) + len(SEGMENTS), "kernels") as progress:
            for row in bench_kernels(open_streams(device), names):
                rows.append(row)
                progress(f"{row.kernel}, {row.tensors}")
        show_kernels(rows, device)
        write([asdict(row) for row in rows])

    with complaining(threads=1):
        names = models.split(",")
        check_alone("bench-kernels", 1)
        select_gpu(device)
        run_world(command, threads=1)


@app.command()
def explain(
    algorithm: Annotated[str, typer.Option(help=f"{NAMES}, or FILE.py:FUNCTION.")] = "ring",
    collective: Annotated[str, typer.Option(help="all_reduce, reduce_scatter, ..., reduce.")] = "all_reduce",
    ranks: Annotated[int, typer.Option(min=1, help="Number of ranks.")] = 4,
    hosts: Annotated[int, typer.Option(min=1, help="On how many hosts they are.")] = 1,
    check: Annotated[bool, typer.Option("--check", help="Prove it for this number of ranks and all below.")] = False,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it, as PNG, PDF or SVG.")] = None,
) -> None:
    """Show a collective algorithm step by step: who sends which chunk to whom, and what each rank holds."""
    with complaining(threads=1):
        explain_algorithm(algorithm, collective, ranks, hosts=hosts, check=check, picture=picture)
