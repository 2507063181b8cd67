"""The shape of the code: where the packages are, who may import whom, and how long a file and a function may be."""

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"dear_mpi": "dear_mpi", "dear_mpi.collectives": "collectives", "dear_mpi.kernels": "kernels"}

FILE_LINES = 300
BODY_LINES = 60
MEDIAN_BODY_LINES = 8

MPI4PY_FILES = {
    f"dear_mpi.collectives.{name}"
    for name in (
        "transports.mpi",
        "plans.runners.native",
        *(f"launch.{x}" for x in ("cuda_aware", "probe_device", "mpi_facts")),
    )
}
CUPY_FILES = {"dear_mpi.ranks.streams", "dear_mpi.collectives.launch.probe_device"}  # and the kernels


def sources():
    """{module: path} of every file of the three packages, each once: not again through the links."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.resolve() == path:
                found[".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts])] = path
    return found


SOURCES = sources()


def imported_names(path):
    """(line, name) of each import, also of those inside functions: a.b for both `import a.b` and `from a import b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def bodies(path):
    """(lines, line, name) of each function: from the first statement after the docstring to the last line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            statements = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - statements[0].lineno + 1 if statements else 0
            yield lines, node.lineno, node.name


def within(name, *packages):
    return any(name == package or name.startswith(package + ".") for package in packages)


def is_allowed(module, name):
    """Whether this module of ours may import this name."""
    if name.startswith("."):
        return False  # imports are absolute
    if within(name, "mpi4py"):
        return module in MPI4PY_FILES
    if within(name, "cupy", "cupyx"):
        return within(module, "dear_mpi.kernels") or module in CUPY_FILES
    if within(name, "collectives", "kernels", "tests"):
        return False  # the folders are not packages: the same file would be two modules
    if not within(name, "dear_mpi") or not within(module, "dear_mpi.collectives", "dear_mpi.kernels"):
        return True
    below = ["dear_mpi.kernels"] if within(module, "dear_mpi.kernels") else ["dear_mpi.kernels", "dear_mpi.collectives"]
    return within(name, *below)


def test_links_lead_to_the_top_level_folders():
    for layer in ("collectives", "kernels"):
        link = ROOT / "dear_mpi" / layer
        assert link.is_dir(), (
            f"{link} must be a symbolic link to ../{layer}, but something that carried the code here made it a plain"
            f" file (Python's zipfile and Windows checkouts do): rm {link} && ln -s ../{layer} {link}"
        )
        assert link.resolve() == ROOT / layer, f"{link} must be a link to ../{layer}, not a copy of it"


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_down(module):
    path = SOURCES[module]
    wrong = [f"{path}:{line} imports {name}" for line, name in imported_names(path) if not is_allowed(module, name)]
    assert not wrong, f"{module} may not import these (see is_allowed):\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "name", "allowed"),
    [
        ("dear_mpi.kernels.pack", "dear_mpi.kernels.array.Array", True),
        ("dear_mpi.kernels.pack", "dear_mpi.collectives.algorithms.ring", False),
        ("dear_mpi.kernels.pack", "mpi4py.MPI", False),
        ("dear_mpi.collectives.algorithms.ring", "dear_mpi.kernels.pack", True),
        ("dear_mpi.collectives.algorithms.ring", "dear_mpi.training.trainer.Trainer", False),
        ("dear_mpi.collectives.algorithms.ring", "dear_mpi", False),
        ("dear_mpi.collectives.algorithms.ring", "mpi4py.MPI", False),
        ("dear_mpi.collectives.transports.mpi", "mpi4py.MPI", True),
        ("dear_mpi.training.trainer", "dear_mpi.collectives.algorithms.ring", True),
        ("dear_mpi.training.trainer", "collectives.ring", False),
        ("dear_mpi.training.trainer", "cupy", False),
        ("dear_mpi.ranks.streams", "cupy", True),
    ],
)
def test_rule(module, name, allowed):
    assert is_allowed(module, name) == allowed


def test_files_and_functions_are_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES.values()}
    long = [f"{path}: {lines} lines, at most {FILE_LINES}" for path, lines in lengths.items() if lines > FILE_LINES]
    functions = [(path, *body) for path in SOURCES.values() for body in bodies(path)]
    long += [
        f"{path}:{line} {name}: a body of {lines} lines, at most {BODY_LINES}"
        for path, lines, line, name in functions
        if lines > BODY_LINES
    ]
    assert not long, "\n".join(long)
    median = statistics.median([lines for _, lines, _, _ in functions] or [0])
    assert median <= MEDIAN_BODY_LINES, f"the median body has {median} lines, at most {MEDIAN_BODY_LINES}"


def test_import_is_free_of_mpi_and_gpu():
    code = "import sys, dear_mpi; print(*sorted({'mpi4py', 'cupy'} & set(sys.modules)))"
    job = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert job.stdout.split() == [], "import dear_mpi must not load these"
