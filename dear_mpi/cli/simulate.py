"""The command ``dear-mpi simulate``."""

from typing import Annotated

from typer import Option

from dear_mpi.cli.flags import NAMES, JsonFile, listed
from dear_mpi.cli.run import check_alone, complaining, set_aside, write_json
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.reporting.files import check_writable
from dear_mpi.reporting.terminal import bar
from dear_mpi.simulate.network import PRESETS
from dear_mpi.simulate.sweep import Settings
from dear_mpi.simulate.sweep import simulate as run_simulation
from dear_mpi.simulate.table import show_simulation
from dear_mpi.training.schedules import SCHEDULES

__all__ = ["simulate"]

NETWORK = (
    "The network: 10gbit,50us; with o=1us (processor time of a message) and gamma=0.1ns (of a byte that is summed); "
    f"INSIDE/BETWEEN,hosts=N; FILE.json of dear-mpi bench; or {', '.join(PRESETS)}."
)
SEVERAL = "several with commas"


def simulate(
    model: Annotated[str, Option(help=f"synthetic:TABLE; {SEVERAL}.")] = "synthetic:resnet50",
    ranks: Annotated[str, Option(help=f"Number of ranks; {SEVERAL}.")] = "64",
    network: Annotated[str, Option(help=NETWORK)] = "10gbit,50us",
    schedules: Annotated[str, Option(help=f"{', '.join(SCHEDULES)}, or FILE.py:NAME; {SEVERAL}.")] = "wfbp,dear",
    fusion: Annotated[str, Option(help=f"Where buckets are cut, as for train; {SEVERAL}.")] = "25MB",
    algorithm: Annotated[str, Option(help=f"One of {NAMES} that sends messages.")] = "ring",
    forward_time: Annotated[float, Option(help="Seconds of the forward pass.")] = 0.1,
    backward_time: Annotated[
        float | None, Option(help="Seconds of the backward pass.", show_default="twice the forward time")
    ] = None,
    update_time: Annotated[float, Option(help="Seconds of the optimiser for a million parameters.")] = 0.0,
    wire: Annotated[str, Option(help=f"Type in which gradients travel: {', '.join(DTYPES)}.")] = "fp32",
    straggler: Annotated[
        str | None, Option(help="A rank that computes slower, and how many times, e.g. 7:1.5.", show_default="none")
    ] = None,
    jitter: Annotated[str, Option(help="Spread of the time of each layer on each rank, e.g. 5%.")] = "0%",
    iterations: Annotated[int, Option(min=1, help="Iterations to average over; all alike without jitter.")] = 1,
    seed: Annotated[int, Option(min=0, help="Fixes the jitter.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Predict training on any number of ranks and any network, without MPI: the trainer runs on a virtual clock.

    Example: dear-mpi simulate --model synthetic:bert_base --ranks 16,64 --network 100gbit,5us --schedules wfbp,dear
    """
    with complaining(mpi=False):
        check_alone("simulate", 1)
        if json_file is not None:
            check_writable("--json", json_file)
        settings = Settings(
            models=listed("--model", model),
            ranks=tuple(map(whole, listed("--ranks", ranks))),
            network=network,
            schedules=listed("--schedules", schedules),
            fusions=listed("--fusion", fusion),
            algorithm=algorithm,
            forward_s=forward_time,
            backward_s=backward_time,
            update_s=update_time * 1e-6,
            wire=wire,
            straggler=straggler,
            jitter=jitter,
            iterations=iterations,
            seed=seed,
        )
        if json_file is not None:
            set_aside(json_file)
        with bar(None, len(list(settings.cases())), "simulating") as progress:
            found = run_simulation(settings, progress)
        show_simulation(found)
        if json_file is not None:
            write_json([each.row for each in found], json_file)


def whole(text: str) -> int:
    """A number of ranks."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--ranks must be whole numbers of at least 1, not {text!r}")
    return int(text)
