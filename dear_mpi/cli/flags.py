"""The flags that several commands share, each declared once.

``--model`` to ``--compute`` are the fields of ``Config``, which has their types and defaults. A new field needs one
line in ``CONFIG_FLAGS`` to be a flag of ``train`` and of ``compare``.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, cast, get_type_hints

import typer
from typer import Option

from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.optimizers import OPTIMIZERS
from dear_mpi.reporting.units import format_bytes, parse_bytes
from dear_mpi.training.learning_rate import DECAYS
from dear_mpi.training.routes.find import ROUTES
from dear_mpi.training.runs.config import Config
from dear_mpi.training.schedules import SCHEDULES

T = TypeVar("T")

Flags: TypeAlias = Mapping[str, Any]

NAMES = ", ".join(ALGORITHMS)
STALL_AFTER = "30s"
SEGMENT = f"{format_bytes(default_segment([0]))} on one host, {format_bytes(default_segment([0, 1]))} between hosts"
TABLES = "resnet50, densenet201, inceptionv4, bert_base, bert_large or FILE.json"
MODELS = "Model to train: mlp, cnn, gpt, FILE.py:FUNCTION, or synthetic:TABLE, whose layers only take time: TABLE is "
FUSION_BY_SIZE = (
    "How layers are fused into buckets. none: a bucket for each layer; layers:4: one for every 4 layers; buckets:8: 8 "
    "of similar size; 25MB: layers up to this size; tensors: one for each tensor; cut:4MB: exactly this size, also "
    "inside a tensor"
)
FUSION_AS_GIVEN = (
    "ddp, horovod, mgwfbp: as the source of that schedule does; own: as the source of each schedule does; at:N,N: at "
    "these elements; FILE.py:FUNCTION: as a function of a file says"
)
TUNED = "bo: sizes are tried during training (also bo:grid, bo:random, bo:1MB..64MB); auto: the best size is predicted"
FUSION = f"{FUSION_BY_SIZE}; {TUNED}; {FUSION_AS_GIVEN}."
PLOT = "Draw the rows of the table into FILE.png, FILE.pdf or FILE.svg."
MEMORY = "How MPI gets GPU memory: direct, staged (copied to the host first), or auto (direct if a trial succeeds)."

DeviceMemory = Annotated[str, Option(help=MEMORY)]
JSON = "Write the result to FILE, as JSON. An older FILE is kept as FILE.old."
JsonFile = Annotated[Path | None, Option("--json", metavar="FILE", help=JSON)]
LINK = Option(
    help="Emulate a link of this bandwidth and latency by delaying messages, e.g. 10gbit,50us.",
    show_default="the real one",
)
THREADS = Option(
    min=1, help="Number of ranks, which run as threads of one process, without MPI.", show_default="an MPI job"
)
Link = Annotated[str | None, LINK]
STALL = "Report each rank that has waited for the same thing for this long, with what it waits for and why. 0s: never."
ABORT = "End the job with a non-zero exit code when a rank has waited for as long as --stall-after says."
StallAfter = Annotated[str, Option(help=STALL)]
StallAbort = Annotated[bool, Option("--stall-abort", help=ABORT)]
Threads = Annotated[int | None, THREADS]
TIMELINE = (
    "Write what each rank did, and when, in the last iterations: FILE.json for the Perfetto viewer; FILE.png, FILE.svg "
    "or FILE.pdf as a picture; several with commas."
)
TimelineFiles = Annotated[str | None, Option("--timeline", metavar="FILE", help=TIMELINE, show_default="none")]


def of_optimizers(setting: str) -> str:
    """The defaults of the optimisers that have this setting.

    >>> of_optimizers("momentum")
    '0.0 for sgd'
    """
    return ", ".join(f"{vars(kind)[setting]} for {name}" for name, kind in OPTIMIZERS.items() if setting in vars(kind))


# `show_default` says in words what holds without the flag, where Config has no default value.
CONFIG_FLAGS = {
    "model": Option(help=f"{MODELS}{TABLES}."),
    "data": Option(help="Data to train on: digits, FILE.npz (arrays x and y), or any text file (for gpt)."),
    "schedule": Option(help=f"Schedule, which decides when gradients travel: {', '.join(SCHEDULES)}, or FILE.py:NAME."),
    "fusion": Option(help=FUSION, show_default="by model"),
    "algorithm": Option(
        help=f"Collective algorithm: {NAMES}, FILE.py:FUNCTION, native (the MPI library's own), auto (by message "
        "size), or auto:FILE (by message size, from the FILE of bench --tune)."
    ),
    "segment_bytes": Option("--segment", help="Size of the largest message, e.g. 256KiB.", show_default=SEGMENT),
    "optimizer": Option(help=f"Optimiser: {', '.join(OPTIMIZERS)}.", show_default="by model"),
    "lr": Option(help="Learning rate.", show_default=of_optimizers("lr")),
    "momentum": Option(help="Momentum factor.", show_default=of_optimizers("momentum")),
    "nesterov": Option("--nesterov", help="Use Nesterov momentum."),
    "weight_decay": Option(
        help="Weight decay of all parameters, including biases: an L2 penalty for sgd and adam, decoupled for adamw.",
        show_default=of_optimizers("weight_decay"),
    ),
    "beta1": Option(help="Decay rate of the running mean of gradients.", show_default=of_optimizers("beta1")),
    "beta2": Option(help="Decay rate of the running mean of squared gradients.", show_default=of_optimizers("beta2")),
    "epsilon": Option(
        help="Small number that keeps the denominator of an update above zero.", show_default=of_optimizers("epsilon")
    ),
    "decay": Option(help=f"How the learning rate falls until the last iteration: {', '.join(DECAYS)}."),
    "warmup": Option(help="Number of iterations over which the learning rate rises to --lr."),
    "batch": Option(help="Number of examples in an iteration, over all ranks together.", show_default="by model"),
    "accumulate": Option(
        help="Number of parts that each batch is split into. Gradients of all parts add up, and then travel."
    ),
    "clip": Option(
        help="Largest norm of all gradients together; above it, all are scaled by CLIP / norm (torch: norm + 1e-6).",
        show_default="no limit",
    ),
    "loss_scale": Option(
        help="none, or dynamic: gradients are scaled up while they travel, and an iteration that overflows is skipped."
    ),
    "update": Option(
        help="full: each rank updates all parameters. sharded: each rank updates one part of the parameters, and keeps "
        "the optimiser's state for that part only. auto: sharded where that gives the same bits, else full.",
        show_default="full",
    ),
    "route": Option(
        help=f"What gradients go through: {', '.join(ROUTES)}, or FILE.py:NAME. In place of --update.",
        show_default="as --update says",
    ),
    "iterations": Option(help="Number of iterations.", show_default="by model"),
    "dtype": Option(help=f"Type of the parameters: fp32 or fp64; for synthetic models {', '.join(DTYPES)}."),
    "wire": Option(
        help=f"Type in which gradients travel: {', '.join(DTYPES)}.", show_default="the type of the parameters"
    ),
    "device": Option(help="Where the model is: cpu, or cuda (each rank takes the next GPU of its host)."),
    "seed": Option(help="Seed of the initial parameters and of the order of the data."),
    "debug": Option(
        "--debug",
        help="Check in every iteration that ranks start the same collectives and that layers write their gradients.",
    ),
    "context": Option(help="Number of bytes of text that gpt sees at once."),
    "forward_time": Option(
        help="Seconds that the forward pass of a synthetic model takes.", show_default="0.1, or that of a profile"
    ),
    "backward_time": Option(
        help="Seconds that the backward pass of a synthetic model takes.",
        show_default="twice the forward time, or in the ratio of a profile",
    ),
    "compute": Option(
        help="How a synthetic model spends its time: sleep (leaves its core free), or spin (keeps it busy)."
    ),
}


def parsed(flag: str, parse: Callable[[str], T], text: str) -> T:
    """What the text of a flag means; if it means nothing, the error names the flag."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None


def listed(flag: str, text: str, between: str = ",") -> tuple[str, ...]:
    """What stands between commas, or between what this pattern finds.

    >>> listed("--fusion", "own,at:0,100,25MB", BETWEEN_FUSIONS)
    ('own', 'at:0,100', '25MB')
    """
    items = tuple(re.split(between, text))
    if not all(items):
        raise ValueError(f"{flag} takes one or several with commas between them, not {text!r}")
    return items


# A comma; but not one before a plain number, which goes on with the numbers of at:N,N.
BETWEEN_FUSIONS = r",(?!\d+(?:,|$))"

# Fields that are not what is typed.
PARSE: dict[str, Callable[[str], Any]] = {"segment_bytes": partial(parsed, "--segment", parse_bytes)}


def parameter(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    """A flag as Typer reads it: a parameter of a function."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def config_parameter(name: str, option: Any) -> inspect.Parameter:
    """The flag of a field of ``Config``."""
    kind = str if name in PARSE else get_type_hints(Config)[name]
    return parameter(name, cast(Any, Annotated)[kind | None, option], getattr(Config, name, None))


JOB_FLAGS = {name: config_parameter(name, option) for name, option in CONFIG_FLAGS.items()} | {
    "device_memory": parameter("device_memory", DeviceMemory, "auto"),
    "link": parameter("link", Link),
    "threads": parameter("threads", Threads),
    "stall_after": parameter("stall_after", StallAfter, STALL_AFTER),
    "stall_abort": parameter("stall_abort", StallAbort, False),
    "timeline": parameter("timeline", TimelineFiles),
    "json_file": parameter("json_file", JsonFile),
}


def with_flags(table: Mapping[str, inspect.Parameter], **defaults: Any) -> Callable[..., Callable[..., None]]:
    """Make a command of a function that takes a mapping of flags: those that were typed, and these defaults."""
    shown = [flag.replace(default=defaults.get(name, flag.default)) for name, flag in table.items()]
    shown.append(parameter("typer_context", typer.Context, inspect.Parameter.empty))

    def decorate(function: Callable[[Flags], None]) -> Callable[..., None]:
        def command(*, typer_context: Any, **flags: Any) -> None:
            typed = {name for name in flags if typer_context.get_parameter_source(name).name != "DEFAULT"}
            function(defaults | {name: flags[name] for name in flags if name in typed})

        command.__doc__ = function.__doc__
        command.__annotations__ = {flag.name: flag.annotation for flag in shown}
        command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return command

    return decorate


def config_of(flags: Flags) -> Config:
    """The configuration that the flags ask for."""
    given = {name: flags[name] for name in CONFIG_FLAGS if name in flags}
    return Config.of(given | {name: parse(given[name]) for name, parse in PARSE.items() if name in given})
