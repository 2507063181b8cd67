"""A Slurm of two nodes on this machine, for `make test-slurm`: needs Linux, root, and Debian's slurm-wlm, munge,
libpmix2 and libpmix-dev.

Two nodes on one machine need what two machines have anyway:

- a host name each (`unshare --uts`): PMIx looks for the ranks of a node under the name of its host. Under another name
  than the node's, the third rank of a node does not come through MPI_Init ("num local peers: Bad parameter");
- a folder for temporary files each (`TmpFS`): Slurm's PMIx makes a folder of the same name on both nodes.
"""

import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

NODES = ("n1", "n2")
TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scancel", "sinfo", "squeue", "unshare")
PACKAGES = "Debian: apt-get install slurm-wlm munge libpmix2 libpmix-dev"
START_S, END_S, NAP_S = 60, 30, 0.2
CONFIGURATION = """ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={nodes[0]} NodeAddr=127.0.0.1 Port={ports[1]} Sockets=1 CoresPerSocket={cores} RealMemory=1000
NodeName={nodes[1]} NodeAddr=127.0.0.1 Port={ports[2]} Sockets=1 CoresPerSocket={cores} RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
DAEMON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # the nodes know nothing of our environment


def why_not() -> str:
    """What keeps Slurm from running here; empty if nothing does."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "a Slurm of two nodes needs Linux and root"
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=DAEMON["PATH"]) is None]:
        return f"a Slurm of two nodes needs {', '.join(missing)} ({PACKAGES})"
    if len(os.sched_getaffinity(0)) < 2:
        return "two ranks on a node, each on a core of its own, need two cores"
    name = f"hostname {NODES[0]}"
    if subprocess.run(["unshare", "--uts", "sh", "-c", name], capture_output=True, check=False).returncode:
        return "a node needs a host name of its own, and `unshare --uts` is forbidden here"
    return ""


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Two nodes with two cores each, all files in the folder; gives the environment for Slurm's commands.

    All daemons end with the block, also after an error, Ctrl-C or SIGTERM.

    Raises:
        RuntimeError: it did not come up; with the last lines of its logs.
    """
    environment = {"SLURM_CONF": f"{folder}/slurm.conf"}
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # pytest tidies up after Ctrl-C alone
    try:
        with ExitStack() as stack:
            stack.callback(end_strays, environment["SLURM_CONF"])
            configure(folder)
            for daemon in ("munged", "slurmctld", *NODES):
                stack.callback(end, folder / f"{daemon}.pid")
                start(daemon, folder)
            await_nodes(folder, environment)
            stack.callback(cancel, environment)
            yield environment
    finally:
        signal.signal(signal.SIGTERM, before)


def configure(folder: Path) -> None:
    for name in ("state", *(f"tmp-{node}" for node in NODES)):
        (folder / name).mkdir()
    with ExitStack() as stack:  # all at once: a port that was let go might be given again
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [each.getsockname()[1] for each in sockets]
    host = socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(host=host, folder=folder, ports=ports, nodes=NODES, cores=2)
    (folder / "slurm.conf").write_text(text)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))


def start(daemon: str, folder: Path) -> None:
    """The daemon goes to the background by itself, and leaves its number in a file."""
    conf = f"{folder}/slurm.conf"
    commands = {
        "munged": [
            *("munged", "--force", "--socket", f"{folder}/munge.socket", "--key-file", f"{folder}/munge.key"),
            *("--pid-file", f"{folder}/munged.pid", "--log-file", f"{folder}/munged.log"),
            *("--seed-file", f"{folder}/munged.seed"),
        ],
        "slurmctld": ["slurmctld", "-f", conf],
    }
    node = ["unshare", "--uts", "sh", "-c", 'hostname "$1"; exec slurmd -f "$2" -N "$1"', "sh", daemon, conf]
    with (folder / f"{daemon}.said").open("w") as said:  # no pipe: the daemon would keep it open
        done = subprocess.run(
            commands.get(daemon, node), env=DAEMON, stdout=said, stderr=said, timeout=START_S, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{daemon} did not start: {logs(folder)}")


def await_nodes(folder: Path, environment: dict[str, str]) -> None:
    for _ in range(round(START_S / NAP_S)):
        asked = ["sinfo", "--noheader", "--Node", "--format=%T"]
        done = subprocess.run(asked, env=DAEMON | environment, capture_output=True, text=True, check=False)
        if done.stdout.split() == ["idle"] * len(NODES):
            return
        time.sleep(NAP_S)
    raise RuntimeError(f"the nodes did not come up: {done.stdout}{done.stderr}{logs(folder)}")


def logs(folder: Path) -> str:
    files = [*folder.glob("*.said"), *folder.glob("*.log")]
    return "".join(f"\n== {file.name}: {file.read_text(errors='replace')[-800:]}" for file in files)


def cancel(environment: dict[str, str]) -> None:
    """All jobs; a node that is ended before its ranks would leave them behind."""
    subprocess.run(["scancel", "--user=root"], env=DAEMON | environment, check=False)
    for _ in range(round(END_S / NAP_S)):
        left = subprocess.run(["squeue", "--noheader"], env=DAEMON | environment, capture_output=True, check=False)
        if not left.stdout:
            return
        time.sleep(NAP_S)


def end(pid_file: Path) -> None:
    """The daemon with this file, if it has come so far; killed if it does not end by itself."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(round(END_S / NAP_S)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return
            time.sleep(NAP_S)


def end_strays(conf: str) -> None:
    """What jobs have left behind, known by its environment: Open MPI's launcher sometimes hangs at its end."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if f"SLURM_CONF={conf}\0".encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
