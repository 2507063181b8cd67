"""Ctrl-C where there is one process, at any moment: a line, and no traceback."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

INTERRUPT = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
FILES = {"imports": ("numpy.py", INTERRUPT), "training": ("mine.py", f"def build(*given):\n    {INTERRUPT}")}


@pytest.mark.parametrize("moment", FILES)
def test_ctrl_c_ends_a_command_with_one_line(moment, tmp_path):
    name, text = FILES[moment]
    (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "dear_mpi", "train", "--threads", "2", "--model", f"{tmp_path}/mine.py:build"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's jobs in the background ignore Ctrl-C
    job = subprocess.run(
        command, env=environment, preexec_fn=heard, capture_output=True, text=True, timeout=300, check=False
    )
    assert job.stderr == "rank 0 was interrupted\n"
    assert job.returncode in (130, -2)  # Python may end itself by the signal: 130 in a shell
