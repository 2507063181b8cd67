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
from dear_mpi.training.runs.config import Config
from dear_mpi.training.schedules import SCHEDULES

__all__ = ["CONFIG_FLAGS", "JOB_FLAGS", "NAMES", "SEGMENT", "STALL_AFTER", "DeviceMemory", "Flags", "JsonFile"]
__all__ += ["StallAbort", "StallAfter", "Threads", "TimelineFiles", "config_of", "listed", "parameter", "parsed"]
__all__ += ["with_flags"]

T = TypeVar("T")

Flags: TypeAlias = Mapping[str, Any]

NAMES = ", ".join(ALGORITHMS)
STALL_AFTER = "30s"
SEGMENT = f"{format_bytes(default_segment([0]))} on one host, {format_bytes(default_segment([0, 1]))} between hosts"
MODELS = "mlp, cnn or gpt; FILE.py:FUNCTION; or synthetic:TABLE, which only takes the time of TABLE: resnet50, "
FUSION = "Which layers share a bucket: none (each has its own), layers:4 (4 at a time), buckets:8 (8 in all), or "
TUNED = "bo tries sizes while it trains (bo:grid, bo:random, bo:1MB..64MB), auto predicts"
MEMORY = "How GPU memory gets to MPI: direct, staged (copied to the host), or auto (direct if a trial succeeds)."

DeviceMemory = Annotated[str, Option(help=MEMORY)]
JSON = "Write the result to a file, as JSON. An older one becomes FILE.old when the work begins."
JsonFile = Annotated[Path | None, Option("--json", metavar="FILE", help=JSON)]
LINK = Option(help="Emulate a link: slow messages down to it, e.g. 10gbit,50us.", show_default="the real one")
THREADS = Option(min=1, help="Run this many ranks as threads of one process, without MPI.", show_default="an MPI job")
Link = Annotated[str | None, LINK]
StallAfter = Annotated[str, Option(help="Say so when a rank has waited for so long: which, for what, why. 0s: never.")]
StallAbort = Annotated[bool, Option("--stall-abort", help="And end the job then, with an exit code that is not 0.")]
Threads = Annotated[int | None, THREADS]
TIMELINE = "Write who did what when in the last iterations: FILE.json for Perfetto; FILE.png, .svg or .pdf; or both."
TimelineFiles = Annotated[str | None, Option("--timeline", metavar="FILE", help=TIMELINE, show_default="none")]


def of_optimizers(setting: str) -> str:
    """The defaults of the optimisers that have this setting.

    >>> of_optimizers("momentum")
    '0.0 for sgd'
    """
    return ", ".join(f"{vars(kind)[setting]} for {name}" for name, kind in OPTIMIZERS.items() if setting in vars(kind))


# `show_default` says in words what holds without the flag, where Config has no default value.
CONFIG_FLAGS = {
    "model": Option(help=f"{MODELS}densenet201, inceptionv4, bert_base, bert_large or FILE.json."),
    "data": Option(help="What to train on: digits, FILE.npz (arrays x and y), or FILE.txt (text, for gpt)."),
    "schedule": Option(help=f"When gradients travel: {', '.join(SCHEDULES)}, or FILE.py:NAME."),
    "fusion": Option(
        help=f"{FUSION}a size such as 25MB; tensors: one each; cut:4MB cuts inside them; {TUNED}; mgwfbp: from times; "
        "own: as the schedule's source does.",
        show_default="by model",
    ),
    "algorithm": Option(help=f"{NAMES}; FILE.py:FUNCTION; native (MPI's own); auto; auto:FILE (from bench --tune)."),
    "segment_bytes": Option("--segment", help="Size of the largest message, e.g. 256KiB.", show_default=SEGMENT),
    "optimizer": Option(help=f"{' or '.join(OPTIMIZERS)}.", show_default="by model"),
    "lr": Option(help="Learning rate.", show_default=of_optimizers("lr")),
    "momentum": Option(help="Factor of the momentum.", show_default=of_optimizers("momentum")),
    "nesterov": Option("--nesterov", help="Use Nesterov's form of momentum."),
    "weight_decay": Option(
        help="Factor of an L2 penalty on all parameters, biases and gains, too; for adamw of its decoupled decay.",
        show_default=of_optimizers("weight_decay"),
    ),
    "beta1": Option(help="How much of the mean of gradients stays.", show_default=of_optimizers("beta1")),
    "beta2": Option(help="How much of the mean of their squares stays.", show_default=of_optimizers("beta2")),
    "epsilon": Option(help="Added to the root of that mean.", show_default=of_optimizers("epsilon")),
    "decay": Option(help=f"How the learning rate falls until the last iteration: {', '.join(DECAYS)}."),
    "warmup": Option(help="Iterations over which the learning rate rises to --lr."),
    "batch": Option(help="Examples per iteration, over all ranks together.", show_default="by model"),
    "accumulate": Option(help="Split each batch into so many parts; gradients are sent after the last."),
    "clip": Option(
        help="Largest norm of all gradients together: longer ones are scaled by CLIP / norm (torch: norm + 1e-6).",
        show_default="no limit",
    ),
    "loss_scale": Option(help="dynamic: scale gradients while they travel, and skip an iteration if they overflow."),
    "update": Option(
        help="full: each rank updates all parameters; sharded: a part of them, and keeps that part of the state."
    ),
    "iterations": Option(help="Number of iterations.", show_default="by model"),
    "dtype": Option(help=f"Type of the parameters: fp32 or fp64; of synthetic models {', '.join(DTYPES)}."),
    "wire": Option(help=f"Type in which gradients travel: {', '.join(DTYPES)}.", show_default="that of the parameters"),
    "device": Option(help="Where the model is: cpu, or cuda (each rank takes the next GPU of its host)."),
    "seed": Option(help="Fixes the initial parameters and the order of the data."),
    "debug": Option("--debug", help="Check that all ranks start the same collectives, and layers write gradients."),
    "context": Option(help="Bytes of text that a model sees at once."),
    "forward_time": Option(
        help="Seconds that the forward pass of a synthetic model takes.", show_default="0.1, or that of a profile"
    ),
    "backward_time": Option(
        help="Seconds that the backward pass of a synthetic model takes.",
        show_default="twice the forward time, or in the ratio of a profile",
    ),
    "compute": Option(help="How a synthetic model spends its time: sleep, or spin (keeps a core busy)."),
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
