"""The shape of the code: where the packages are, who may import whom, and what an import may start."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from tests.rooms import (
    LAYERS,
    LIMITS,
    ORDERS,
    ROOMS,
    ROOT,
    SOURCES,
    floor_of,
    may_import,
    may_import_in_order,
    place,
    room_of,
    sizes,
)

STARTS_MPI = {"dear_mpi.collectives.transports.mpi", "dear_mpi.collectives.transports.ulfm"}  # imported where needed
MPI4PY_FILES = (
    STARTS_MPI
    | {"dear_mpi.ranks.world", "dear_mpi.bench.native"}
    | {f"dear_mpi.collectives.{name}" for name in ("plans.runners.native", "launch.cuda_aware", "launch.neighbours")}
)
CUPY_FILES = {"dear_mpi.ranks.streams", "dear_mpi.collectives.launch.cuda_aware"}  # and the kernels
# importlib could load what no import statement names. The facade, the registry of algorithms, extras and two tables of
# optional libraries need it, and the digits, which are a file of one.
IMPORTLIB_FILES = {
    "dear_mpi.collectives.__init__", "dear_mpi.collectives.algorithms.registry",
    "dear_mpi.collectives.plans.runners.__init__", "dear_mpi.collectives.program.user_file",
    "dear_mpi.training.__init__",
    "dear_mpi.kernels.array", "dear_mpi.models.data",
}  # fmt: skip
WITHOUT_NUMPY = ("program", "algorithms", "lowering")  # rooms of collectives: who only reads programs needs no array


def imported_names(source):
    """(line, name) of each import, also of those inside functions: a.b for both `import a.b` and `from a import b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def within(name, *packages):
    return any(name == package or name.startswith(package + ".") for package in packages)


def is_allowed(module, name):
    """Whether this module of ours may import this name."""
    if name.startswith("."):
        return False  # imports are absolute
    if within(name, "mpi4py"):
        return module in MPI4PY_FILES or within(module, "dear_mpi.contrib")
    if within(name, "cupy", "cupyx"):
        return within(module, "dear_mpi.kernels") or module in CUPY_FILES
    if within(name, "importlib"):
        return module in IMPORTLIB_FILES or within(name, "importlib.resources", "importlib.util.find_spec")
    if within(name, "collectives", "kernels", "tests"):
        return False  # the folders are not packages: the same file would be two modules
    return not within(name, "dear_mpi") or may_import(module, name)


def refused(module, source):
    return [f"line {line} imports {name}" for line, name in imported_names(source) if not is_allowed(module, name)]


def test_links_lead_to_the_top_level_folders():
    for layer in ("collectives", "kernels"):
        link = ROOT / "dear_mpi" / layer
        assert link.is_dir(), (
            f"{link} must be a symbolic link to ../{layer}, but something that carried the code here made it a plain"
            f" file (Python's zipfile and Windows checkouts do): rm {link} && ln -s ../{layer} {link}"
        )
        assert link.resolve() == ROOT / layer, f"{link} must be a link to ../{layer}, not a copy of it"


def test_every_folder_is_a_room_of_the_table():
    rooms = {f"{layer}/{room}" for layer in LAYERS for room in ROOMS[layer]}
    if not EXTRA_MODULES:
        rooms.remove("dear_mpi/contrib")
    assert {room_of(path) for path in SOURCES.values()} - set(LAYERS) == rooms, "see ROOMS in tests/rooms.py"
    in_none = {module for module, path in SOURCES.items() if room_of(path) in ("collectives", "dear_mpi")}
    assert in_none == {"dear_mpi.__init__", "dear_mpi.__main__", "dear_mpi.collectives.__init__"}
    assert set(SOURCES) >= MPI4PY_FILES | CUPY_FILES | IMPORTLIB_FILES


def test_no_room_grows():
    limits, found = json.loads(LIMITS.read_text()), sizes()
    grown = {room: (size["tokens"], limits.get(room)) for room, size in found.items()}
    grown = {room: (tokens, limit) for room, (tokens, limit) in grown.items() if limit is None or tokens > limit}
    advice = "delete something there, or raise it in tests/rooms.json: the commit names the user who needs it"
    assert not grown, f"rooms with more tokens than their limit: {grown}; {advice}"


@pytest.mark.parametrize("layer", LAYERS)
def test_rooms_have_an_order(layer):
    """Each room imports from rooms before it in the table alone, so there is no circle; and what it names exists."""
    before = []
    for room, entries in ROOMS[layer].items():
        assert {entry.partition("/")[0] for entry in entries} <= set(before), room
        for entry in entries:
            assert (ROOT / layer / entry).is_dir() or (ROOT / layer / f"{entry}.py").exists(), entry
        before.append(room)


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_down(module):
    wrong = refused(module, SOURCES[module].read_text(encoding="utf-8"))
    assert not wrong, "\n".join([f"{SOURCES[module]} (see is_allowed, and ROOMS in tests/rooms.py)", *wrong])


EXTRA_MODULES = [module for module in SOURCES if within(module, "dear_mpi.contrib")]


def published():
    """What docs/how-to/names.txt publishes for extras, as names with their modules."""
    for line in (ROOT / "docs" / "how-to" / "names.txt").read_text(encoding="utf-8").splitlines():
        module, _, names = line.partition(": ")
        yield from (f"{module}.{name}" for name in names.split(", "))


PUBLISHED = set(published())


def offered(name):
    """Whether the ``__init__`` of a package has this name in ``__all__``."""
    package, _, last = name.rpartition(".")
    return f"{package}.__init__" in SOURCES and last in getattr(import_module(package), "__all__", ())


@pytest.mark.parametrize("module", EXTRA_MODULES)
def test_extras_import_only_what_core_publishes(module):
    names = {name for _, name in imported_names(SOURCES[module].read_text(encoding="utf-8"))}
    core = {name for name in names if within(name, "dear_mpi") and not within(name, "dear_mpi.contrib")}
    assert {name for name in core - PUBLISHED if not offered(name)} == set(), "see docs/how-to/names.txt"


def test_what_is_published_is_there():
    assert len(PUBLISHED) > 40
    has_torch = find_spec("torch") is not None
    for name in PUBLISHED:
        module, _, last = name.rpartition(".")
        if has_torch or not within(module, "dear_mpi.torch"):
            assert hasattr(import_module(module), last), name


@pytest.mark.parametrize("module", [module for module in SOURCES if module not in EXTRA_MODULES])
def test_core_names_no_extra(module):
    """Not even as text: extras are found by their entry points."""
    text = SOURCES[module].read_text(encoding="utf-8")
    assert "contrib." not in text.replace('CONTRIB = "dear_mpi.contrib."', "")


ORDERED = [(room, module) for room in ORDERS for module in SOURCES if within(module, f"dear_mpi.{room}")]


@pytest.mark.parametrize("room", ORDERS)
def test_an_ordered_room_is_in_its_table(room):
    modules = {module for each, module in ORDERED if each == room} - {f"dear_mpi.{room}.__init__"}
    assert {floor_of(room, module) for module in modules} == {*ORDERS[room]}, "see ORDERS in tests/rooms.py"


@pytest.mark.parametrize(("room", "module"), ORDERED)
def test_imports_inside_an_ordered_room_point_down(room, module):
    names = imported_names(SOURCES[module].read_text(encoding="utf-8"))
    ours = [name for _, name in names if within(name, f"dear_mpi.{room}")]
    assert [name for name in ours if not may_import_in_order(room, module, name)] == [], "see ORDERS in tests/rooms.py"


ORDER = {  # a module, and what it may import of ours, or not
    "kernels.calls": ("kernels.array.Array", "!collectives.program.errors"),
    "collectives.program.verify": ("collectives.program.program", "!collectives.algorithms.ring"),
    "collectives.algorithms.ring": ("kernels.lookup", "!training.trainer.Trainer"),
    "collectives.algorithms.registry": ("!collectives.plans.tuning.rules_of", "!collectives.programs", "!collectives"),
    "collectives.launch.launcher": (
        *("collectives.program.errors.ArgumentError", "!collectives.program.errors_of_others"),
        *("!collectives.program", "!collectives.transports.agree"),
    ),
    "collectives.transports.mpi": ("collectives.launch.cuda_aware", "!collectives.plans.plan"),
    "collectives.plans.runners.shared": ("collectives.plans.plan", "collectives.transports.transport"),
    "collectives.__init__": ("collectives.plans.functions", "!ranks.world"),
    "ranks.world": ("collectives.make_plan", "!reporting.units"),
    "models.layers": ("models.layer.Layer", "!training.buckets.layout"),
    "training.schedules.dear": ("training.fabric", "!see.tables"),
    "torch.run": ("training.session.Session", "!bench.output"),
    "bench.output": ("reporting.terminal.bar", "!see.explain"),
    "simulate.sweep": ("training.trainer",),
    "bench.machine_file": ("!simulate.prices",),
    "cli.app": ("!__version__",),
    "cli.train": ("!contrib.one.COMMAND",),
    "contrib.one.command": ("cli.run.with_flags", "contrib.look.label", "!contrib.other.output"),
    "see.timeline": ("!contrib.look.label",),
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in ORDER.items() for name in names])
def test_order_of_rooms(module, name):
    assert is_allowed(f"dear_mpi.{module}", f"dear_mpi.{name.lstrip('!')}") == (not name.startswith("!"))


@pytest.mark.parametrize(("module", "name", "allowed"), [
    ("dear_mpi.kernels.calls", "mpi4py.MPI", False),
    ("dear_mpi.collectives.transports.mpi", "mpi4py.MPI", True),
    ("dear_mpi.collectives.algorithms.ring", "dear_mpi", False),
    ("dear_mpi.training.trainer", "collectives.ring", False),
    ("dear_mpi.training.trainer", ".layer_call.LayerCall", False),
    ("dear_mpi.training.trainer", "cupy", False),
    ("dear_mpi.ranks.streams", "cupy", True),
    ("dear_mpi.training.trainer", "importlib.import_module", False),
    ("dear_mpi.models.synthetic", "importlib.resources", True),
])  # fmt: skip
def test_rule(module, name, allowed):
    assert is_allowed(module, name) == allowed


@pytest.mark.parametrize("planted", [
    "import dear_mpi.collectives.plans.tuning",
    "from dear_mpi.collectives.plans import tuning",
    "from dear_mpi.collectives.plans.tuning import rules_of as rules",
    "from dear_mpi.collectives import plans",
    "from ..plans import tuning",
    "def later():\n    from dear_mpi.collectives.plans.tuning import rules_of",
    "if TYPE_CHECKING:\n    from dear_mpi.collectives.plans.tuning import Rule",
])  # fmt: skip
def test_an_import_is_found_wherever_it_stands(planted):
    source = f"from dear_mpi.collectives.program import errors\n{planted}\n"
    assert len(refused("dear_mpi.collectives.algorithms.ring", source)) == 1


def importable(*rooms):
    """Modules that can be imported without MPI and CuPy; of these rooms of collectives, or of all."""
    for module in SOURCES:
        layer, inside = place(module.removesuffix(".__init__"))
        wanted = layer == "collectives" and (not rooms or inside.partition("/")[0] in rooms)
        if wanted and module not in STARTS_MPI:
            yield module.removesuffix(".__init__")


def in_another_process(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    job = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert job.returncode == 0, job.stderr
    return job.stdout.split()


READ_PROGRAMS = """
import sys
for name in ("mpi4py", "numpy", "cupy", "ml_dtypes"):
    sys.modules[name] = None  # an import of it fails
from importlib import import_module
for name in sys.argv[1:]:
    import_module(name)
from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.lowering.messages import write_instructions
from dear_mpi.collectives.lowering.messages import messages
ring = programs("ring", "all_reduce", 4)
verify(ring)
for program in ring:
    print(len(write_instructions(messages(program, chunks=(0, 2, 4, 6, 8), segment=1)).messages))
"""


def test_programs_are_read_without_numpy_and_mpi():
    """Written, proved and lowered: a ring of 4 ranks, of which each sends and receives 2 messages in 6 steps."""
    modules = list(importable(*WITHOUT_NUMPY))
    assert {place(module)[1].partition("/")[0] for module in modules} == set(WITHOUT_NUMPY)
    assert in_another_process(READ_PROGRAMS, *modules) == 4 * ["24"]


LOADED = """
import sys
from importlib import import_module
import_module(sys.argv[1])
print(*(name for name in sys.modules if name.startswith("dear_mpi")))
"""

LOAD = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    import_module(name)
print(*sorted({"mpi4py.MPI", "cupy"} & set(sys.modules)))
"""


LIVE = ("fabric.live", "fabric.plan_cost", "session", "runs")


def test_what_predicts_loads_nothing_live():
    """Neither the engine nor plans nor a transport that communicates: a prediction needs no ranks."""
    loaded = in_another_process(LOADED, "dear_mpi.simulate.sweep")
    live = [f"dear_mpi.training.{name}" for name in LIVE]
    live += [
        f"dear_mpi.collectives.{name}" for name in ("plans.plan", "transports.loopback", "transports.mpi", "launch")
    ]
    assert not {name for name in loaded if within(name, *live)}


FEW = ("routes.codes", "fabric.statistic", "learning_rate", "checkpoint", "fusion.tuning")


def test_a_plain_session_loads_nothing_that_few_sessions_need():
    loaded = in_another_process(LOADED, "dear_mpi.training.session")
    assert not {name for name in loaded if within(name, *(f"dear_mpi.training.{few}" for few in FEW))}


def test_import_starts_neither_mpi_nor_a_gpu():
    """Of the command line with all that it uses, and of all modules of collectives but those that are MPI's."""
    loaded = in_another_process(LOAD, *(module for module in SOURCES if within(module, "dear_mpi.cli")), *importable())
    assert loaded == [], "importing must not load these"
