"""A script may do what it likes to its process: ``advise`` answers once, where it was asked to, and ends."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="advise runs scripts of torch (our extra 'torch')")

LIMIT_S = 200
HEAD = """
import os, sys
import torch
from torch import nn
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
"""
LAUNCHED = "torch.distributed.init_process_group('gloo')\n"
LOOP = "for _ in range(40):\n    step()\n"
THREAD = """
import threading, time
done = False
def beat():
    while not done:
        time.sleep(0.01)
beats = threading.Thread(target=beat)
beats.start()
try:
    for _ in range(40):
        step()
finally:
    beats.join()  # nobody has said that it is done
"""
CATCHES = """
while True:
    try:
        step()
    except BaseException:
        pass
"""
TRAINS = "import threading\nthreading.Thread(target=lambda: [step() for _ in range(40)]).start()\n"
ELSEWHERE = "import os\nos.makedirs('other')\nos.chdir('other')\n"
STREAMS = "import io\nsys.stdout = io.StringIO()\nsys.stderr.close()\nos.close(1)\n"
HANDLERS = """
import atexit, signal
atexit.register(os._exit, 5)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, lambda *_: sys.exit(7))
sys.excepthook = sys.exit
kept = open("kept.txt", "w")
kept.write("kept")
"""
CHILD = """
import subprocess
inner = "setsid sleep 1000 & echo $! >inner; sleep 1000"
child = subprocess.Popen(["sh", "-c", inner], env={"PATH": os.environ["PATH"]})
open("pid", "w").write(str(child.pid))
"""
SPAWN = """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
        for _ in range(40):
            step()
"""


def advise(folder, code, **env):
    (folder / "script.py").write_text(textwrap.dedent(code))
    command = [sys.executable, "-m", "dear_mpi", "advise", "script.py", "--ranks", "2", "--network", "1gbit,50us"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **env}
    for name in ("RANK", "WORLD_SIZE"):
        env.pop(name, None)
    given = [*command, "--iterations", "3", "--json", "rows.json", "--save", "seen.json"]
    return subprocess.run(given, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("code", [
    pytest.param(HEAD + THREAD, id="thread that nobody stops"),
    pytest.param(HEAD + CATCHES, id="catches all"),
    pytest.param(ELSEWHERE + HEAD + STREAMS + LOOP, id="other streams"),
    pytest.param(HEAD + HANDLERS + CHILD + LOOP, id="handlers and a child"),
    pytest.param(HEAD + "os.fork()\n" + LOOP, id="fork"),
    pytest.param(HEAD + SPAWN, id="spawn"),
    pytest.param(HEAD + TRAINS, id="thread that trains"),
])  # fmt: skip
def test_one_answer_whatever_a_script_does(tmp_path, code):
    ran = advise(tmp_path, code)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Predicted, 2 ranks") == 1
    assert json.loads((tmp_path / "rows.json").read_text())[0]["ranks"] == 2
    assert (tmp_path / "seen.json").exists()
    if "kept" in code:
        assert (tmp_path / "kept.txt").read_text() == "kept"
        for process in ("pid", "inner"):
            assert not Path(f"/proc/{(tmp_path / process).read_text().strip()}").exists()


@pytest.mark.parametrize(("code", "said"), [
    (HEAD + "os._exit(3)", r"script 'script.py' ended its process with exit code 3"),
    (HEAD + "os.kill(os.getpid(), 9)", r"script 'script.py' ended its process by SIGKILL"),
    (HEAD + "raise ZeroDivisionError('on purpose')", r"ended with ZeroDivisionError, after 0 iterations\n"),
    (HEAD + "if os.environ.get('RANK'):\n    raise SystemExit(4)\nraise SystemExit(3)", r"code 4.*without.* code 3"),
])  # fmt: skip
def test_a_script_that_fails_is_named(tmp_path, code, said):
    ran = advise(tmp_path, code)
    assert ran.returncode == 2
    assert re.search(said, ran.stderr)
    assert ran.stderr.count("ZeroDivisionError: on purpose") == ("on purpose" in code)
    assert not (tmp_path / "rows.json").exists()


@pytest.mark.parametrize(("begins", "again"), [
    ("if 'RANK' in os.environ:\n    torch.distributed.init_process_group('nccl')\n", False),
    (LAUNCHED + "net = nn.parallel.DistributedDataParallel(net)\n", True),
    ("rank = int(os.environ['LOCAL_RANK'])\n", True),
    ("if os.environ.get('RANK') is None: sys.exit('use torchrun')\n", True),
])  # fmt: skip
def test_variables_of_a_launcher_are_for_scripts_that_fail_without_them(tmp_path, begins, again):
    """nanoGPT and others take NCCL and a GPU as soon as RANK is set."""
    ran = advise(tmp_path, HEAD + begins + LOOP)
    assert ran.returncode == 0, ran.stderr
    assert ("it runs again with variables set as torchrun does for one rank: RANK=0" in ran.stderr) == again
    assert ("the script failed without variables set" in ran.stdout) == again
    assert ("DDP did not run on the one rank that was watched" in ran.stdout) == ("Parallel" not in begins)


def test_one_rank_alone_is_watched(tmp_path):
    (tmp_path / "script.py").write_text("")
    ran = subprocess.run(
        [sys.executable, "-m", "dear_mpi", "advise", "script.py", "--ranks", "2"], cwd=tmp_path,
        env={**os.environ, "WORLD_SIZE": "2"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "on one rank, not on 2" in ran.stderr
