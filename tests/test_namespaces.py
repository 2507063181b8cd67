"""hostfiles/namespaces.sh gives mpirun an environment of its own, and hosts whose links can die.

The commands that need root are played, but for the last tests.
"""

import os
import subprocess
import sys
import time

import pytest

from tests.launch import ended, mpis_at_hand
from tests.rooms import ROOT

SCRIPT = f"{ROOT}/hostfiles/namespaces.sh"
ENDLESS = """
from dear_mpi.collectives import barrier
from dear_mpi.ranks.world import run_world

def body(world):
    barrier(world.transport)
    print("begun", flush=True)
    while True:
        barrier(world.transport)

run_world(body, stall_after_s=5.0, stall_abort=True)
"""
PLAYED = {
    "ip": '[ "$2" = exec ] || exit 0; shift 3; exec "$@"',  # ip netns exec HOST COMMAND...; ip netns pids HOST
    "unshare": 'shift; exec "$@"',
    "hostname": "exit 0",
    "tc": "exit 0",
    "id": "echo 0",
    "mpirun": "echo arguments: $*; env",
}


def played(folder, command, *, check=True, **scripts):
    """Run a command of the shell, where these tools are played by scripts."""
    for name, script in (PLAYED | scripts).items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=check, timeout=60,
    )  # fmt: skip


def test_the_mapping_of_local_env_does_not_put_all_ranks_on_one_host(tmp_path):
    """`. hostfiles/local.env` before it, as hostfiles/README.md says, and all ranks started on the first host."""
    job = played(
        tmp_path,
        "set -e; . hostfiles/local.env; env | grep PRTE_MCA_rmaps; MPIRUN=mpirun hostfiles/namespaces.sh run 2 true",
    )
    before, _, after = job.stdout.partition("arguments: ")
    assert "PRTE_MCA_rmaps_default_mapping_policy" in before
    assert after.startswith("--host 10.77.0.1:1,10.77.0.2:1 -n 2 true\n")
    assert "PRTE_MCA_rmaps_default_mapping_policy" not in after
    assert "PRTE_MCA_hwloc_default_binding_policy=none" in after


@pytest.mark.parametrize("signal", ["HUP", "INT", "TERM"])
def test_a_signal_while_hosts_go_down_leaves_none_behind(tmp_path, signal):
    """The first one of a user had begun that; the second one ended it after the first host."""
    ip = f"""case "$*" in *" del "*) echo "$*" >> {tmp_path}/gone ;; esac
[ "$*" != "netns del dear1" ] || kill -{signal} $PPID"""
    played(tmp_path, "hostfiles/namespaces.sh down 2", check=False, ip=ip)
    gone = [f"{what} del {name}{host}" for host in (1, 2) for what, name in (("netns", "dear"), ("link", "dearlink"))]
    assert (tmp_path / "gone").read_text().splitlines() == [*gone, "link del dearbridge"]


@pytest.fixture
def two_hosts():
    if os.geteuid() or subprocess.run([SCRIPT, "up", "2", "1gbit"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces can be made here, or there are some already")
    yield
    subprocess.run([SCRIPT, "down", "2"], check=True)


def test_behind_a_dead_link_the_launcher_is_ended_after_an_abort(two_hosts, tmp_path):
    """It waited for its daemon on the other host for ever."""
    mpis = [mpi for mpi in mpis_at_hand() if mpi.name == "Open MPI"]
    if not mpis:
        pytest.skip("the hosts need Open MPI")
    command = [SCRIPT, "run", "2", sys.executable, "-c", ENDLESS]
    environment = os.environ | {"MPIRUN": mpis[0].mpirun[0], "LIMIT": "240"}
    told = tmp_path / "told"  # not a pipe, which the daemon on the other host keeps open
    with told.open("w") as file:
        job = subprocess.Popen(command, env=environment, stdout=file, stderr=file, cwd=ROOT)
    with ended(job):
        while "begun\n" not in told.read_text():
            assert job.poll() is None, told.read_text()
            time.sleep(0.1)
        subprocess.run(["ip", "link", "set", "dearlink2", "down"], check=True)
        assert job.wait(300) not in (0, 124), told.read_text()
    assert "rank 0 ends the job after a stall of 5 s, as asked" in told.read_text()


@pytest.fixture
def four_hosts():
    if os.geteuid() or subprocess.run([SCRIPT, "up", "4", "1gbit"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces can be made here, or there are some already")
    yield
    subprocess.run([SCRIPT, "down", "4"], check=True)


AHEAD = """#!/bin/sh
[ "$(hostname)" != dear3 ] || exec unshare --time --monotonic 3 --boottime 3 --fork "$@"
exec "$@"
"""


def test_a_clock_that_is_three_seconds_off_is_corrected_in_a_timeline(four_hosts, tmp_path):
    """No message ends before it was sent by more than what the trace says of its clocks."""
    mpis = [mpi for mpi in mpis_at_hand() if mpi.name == "Open MPI"]
    if not mpis or subprocess.run(["unshare", "--time", "true"], check=False).returncode:
        pytest.skip("the hosts need Open MPI, and time namespaces")
    ahead, file = tmp_path / "ahead.sh", tmp_path / "timeline.json"
    ahead.write_text(AHEAD)
    ahead.chmod(0o755)
    job = ["train", "--model", "mlp", "--data", "digits", "--iterations", "8", "--timeline", str(file)]
    command = [SCRIPT, "run", "4", "-x", "PYTHONPATH", str(ahead), sys.executable, "-m", "dear_mpi", *job]
    environment = os.environ | {"MPIRUN": mpis[0].mpirun[0], "LIMIT": "240", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    look = pytest.importorskip("dear_mpi.contrib.look")
    (run,) = look.read_timeline(str(file)).runs
    assert 0 < run.uncertainty_s < 1
    assert {flow.receiver for flow in run.flows} == {0, 1, 2, 3}
    assert min(flow.seconds for flow in run.flows) >= -run.uncertainty_s
    begins = [rank.iterations[-1].begin_s for rank in run.ranks]
    assert max(begins) - min(begins) < 2.9, "the last iterations of all hosts are the same"
