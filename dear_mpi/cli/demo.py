"""Run ``dear-mpi demo``: train end to end, then compare DeAR with competing schedules.

(a) handwritten digits, a convolutional network, DeAR over rings, to its test accuracy;

(b) a synthetic ResNet-50 over an emulated link: an all-reduce takes four times the forward pass. There the bounds of
DeAR and WFBP with equal buckets differ most: 1.25.
"""

from dear_mpi.cli.compare import compare_and_show
from dear_mpi.cli.flags import Flags, shared
from dear_mpi.cli.job import run_job
from dear_mpi.cli.run import Output, with_flags
from dear_mpi.cli.train import train_and_show
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import console
from dear_mpi.training.runs.config import Config

DIGITS = {"model": "cnn", "data": "digits", "schedule": "dear", "fusion": "layers:1"}
RESNET = {
    "model": "synthetic:resnet50",
    "fusion": "10MB",
    "forward_time": 0.25,
    "iterations": 15,
    "segment": "1MiB",
}
# ResNet-50 has 102.2 MB of fp32 gradients; a ring on 4 ranks sends 2 * 3/4 of them in each direction: 153 MB, which
# take four times the forward pass at this bandwidth.
LINK = "1.227gbit,50us"
NOTE = (
    "\nThree schedules on an EMULATED link, on which an all-reduce of 4 ranks takes 4 times the forward pass\n"
    "({} s, spent asleep). DeAR's bound is furthest ahead of WFBP's there, by 1.25x; elsewhere it gains less:"
)


@with_flags(shared("threads", "stall_after", "stall_abort"))
def demo(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi demo"""
    run_job(train_and_show, {**DIGITS, **flags})
    run_job(schedules, {**RESNET, **flags, "link": LINK})


def schedules(world: World, config: Config) -> Output:
    console(world).print(NOTE.format(config.forward_time))
    return compare_and_show(world, config, ("wfbp", "sequential", "dear"))
