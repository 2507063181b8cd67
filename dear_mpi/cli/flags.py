"""Declare flags: the fields of option classes, and others, in panels of ``--help``.

A table maps names to flags as Typer reads them: a function's parameters.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

from typer import Argument, Option

from dear_mpi.cli.commands import added_flags, as_typed, warn
from dear_mpi.collectives.program.user_file import is_in_file, split_options
from dear_mpi.reporting.declared import Declared, listed, options_of
from dear_mpi.reporting.files import at_end, check_writable, older

Flags: TypeAlias = Mapping[str, Any]
"""Typed values by the names of flags, and the defaults that ``with_flags`` was given. A flag's default in its table is
only shown in --help."""

Table: TypeAlias = dict[str, inspect.Parameter]

# Core's flags, in order; extras' come last.
PANELS = {
    "Workload": "model models ranks hosts data collective collectives sizes size op placement dtype batch accumulate "
    "invariant context iterations warmup pieces device seed",
    "How measured": "budget precision cadence start",
    "Peers": "algorithms at_least",
    "Compute": "forward_time backward_time update_time ranks_per_core straggler",
    "Communication": "schedule schedules fusion algorithm network update weights route wire segment memory "
    "device_memory link rates",
    "Optimiser": "optimizer lr decay momentum weight_decay clip loss_scale",
    "Job": "threads elastic stall_after stall_abort debug check",
    "Output": "save every resume profile tune timeline format json_file raw",
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}


def in_order(table: Table) -> Table:
    return {name: table[name] for name in sorted(table, key=lambda name: [*PANEL_OF, name].index(name))}


def flag(name: str, kind: Any, help: str, default: Any = None, *, field: str = "", **said: Any) -> Table:
    """Return a table of one flag; ``field``: its other name in errors; ``said`` is for Typer."""
    option = Option(as_typed(name), help=help, rich_help_panel=PANEL_OF.get(name, "Output"), **said)
    return {name: parameter(name, Annotated[kind, option, field or name], default)}


def argument(name: str, kind: Any, help: str, metavar: str, default: Any = inspect.Parameter.empty) -> Table:
    """Return a table of an argument, required unless it has a default."""
    return {name: parameter(name, Annotated[kind, Argument(help=help, metavar=metavar), None], default)}


def parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def added(command: str, core: Table) -> Table:
    """Return extras' flags for a command; they cannot replace core's."""
    table = Table()
    for name, each in added_flags(command).items():
        kind: Any = Path | None if each.endings else str | None if each.metavar else bool
        if name in core:
            warn(f"{command}.{name} in the group 'dear_mpi.flags' must be a new flag, such as {command}.my-flag")
        else:
            default, metavar = (False, None) if kind is bool else (None, each.metavar or "FILE")
            table |= flag(name, kind, each.help, default, metavar=metavar)
    return table


def flags_of(kind: type[Declared]) -> Table:
    hints, found = get_type_hints(kind), Table()
    for name, said in options_of(kind).items():
        default, typed = getattr(kind, name, None), said.typed or hints[name]
        if isinstance(default, tuple):
            default = ",".join(map(str, default)) or None
        shown: Any = said.shown or True
        how = {"field": name, "show_default": shown, "metavar": said.metavar}
        found |= flag(said.name(name), typed | None, said.help, default, **how)
    return found


def typed_as(table: Table) -> dict[str, str]:
    """Return the typed spelling of each name in errors."""
    fields = {name: each.annotation.__metadata__[1] for name, each in table.items()}
    return {alias: as_typed(name) for name, field in fields.items() if field for alias in (name, field)}


def chosen(kind: type[Declared], flags: Flags) -> dict[str, Any]:
    found = {}
    for name, said in options_of(kind).items():
        if said.name(name) in flags:
            value = flags[said.name(name)]
            found[name] = value if said.parse is None else said.parse(value)
    return found


def files_of(kind: type[Declared], flags: Flags) -> dict[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {}
    for name, said in options_of(kind).items():
        if said.may_be_file and said.name(name) in flags:
            flag, text = f"--{said.name(name)}", flags[said.name(name)]
            found[flag] = [str(text)] if said.between is None else listed(flag, text, said.between)
    return found


STALL_AFTER = "30s"
MOST_THREADS = 256  # they share one interpreter: more threads take minutes for seconds of work
LINK = (
    "Emulate a link of this bandwidth and latency by delaying messages, e.g. 10gbit,50us; or INSIDE/BETWEEN,hosts=N "
    "(or per_host=N): links inside and between emulated hosts; ranks of a host share a port to other hosts."
)
RATES = (
    "Bandwidth of a rank inside its host, and of a host to others, for algorithms that ask for it, such as themis: "
    "100gbit/10gbit, or FILE.json of doctor or links."
)
THREADS = "Number of ranks, which run as threads of one process, without MPI."
STALL = "Report each rank that has waited this long for a message, with the message and the cause. 0s: never."
ABORT = "End the job with a non-zero exit code when a rank has waited as long as --stall-after."
MEMORY = "How MPI gets GPU memory: direct, staged (copied to the host first), or auto (direct if a trial succeeds)."
JSON = "Write the result to FILE, as JSON. An older FILE is kept as FILE.old."
TIMELINE = (
    "Write what each rank did, and when, in the last iterations: FILE.json for the Perfetto viewer, or an ending that "
    "an extra draws; several with commas."
)

# The flags of ``run_ranks``.
RUN_FLAGS = (
    flag("device_memory", str, MEMORY, "auto")
    | flag("link", str | None, LINK, show_default="the real one")
    | flag("rates", str | None, RATES, show_default="as --link, else unknown")
    | flag("threads", int | None, THREADS, min=1, max=MOST_THREADS, show_default="an MPI job")
    | flag("stall_after", str, STALL, STALL_AFTER)
    | flag("stall_abort", bool, ABORT, False)
    | flag("json_file", Path | None, JSON, metavar="FILE")
)


def shared(*names: str) -> Table:
    timeline = flag("timeline", str | None, TIMELINE, metavar="FILE", show_default="none")
    return {name: (RUN_FLAGS | timeline)[name] for name in names}


if TYPE_CHECKING:
    from dear_mpi.see.timeline import TimelineFiles

Written: TypeAlias = Sequence[tuple[str, Path]]
"""Flags, each with a file that it names."""

OLDER = ("--json", "--save")  # an existing file becomes FILE.old


def written_by(flags: Mapping[str, Any], *read: str) -> Written:
    """Return a command's output files: --timeline's, and all paths except flags that are ``read``."""
    files = [(as_typed(name), path) for name, path in flags.items() if isinstance(path, Path) and name not in read]
    several = listed("--timeline", flags["timeline"]) if "timeline" in flags else ()
    return [*files, *(("--timeline", Path(file)) for file in several)]


def timeline_writer(flags: Mapping[str, Any]) -> "TimelineFiles | None":
    files = [path for flag, path in written_by(flags) if flag == "--timeline"]
    if not files:
        return None
    from dear_mpi.see.timeline import TimelineFiles

    return TimelineFiles("--timeline", files)


def try_files(written: Written) -> None:
    for flag, path in written:
        check_writable(flag, path)


def check_files(read: Mapping[str, Iterable[str]], written: Written) -> None:
    """Raise a ValueError if a file would be lost; ``read``: texts that may name files."""
    files = [*written, *((f"the older file of {flag}", older(path)) for flag, path in written if flag in OLDER)]
    named = [(flag, Path(file)) for flag, texts in read.items() for text in texts if (file := file_of(text))]
    for number, (flag, path) in enumerate(files):
        for other, each in files[:number]:
            if is_same(path, each):
                flags = " and ".join(dict.fromkeys((other, flag)))
                raise ValueError(f"{flags} must be different files, not both {str(path)!r}")
        for other, each in named:
            if is_same(path, each):
                raise ValueError(f"{flag} {str(path)!r} would write over the file of {other}: choose another name")


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, also through links."""
    return at_end(one) == at_end(other) or (one.exists() and other.exists() and one.samefile(other))


def file_of(text: str) -> str:
    """Extract the file from a flag's value; "" if it is only a name.

    >>> [file_of(text) for text in ("mine.py:Mine(a=b:c)", "synthetic:mine.json", "mine.npz", "synthetic:bert")]
    ['mine.py', 'mine.json', 'mine.npz', '']
    """
    if is_in_file(text):
        return split_options(text)[0].rpartition(":")[0] or text
    file = text.partition(":")[2] or text
    return file if Path(file).suffix else ""
