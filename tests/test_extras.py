"""What other packages publish is found by name: the example of docs/how-to/extra.md, and packages that are broken."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.markdown import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "extra.md"
SHORT = ["--threads", "2", "--model", "mlp", "--iterations", "3"]


def python(folder, *arguments, code=0, **how):
    """Python where the packages of a folder are installed, too."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    how |= {"env": os.environ | {"PYTHONPATH": paths, "COLUMNS": "200"}, "cwd": folder, "timeout": 600}
    done = subprocess.run([sys.executable, *map(str, arguments)], **how, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def dear_mpi(folder, *arguments, code=0):
    return python(folder, "-m", "dear_mpi", *arguments, code=code)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which the package of the page is installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for block in blocks(PAGE):
        if block.language == "toml":
            (source / "pyproject.toml").write_text(block.code)
        elif block.language == "python":
            path = source / re.match("# (.*)", block.code)[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.code)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, timeout=300)
    return target


def test_a_command_of_a_package_is_listed_and_runs(installed):
    assert re.search("hello +Say hello for all ranks", dear_mpi(installed, "--help").stdout)
    assert "Example: mpirun -n 4 dear-mpi hello" in dear_mpi(installed, "hello", "--help").stdout
    assert dear_mpi(installed, "hello", "--threads", 2, "--to", "all").stdout == "2 ranks say hello to all\n"
    assert "No such command 'helo'. Did you mean 'hello'?" in dear_mpi(installed, "helo", code=2).stderr


def test_a_schedule_of_a_package_trains_to_the_same_bits(installed):
    file, found = installed / "found.json", []
    for schedule in ("wfbp", "calm"):
        dear_mpi(installed, "train", *SHORT, "--schedule", schedule, "--json", file)
        found.append(json.loads(file.read_text())["params_sha256"])
    assert found[0] == found[1]
    shown = dear_mpi(installed, "simulate", "--schedules", "wfbp,calm", "--ranks", 4, "--json", file)
    assert "calm" in shown.stdout
    assert "Allowed: " in (said := dear_mpi(installed, "train", *SHORT, "--schedule", "clam", code=2).stderr)
    assert "did you mean 'calm'?" in said


MODULE = """
from dataclasses import dataclass
from dear_mpi.collectives.algorithms import ring
from dear_mpi.kernels.optimizers import SGD
from dear_mpi.models.networks import mlp
from dear_mpi.training.routes.codes import Blocks
from dear_mpi.cli.commands import AddedFlag
from dear_mpi.training.routes import Kind, coded

OWN_WIRE = Kind(Blocks, coded)
OWN_FLAG = AddedFlag("Do nothing.", "own:nothing")


@dataclass(frozen=True)
class OwnOptimizer(SGD):
    pass


def own_model(shape, classes, rng, dtype):
    return mlp(shape, classes, rng, dtype)


def own_ring(rank, size):
    return ring.all_gather(rank, size)


def of_text(text):
    def gather(rank, size):
        '''A ring named by its text.'''
        if size != int(text):
            raise ValueError(f"it is for {text} ranks")
        return ring.all_gather(rank, size)

    return {"all_gather": gather}


def failing(text):
    return 1 / 0


def wrong_ring(rank, size):
    return ring.all_gather((rank + 1) % size, size)
"""


def published(folder, package, **groups):
    """A package as an installer leaves it, which publishes these names."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[dear_mpi.{group}]\n{entry}\n" for group, entry in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(MODULE)
    return tmp_path


def test_models_wires_optimizers_and_algorithms_of_a_package_do_what_ours_do(folder):
    own = {"models": "own_model", "wires": "OWN_WIRE", "optimizers": "OwnOptimizer"}
    groups = {group: f"mine = own:{name}" for group, name in own.items()}
    published(folder, "own", **groups, algorithms="mine = own:own_ring\nwrong = own:wrong_ring")
    file, found = folder / "found.json", []
    for given in (["mlp", "int8", "sgd", "ring"], ["mine"] * 4):
        pairs = zip(("--model", "--wire", "--optimizer", "--algorithm"), given, strict=True)
        flags = ["--fusion", "none", "--lr", "0.1", *(word for pair in pairs for word in pair)]
        dear_mpi(folder, "train", *SHORT, *flags, "--json", file)
        found.append(json.loads(file.read_text())["params_sha256"])
    assert found[0] == found[1]
    assert "Proved for 1 to 4 ranks" in dear_mpi(folder, "explain", "--algorithm", "mine", "--check").stdout
    assert "must return a program" in dear_mpi(folder, "train", *SHORT, "--algorithm", "wrong", code=2).stderr


def test_a_package_makes_algorithms_from_a_text(folder):
    published(folder, "own", algorithms="made = own:of_text\nmine = own:own_ring\nfails = own:failing")
    said = dear_mpi(folder, "explain", "--algorithm", "made:3", "--ranks", 3, "--check").stdout
    assert said.startswith("A ring named by its text.")
    assert "Proved for 3 ranks" in said
    dear_mpi(folder, "train", *SHORT, "--algorithm", "made:2")
    refused = {
        "made:4": "algorithm 'made:4' fails for rank 0 of 3: ValueError: it is for 4 ranks",
        "made": "algorithm 'made' is made from a text: write made:TEXT",
        "made:": "algorithm 'made:' is made from a text: write made:TEXT",
        "mine:4x4": "algorithm 'mine' takes no text; these do, as in NAME:mine:4x4: ",
        "fails:3": "algorithm 'fails:3' cannot be made: ZeroDivisionError: division by zero",
        "mode:3": "does not exist: write it like path/to/mine.py:my_ring",
    }
    for name, text in refused.items():
        assert text in dear_mpi(folder, "explain", "--algorithm", name, "--ranks", 3, code=2).stderr


CANNOT = "'bad' of broken (entry point 'nowhere:BAD' in the group 'dear_mpi.{}s') cannot be loaded"


CASES = [
    *((kind, "bad", CANNOT.format(kind)) for kind in ("schedule", "model", "wire", "optimizer", "algorithm")),
    ("schedule", "worse", "'worse' must be a class derived from Schedule"),
    ("optimizer", "worse", "'worse' must be a class"),
    ("wire", "worse", "'worse' must be a Kind"),
]
# In one process, since most of a command's time is its start.
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from dear_mpi.cli.app import app
done = [CliRunner().invoke(app, arguments) for arguments in json.load(sys.stdin)]
print(json.dumps([[each.exit_code, each.stderr] for each in done]))
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """{(kind, name): exit code and text} of a package whose names cannot be loaded, or are something else."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "own.py").write_text(MODULE)
    kinds = {kind for kind, *_ in CASES}
    published(folder, "broken", **{f"{kind}s": "bad = nowhere:BAD\nworse = own:dataclass" for kind in kinds})
    given = json.dumps([["train", *SHORT, f"--{kind}", name] for kind, name, _ in CASES])
    answers = json.loads(python(folder, "-c", COMMANDS, input=given).stdout)
    return {(kind, name): answer for (kind, name, _), answer in zip(CASES, answers, strict=True)}


@pytest.mark.parametrize(("kind", "name", "said"), CASES)
def test_a_name_that_cannot_be_loaded_or_is_something_else_is_refused(kind, name, said, refused):
    code, text = refused[kind, name]
    assert code == 2
    assert said in text


def test_help_warns_of_a_command_that_cannot_be_loaded(folder):
    published(folder, "broken", commands="bad = nowhere:BAD\nworse = own:dataclass", flags="train.bad = nowhere:BAD")
    shown = dear_mpi(folder, "--help")
    assert "Train a model with one communication schedule." in shown.stdout
    lines = [line for line in shown.stderr.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 2
    assert "'bad' of broken (entry point 'nowhere:BAD' in the group 'dear_mpi.commands') cannot be loaded" in lines[0]
    assert "'worse' in the group 'dear_mpi.commands' must be a Command, not " in lines[1]
    assert "No such command 'bad'" in dear_mpi(folder, "bad", code=2).stderr
    assert "'train.bad' of broken" in dear_mpi(folder, "train", "--help").stderr


def test_an_extra_of_ours_that_was_deleted_is_passed_over(folder):
    """Its entry points are still in the metadata of the installation."""
    gone = "dear_mpi.contrib.gone:GONE"
    published(folder, "stale", commands=f"gone = {gone}", flags=f"train.gone = {gone}", schedules=f"gone = {gone}")
    assert dear_mpi(folder, "--help").stderr == ""
    assert "No such option: --gone" in dear_mpi(folder, "train", "--gone", code=2).stderr
    assert "schedule 'gone' is unknown" in dear_mpi(folder, "train", *SHORT, "--schedule", "gone", code=2).stderr


def test_names_of_core_are_not_replaced(folder):
    names = ("train.save", "train.my-flag", "train.2nd", "doctor.foo")
    flags = "\n".join(f"{name} = own:OWN_FLAG" for name in names)
    published(folder, "own", optimizers="sgd = nowhere:BAD", commands="train = nowhere:BAD", flags=flags)
    done = dear_mpi(folder, "train", *SHORT, "--optimizer", "sgd", "--lr", "0.1")
    assert done.stderr == "", "nobody typed a flag of it"
    said = dear_mpi(folder, "train", "--help").stderr
    assert "warning: train.save in the group 'dear_mpi.flags' must be a new flag" in said
    for name in ("train.2nd", "doctor.foo"):
        assert f"warning: {name!r} in the group 'dear_mpi.flags' must be COMMAND.FLAG, of one of train, compare" in said
    assert "--my-flag" in dear_mpi(folder, "train", "--help").stdout
