"""Writes a page of figures at the end of its command, and a text file with all rows and the record of the run.

    watch = Watch("make numerics")
    rows = measure()
    write_page("docs/benchmarks/numerics.md", "The error of sums", [watch.record()], [HEAD, *few(rows), BELOW, *rows])

The page has the lines above ``BELOW``; docs/benchmarks/rows/numerics.txt has the record and the lines below it, or
all lines if there is no ``BELOW``. A page from several runs keeps the record of each (``asdict``, JSON,
``Record(**read)``).
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dear_mpi.bench.saved import git
from dear_mpi.ranks.host import CONGESTION, cpu_model, read, system
from docs.benchmarks.stolen import stolen_since, ticks
from tests.launch import ROOT, mpis_at_hand

FIELDS = ("command", "date", "commit", "processors", "lost to others", "system", "TCP", "versions")
# What has no place on a page, and its name.
FAULTS = {
    "text of a launcher": r"prterun|PRTE|\borted\b|daemon failed to report|mpirun detected|Primary job|hydra_pmi_proxy",
    "the name of a host": r"(?:Local|Remote) host:|\bdear\d+\b",
    "an error": r"Traceback \(most recent call last\)|Segmentation fault|MPI_ABORT was invoked",
    "a line of the shell": r"^\+ \S",
    "codes for a terminal": r"\x1b",
    "a folder of the machine": r"(?<![\w.])/(?:root|home|tmp|work)/",
}
SOURCES = ("dear_mpi", "collectives", "kernels", "tests", "hostfiles", "docs/**.py")  # a new file there is a change
PAGES = (":!docs/**.txt", ":!docs/**.svg", ":!docs/**.png", ":!*.md")  # what is being written is none
BELOW = "<!-- below: only in the file of all rows -->"
VENDOR = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.get_vendor())"


@dataclass(frozen=True)
class Record:
    """A run of a command: when, of what, on what.

    ``congestion`` is TCP's congestion control where messages were sent; ``stolen`` the share of the processors that
    other machines of the host took meanwhile; ``load`` how many programs of this machine wanted one when it began.
    """

    command: str
    begin: str  # UTC, minutes
    end: str
    commit: str
    processors: str
    system: str
    congestion: str
    versions: str
    stolen: float
    load: float


class Watch:
    """Begins with the run. ``hosts``: whether it uses hosts out of namespaces; ``mpis``: how many MPIs at hand."""

    def __init__(self, command: str, *, hosts: bool = False, mpis: int = 1) -> None:
        self.command, self.hosts, self.mpis = command, hosts, mpis
        self.commit, self.begin, self.before, self.load = commit(), now(), ticks(), os.getloadavg()[0]

    def record(self) -> Record:
        return Record(
            command=self.command, begin=self.begin, end=now(), commit=self.commit,
            processors=f"{cpu_model()}, {os.cpu_count()} cores", system=system(),
            congestion=congestion(hosts=self.hosts), versions=versions(self.mpis), stolen=stolen_since(self.before),
            load=self.load,
        )  # fmt: skip


def now() -> str:
    return datetime.now(timezone.utc).isoformat(" ", "minutes").removesuffix("+00:00")


def commit() -> str:
    """Of this checkout; pages may differ from it, since they are what is being written."""
    changed = git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", *PAGES) or ""
    changed += git(ROOT, "ls-files", "--others", "--exclude-standard", "--", *SOURCES) or ""
    name = git(ROOT, "rev-parse", "--short=10", "HEAD") or "not known"
    return f"{name}, {'with changes that are in no commit' if changed else 'unchanged'}"


def congestion(*, hosts: bool) -> str:
    """TCP's congestion control: of hosts out of namespaces as hostfiles/namespaces.sh sets it, else of this system."""
    if hosts:
        return f"{os.environ.get('CONGESTION', 'reno')} between the hosts"
    return f"{read(CONGESTION)} on the machine"


def versions(mpis: int) -> str:
    """Of Python, what it imports, and the first MPIs at hand."""
    found = [f"Python {platform.python_version()}"]
    for package, name in {"numpy": "NumPy", "mpi4py": "mpi4py", "torch": "torch"}.items():
        try:
            found.append(f"{name} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join([*found, *(vendor(mpi.environment(1)) for mpi in mpis_at_hand()[:mpis])])


def vendor(environment: dict[str, str]) -> str:
    said = subprocess.run([sys.executable, "-c", VENDOR], env=environment, capture_output=True, text=True, check=True)
    (name,), numbers = re.findall(r"'(.*)'", said.stdout), re.findall(r"\d+", said.stdout.partition(",")[2])
    return f"{name} {'.'.join(numbers)}"


def header(records: Sequence[Record]) -> Iterator[str]:
    """The table of a page, from all runs whose rows it has."""
    begin, end = min(each.begin for each in records), max(each.end for each in records)
    runs = f", in {len(records)} runs" if len(records) > 1 else ""
    least, most = min(each.stolen for each in records), max(each.stolen for each in records)
    lost = f"{most:.1%}" if len(records) == 1 else f"{least:.1%} to {most:.1%}"
    load = f"load of this one when it began: {max(each.load for each in records):.1f}{' at most' if runs else ''}"

    def all_of(name: str) -> str:
        return "; ".join(dict.fromkeys(getattr(each, name) for each in records))

    day, time = end.split()
    until = time if begin.startswith(day) else end
    cells = (
        f"`{all_of('command')}`", f"{begin} to {until} UTC{runs}", all_of("commit"), all_of("processors"),
        f"{lost} of the processors went to other machines of the host; {load}", all_of("system"), all_of("congestion"),
        all_of("versions"),
    )  # fmt: skip
    yield "| made by | |"
    yield "|---|---|"
    for field, cell in zip(FIELDS, cells, strict=True):
        yield f"| {field} | {cell} |"


def faults(text: str, host: str = "") -> list[str]:
    """What the text of a page has that it must not have, each with the line; ``host`` is the name of this machine."""
    found = []
    names = [("the name of a host", rf"(?<![\w-]){re.escape(host)}(?![\w-])")] if host else []
    for what, pattern in [*FAULTS.items(), *names]:
        for match in re.finditer(pattern, text, re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"line {line} has {what}: {match.group()!r}")
    return found


def made_by(records: Sequence[Record], rows: Path) -> str:
    """The line under the title of a page; everything else about the run is in the file of its rows."""

    def all_of(name: str) -> str:
        return "; ".join(dict.fromkeys(getattr(each, name) for each in records))

    day = min(each.begin for each in records).partition(" ")[0]
    link = f"[All rows and the record of the run](rows/{rows.name})"
    return f"Made by `{all_of('command')}` on {day}, commit {all_of('commit')}; {all_of('processors')}. {link}."


def rows_file(page: str | Path) -> Path:
    """The text file with all rows of a page."""
    return Path(page).parent / "rows" / f"{Path(page).stem}.txt"


def write_page(page: str, title: str, records: Sequence[Record], lines: Sequence[str]) -> None:
    """Write a page, named from the root, and the file of its rows.

    Raises:
        SystemExit: the text has what a page must not have; both files stay unchanged, and the draft is in build/.
    """
    parts = list(lines)
    cut = parts.index(BELOW) if BELOW in parts else len(parts)
    below = parts[cut + 1 :] or parts
    rows = ROOT / rows_file(page)
    texts = {
        ROOT / page: [f"# {title}", "", made_by(records, rows), "", *parts[:cut]],
        rows: [title, "", *header(records), "", *below],
    }
    for file, text in texts.items():
        draft = ROOT / "build" / file.name
        draft.parent.mkdir(exist_ok=True)
        draft.write_text("\n".join(text).rstrip("\n") + "\n", encoding="utf-8")
        if found := faults(draft.read_text("utf-8"), platform.node()):
            raise SystemExit(f"{page} is not written, see build/{draft.name}: " + "; ".join(found))
    for file in texts:
        file.parent.mkdir(exist_ok=True)
        (ROOT / "build" / file.name).replace(file)
    print(f"written: {page}")
