"""Flags: those of options, as their classes declare them; others; and how ``--help`` shows them.

A table has flags by name, as Typer reads them: as parameters of a function.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

from typer import Argument, BadParameter, Option
from typer.core import TyperCommand
from typer.models import OptionInfo

from dear_mpi.training.declared import Declared, listed, options_of
from dear_mpi.training.runs.config import Config

Flags: TypeAlias = Mapping[str, Any]
"""What was typed, by the names of flags, and the defaults that ``with_flags`` was given. A flag's default in its table
is shown in --help, and is not in it."""

Table: TypeAlias = dict[str, inspect.Parameter]

# Every flag of every command is here; what follows is the order in which the panels are shown.
PANELS = {
    "Workload": "model models ranks hosts data collective collectives sizes size op placement dtype batch accumulate "
    "context iterations pieces at_once device seed",
    "How measured": "budget precision cadence start arrival steps overlap tests why",
    "Peers": "baseline at_least",
    "Compute": "forward_time backward_time compute rate update_time ranks_per_core straggler jitter",
    "Communication": "schedule schedules fusion algorithm algorithms network update weights route wire segment "
    "segments memory device_memory link rates",
    "Optimiser": "optimizer lr decay warmup momentum nesterov weight_decay vector_rate beta1 beta2 epsilon damping "
    "factor_decay clip loss_scale",
    "Job": "threads stall_after stall_abort debug check worst",
    "Output": "save every resume blame profile tune plot picture html timeline format json_file raw",
}
# Of commands in which a flag means something else than in others; it comes first.
OWN = {"bench": {"iterations": "How measured", "warmup": "How measured", "algorithms": "Peers"}}
ORDER = list(PANELS)
PLACES = {
    name: (number, place, panel)
    for number, (panel, names) in enumerate(PANELS.items())
    for place, name in enumerate(names.split())
}
FIRST = (-1, 0, None)  # for what has no panel


def parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def flag(name: str, kind: Any, help: str, default: Any = None, *, spelled: str = "", **said: Any) -> Table:
    """A table of one flag. It is spelled like its name unless ``spelled`` says otherwise; ``said`` is for Typer."""
    if Path in get_args(kind):
        said["parser"] = named_file
    option = Option(spelled or f"--{name.replace('_', '-')}", help=help, **said)
    return {name: parameter(name, Annotated[kind, option], default)}


def named_file(text: str) -> Path:
    if not text:
        raise BadParameter("'' is no name of a file")
    return Path(text)


def argument(name: str, kind: Any, help: str, metavar: str) -> Table:
    """A table of what stands behind the command without a flag, and must be there."""
    return {name: parameter(name, Annotated[kind, Argument(help=help, metavar=metavar)], inspect.Parameter.empty)}


def arguments(name: str, help: str, metavar: str) -> Table:
    """A table of all that stands behind the command's arguments, or behind ``--``; there may be none."""
    return {name: parameter(name, Annotated[list[str] | None, Argument(help=help, metavar=metavar)], None)}


def flags_of(kind: type[Declared]) -> Table:
    """The flags of a kind of options, each with the help, the type and the default of its field."""
    hints, found = get_type_hints(kind), Table()
    for name, said in options_of(kind).items():
        default = getattr(kind, name, None)
        if isinstance(default, tuple):  # of several values, with commas
            default = ",".join(map(str, default)) or None
        shown: Any = said.shown or True
        option = Option(*said.flags, help=said.help, show_default=shown, metavar=said.metavar)
        typed: Any = said.typed or hints[name]
        found[said.name(name)] = parameter(said.name(name), Annotated[typed | None, option, name], default)
    return found


def typed_as(table: Table) -> dict[str, str]:
    """What a user types for each name that an error may have: a flag's parameter, or the field that declares it."""
    found: dict[str, str] = {}
    for name, each in table.items():
        option, *field = each.annotation.__metadata__
        if isinstance(option, OptionInfo):  # arguments have no dashes
            flag = option.param_decls[0] if option.param_decls else f"--{name.replace('_', '-')}"
            found |= dict.fromkeys((name, *field), flag)
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


STALL_AFTER = "30s"
MOST_THREADS = 256  # they share one interpreter: more would take minutes for what takes seconds elsewhere
LINK = (
    "Emulate a link of this bandwidth and latency by delaying messages, e.g. 10gbit,50us; or INSIDE/BETWEEN,hosts=N "
    "(or per_host=N): links inside and between emulated hosts, the ranks of each of which share a port to the others."
)
RATES = (
    "Bandwidth of a rank inside its host, and of a host to others, for algorithms that ask for it, such as themis: "
    "100gbit/10gbit, or FILE.json of dear-mpi doctor."
)
THREADS = "Number of ranks, which run as threads of one process, without MPI."
STALL = "Report each rank that has waited for the same thing for this long, with what it waits for and why. 0s: never."
ABORT = "End the job with a non-zero exit code when a rank has waited for as long as --stall-after says."
MEMORY = "How MPI gets GPU memory: direct, staged (copied to the host first), or auto (direct if a trial succeeds)."
JSON = "Write the result to FILE, as JSON. An older FILE is kept as FILE.old."
PLOT = "Draw the rows of the table into FILE.png, FILE.pdf or FILE.svg."
PAGE = "Write a page to look at, FILE.html: lanes of all schedules on one axis, for any browser, without a network."
TIMELINE = (
    "Write what each rank did, and when, in the last iterations: FILE.json for the Perfetto viewer; FILE.png, FILE.svg "
    "or FILE.pdf as a picture; several with commas."
)

# What ``run_ranks`` takes.
RUN_FLAGS = (
    flag("device_memory", str, MEMORY, "auto")
    | flag("link", str | None, LINK, show_default="the real one")
    | flag("rates", str | None, RATES, show_default="those of --link, else unknown")
    | flag("threads", int | None, THREADS, min=1, max=MOST_THREADS, show_default="an MPI job")
    | flag("stall_after", str, STALL, STALL_AFTER)
    | flag("stall_abort", bool, ABORT, False)
    | flag("json_file", Path | None, JSON, spelled="--json", metavar="FILE")
)
FILE_FLAGS = flag("plot", Path | None, PLOT, metavar="FILE")
FILE_FLAGS |= flag("timeline", str | None, TIMELINE, metavar="FILE", show_default="none")
FILE_FLAGS |= flag("html", Path | None, PAGE, metavar="FILE")
JOB_FLAGS = flags_of(Config) | RUN_FLAGS | {"timeline": FILE_FLAGS["timeline"]}


def shared(*names: str) -> Table:
    """Some of the flags that several commands have."""
    return {name: (RUN_FLAGS | FILE_FLAGS)[name] for name in names}


class PanelledCommand(TyperCommand):
    """A command whose help has panels; there a switch has no type, and ``--help`` no line."""

    def get_params(self, ctx: Any) -> list[Any]:
        flags: list[Any] = super().get_params(ctx)
        for flag in flags:
            flag.hidden = flag.hidden or flag.name == "help"
            flag.rich_help_panel = self.place(flag)[2]
        return sorted(map(as_switch, flags), key=self.place)

    def place(self, flag: Any) -> tuple[int, int, str | None]:
        """Where a flag stands: the number of its panel, its place there, and the panel's name."""
        number, place, panel = PLACES.get(flag.name, FIRST)
        own = OWN.get(self.name or "", {}).get(flag.name)
        return (number, place, panel) if own is None else (ORDER.index(own), -1, own)


def as_switch(flag: Any) -> Any:
    """A flag that takes no value is shown without a type."""
    if getattr(flag, "is_flag", False):  # an argument has no such thing
        flag.metavar = ""
    return flag
