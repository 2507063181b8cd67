"""Flags: those of options, which ``training/options.py`` declares, and others that several commands share."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer
from typer import Option

from dear_mpi.training.declared import Declared, listed, options_of
from dear_mpi.training.runs.config import Config

Flags: TypeAlias = Mapping[str, Any]

STALL_AFTER = "30s"
MEMORY = "How MPI gets GPU memory: direct, staged (copied to the host first), or auto (direct if a trial succeeds)."

PLOT = "Draw the rows of the table into FILE.png, FILE.pdf or FILE.svg."
Plot = Annotated[Path | None, Option("--plot", metavar="FILE", help=PLOT)]
DeviceMemory = Annotated[str, Option(help=MEMORY)]
JSON = "Write the result to FILE, as JSON. An older FILE is kept as FILE.old."
JsonFile = Annotated[Path | None, Option("--json", metavar="FILE", help=JSON)]
LINK = (
    "Emulate a link of this bandwidth and latency by delaying messages, e.g. 10gbit,50us; or INSIDE/BETWEEN,hosts=N "
    "(or per_host=N): links inside and between emulated hosts, the ranks of each of which share a port to the others."
)
Link = Annotated[str | None, Option(help=LINK, show_default="the real one")]
RATES = (
    "Bandwidth of a rank inside its host, and of a host to others, for algorithms that ask for it, such as themis: "
    "100gbit/10gbit, or FILE.json of dear-mpi doctor."
)
Rates = Annotated[str | None, Option(help=RATES, show_default="those of --link, else unknown")]
THREADS = "Number of ranks, which run as threads of one process, without MPI."
MOST_THREADS = 256  # they share one interpreter: more would take minutes for what takes seconds elsewhere
Threads = Annotated[int | None, Option(min=1, max=MOST_THREADS, help=THREADS, show_default="an MPI job")]
STALL = "Report each rank that has waited for the same thing for this long, with what it waits for and why. 0s: never."
ABORT = "End the job with a non-zero exit code when a rank has waited for as long as --stall-after says."
StallAfter = Annotated[str, Option(help=STALL)]
StallAbort = Annotated[bool, Option("--stall-abort", help=ABORT)]
TIMELINE = (
    "Write what each rank did, and when, in the last iterations: FILE.json for the Perfetto viewer; FILE.png, FILE.svg "
    "or FILE.pdf as a picture; several with commas."
)
TimelineFiles = Annotated[str | None, Option("--timeline", metavar="FILE", help=TIMELINE, show_default="none")]


def parameter(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    """A flag as Typer reads it: a parameter of a function."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def flags_of(kind: type[Declared]) -> dict[str, inspect.Parameter]:
    """The flags of a kind of options, each with the help, the type and the default of its field."""
    hints, found = get_type_hints(kind), {}
    for name, said in options_of(kind).items():
        default = getattr(kind, name, None)
        if isinstance(default, tuple):  # of several values, with commas
            default = ",".join(map(str, default)) or None
        shown: Any = said.shown or True
        flag = Option(*said.flags, help=said.help, show_default=shown, metavar=said.metavar)
        typed: Any = said.typed or hints[name]
        found[said.name(name)] = parameter(said.name(name), Annotated[typed | None, flag], default)
    return found


def chosen(kind: type[Declared], flags: Flags) -> dict[str, Any]:
    """What was typed for the options of a kind, as their values."""
    found = {}
    for name, said in options_of(kind).items():
        if said.name(name) in flags:
            value = flags[said.name(name)]
            found[name] = value if said.parse is None else said.parse(value)
    return found


def files_of(kind: type[Declared], flags: Flags) -> dict[str, Sequence[str]]:
    """What was typed for the options that may name files, by their flags."""
    found: dict[str, Sequence[str]] = {}
    for name, said in options_of(kind).items():
        if said.may_be_file and said.name(name) in flags:
            flag, text = f"--{said.name(name)}", flags[said.name(name)]
            found[flag] = [str(text)] if said.between is None else listed(flag, text, said.between)
    return found


JOB_FLAGS = flags_of(Config) | {
    "device_memory": parameter("device_memory", DeviceMemory, "auto"),
    "link": parameter("link", Link),
    "rates": parameter("rates", Rates),
    "threads": parameter("threads", Threads),
    "stall_after": parameter("stall_after", StallAfter, STALL_AFTER),
    "stall_abort": parameter("stall_abort", StallAbort, False),
    "timeline": parameter("timeline", TimelineFiles),
    "json_file": parameter("json_file", JsonFile),
}


def typed(context: Any) -> list[str]:
    """The flags that were typed."""
    return [name for name in context.params if context.get_parameter_source(name).name != "DEFAULT"]


def with_flags(table: Mapping[str, inspect.Parameter], **defaults: Any) -> Callable[..., Callable[..., None]]:
    """Make a command of a function that takes a mapping of flags: those that were typed, and these defaults."""
    shown = [flag.replace(default=defaults.get(name, flag.default)) for name, flag in table.items()]
    shown.append(parameter("typer_context", typer.Context, inspect.Parameter.empty))

    def decorate(function: Callable[[Flags], None]) -> Callable[..., None]:
        def command(*, typer_context: Any, **flags: Any) -> None:
            function(defaults | {name: flags[name] for name in typed(typer_context)})

        command.__doc__ = function.__doc__
        command.__annotations__ = {flag.name: flag.annotation for flag in shown}
        command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return command

    return decorate
