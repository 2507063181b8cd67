"""A rank that listens for the end of its job may fork: children have handlers of their own, and do not end the rank."""

import subprocess
import sys

LIMIT_S = 120

FORKS = """
import multiprocessing, signal, time
from dear_mpi.ranks.termination import before_the_end

heard = []
fork = multiprocessing.get_context("fork")
with before_the_end(lambda: heard.append("the rank acts")):
    for _ in range(20):  # at once: a child may not have run when the signal comes
        child = fork.Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        assert child.exitcode == -signal.SIGTERM, child.exitcode
    with fork.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    stays = fork.Process(target=time.sleep, args=(600,))
    stays.start()
stays.kill()  # it had all that was open in the block
print("heard", heard)
"""


def test_a_child_that_is_ended_does_not_end_its_rank():
    job = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (job.returncode, job.stdout) == (0, "heard []\n"), job.stderr
