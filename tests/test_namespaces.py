"""hostfiles/namespaces.sh gives mpirun an environment of its own; the commands that need root are played."""

import os
import subprocess

from tests.rooms import ROOT

PLAYED = {
    "ip": '[ "$2" = exec ] || exit 0; shift 3; exec "$@"',  # ip netns exec HOST COMMAND...; ip netns pids HOST
    "unshare": 'shift; exec "$@"',
    "hostname": "exit 0",
    "tc": "exit 0",
    "id": "echo 0",
    "mpirun": "echo arguments: $*; env",
}


def test_the_mapping_of_local_env_does_not_put_all_ranks_on_one_host(tmp_path):
    """`. hostfiles/local.env` before it, as hostfiles/README.md says, and all ranks started on the first host."""
    for name, script in PLAYED.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    command = (
        "set -e; . hostfiles/local.env; env | grep PRTE_MCA_rmaps; MPIRUN=mpirun hostfiles/namespaces.sh run 2 true"
    )
    job = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    before, _, after = job.stdout.partition("arguments: ")
    assert "PRTE_MCA_rmaps_default_mapping_policy" in before
    assert after.startswith("--host 10.77.0.1:1,10.77.0.2:1 -n 2 true\n")
    assert "PRTE_MCA_rmaps_default_mapping_policy" not in after
    assert "PRTE_MCA_hwloc_default_binding_policy=none" in after
