"""Ctrl-C where there is one process, at any moment: a line, and no traceback."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

INTERRUPT = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
BUILD = f"def build(*given):\n    {INTERRUPT}"
TRAIN = ["train", "--threads", "2", "--model", "{}/mine.py:build"]
MOMENTS = {
    "imports": ("numpy.py", INTERRUPT, TRAIN),
    "training": ("mine.py", BUILD, TRAIN),
    "one rank under MPI": ("mine.py", BUILD, ["bench", "--algorithms", "{}/mine.py:build"]),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_a_command_with_one_line(moment, tmp_path):
    name, text, arguments = MOMENTS[moment]
    (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "dear_mpi", *(each.format(tmp_path) for each in arguments)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's jobs in the background ignore Ctrl-C
    job = subprocess.run(
        command, env=environment, preexec_fn=heard, capture_output=True, text=True, timeout=300, check=False
    )
    assert job.stderr == "rank 0 was interrupted\n"
    assert job.returncode in (130, -2)  # Python may end itself by the signal: 130 in a shell
