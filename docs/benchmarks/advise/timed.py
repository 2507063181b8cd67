"""What an iteration of one of the scripts takes under DDP, or alone. On the ranks of a job; rank 0 writes the seconds.

python -m docs.benchmarks.advise.timed resnet --json FILE [--steps 30] [--alone]
"""

import argparse
import importlib
import json
import os
import runpy
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from dear_mpi.contrib.gloo.candidate import meeting_place
from dear_mpi.ranks.world import run_world

WARM, FIRST = 5, -20
WITH_DDP = ("accumulating",)  # by themselves


def go_first():
    """Let other programs of this machine wait, as far as the system allows it: also where sessions share it evenly."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
        Path("/proc/self/autogroup").write_text(str(FIRST), "utf-8")


def join(world):
    """Collective: the variables that torchrun would set."""
    address = meeting_place(world.transport.gather_values(socket.gethostname()))
    with socket.socket() as free:
        free.bind(("", 0))
        address, port = world.transport.gather_values((address, free.getsockname()[1]))[0]
    job = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": 0, "MASTER_ADDR": address, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in job.items()}


def train(name, steps, alone):
    """The script as it is, or its model under DDP."""
    if alone or name in WITH_DDP:
        sys.argv = [f"{name}.py", "--steps", str(steps)]
        runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
        return
    script = importlib.import_module(f"docs.benchmarks.advise.{name}")
    dist.init_process_group("gloo")
    script.train(DistributedDataParallel(script.build()), steps)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--alone", action="store_true", help="without DDP, on one rank")
    options = parser.parse_args()
    torch.set_num_threads(1)
    go_first()
    ends_s = []

    def body(world):
        join(world)
        with_hook = register_optimizer_step_post_hook(lambda *_: ends_s.append(time.perf_counter()))
        train(options.name, WARM + options.steps, options.alone)
        with_hook.remove()
        own = [end - begin for begin, end in zip(ends_s[WARM - 1 :], ends_s[WARM:], strict=False)]
        slowest = [max(each) for each in zip(*world.transport.gather_values(own), strict=True)]
        if world.rank == 0:
            options.json.write_text(json.dumps(slowest), encoding="utf-8")

    run_world(body)


if __name__ == "__main__":
    main()
