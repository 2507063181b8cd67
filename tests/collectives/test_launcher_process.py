"""A launcher that stays after an abort is ended from its own host; a scheduler's is left alone."""

import subprocess
import sys

import pytest

SCRIPT = """#!/bin/sh
trap '' TERM
{python} -c '{first}from dear_mpi.collectives.launch import launcher as us; us.end_launcher(.2, .2)' </dev/null
{then}
"""
STAYS = "while :; do sleep 0.1; done"


def returned(path, then, first=""):
    path.write_text(SCRIPT.format(python=sys.executable, first=first, then=then))
    path.chmod(0o755)
    return subprocess.run([path], timeout=120, check=False).returncode


@pytest.mark.parametrize("name", ["mpirun", "prterun", "mpiexec.hydra"])
def test_a_launcher_that_stays_is_ended(name, tmp_path):
    assert returned(tmp_path / name, STAYS) == -9


@pytest.mark.parametrize("name", ["srun", "shell"])
def test_schedulers_and_shells_are_left_alone(name, tmp_path):
    no_child = "import os; del os.fork; "
    assert returned(tmp_path / name, "exit $(($? + 7))", no_child) == 7
