"""Core works without its extras: runs its tests in a copy of the project without folders of dear_mpi/contrib.

python -m tests.deletion [--all] [NAME ...]

Without the whole of contrib it runs `make test-quick`, and without each extra alone the order of imports and the
links of pages. With --all these are `make test-serial`, and also the commands of pages and the command line. NAME:
only without these extras.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.rooms import EXTRAS, ROOT

LIMIT_S = 3600
GATES = ["tests/test_layering.py", "tests/test_docs.py"]
GATES += ["--deselect", "tests/test_layering.py::test_no_room_grows"]  # a deletion adds nothing
MORE = ["tests/test_extras.py", "tests/docs", "tests/cli"]


def copied(folder, deleted):
    """A copy of the project, with its history and what is not committed, and without these folders."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(folder)], check=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    there = {name for name in names if name and os.path.lexists(ROOT / name)}
    for name in set(subprocess.run(listed, cwd=folder, capture_output=True, text=True).stdout.split("\0")) - there:
        if name:
            (folder / name).unlink()
    for name in there:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    if (ROOT / ".venv").exists():
        (folder / ".venv").symlink_to((ROOT / ".venv").resolve())
    for name in deleted:
        shutil.rmtree(folder / name)


def tried(deleted, command):
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "copy")
        copied(folder, deleted)
        environment = os.environ | {"PYTHONPATH": str(folder)}
        how = {"cwd": folder, "env": environment, "timeout": LIMIT_S, "check": False, "text": True}
        done = subprocess.run(command, **how, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    shown = done.stdout.splitlines()[-1:] if done.returncode == 0 else [done.stdout]
    print(f"without {', '.join(deleted)}: {' '.join(command)}", *shown, sep="\n", flush=True)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*EXTRAS, []])
    given = parser.parse_args()
    gates = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *GATES, *(MORE if given.all else ())]
    whole = ["make", "test-serial" if given.all else "test-quick", "ENV=system", f"PYTHON={sys.executable}"]
    cases = [] if given.names else [(["dear_mpi/contrib"], whole)]
    cases += [([f"dear_mpi/contrib/{name}"], gates) for name in given.names or EXTRAS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # one process for each: starting takes longer than their tests
        passed = list(pool.map(lambda case: tried(*case), cases))
    failed = [deleted for (deleted, _), good in zip(cases, passed, strict=True) if not good]
    sys.exit(f"tests fail without {failed}" if failed else 0)


if __name__ == "__main__":
    main()
