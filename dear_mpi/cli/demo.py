"""The demo: the main job end to end, then DeAR beside the schedules it competes with.

(a) handwritten digits, a convolutional network, DeAR over rings, to its test accuracy;
(b) the shadow of ResNet-50 over an emulated link on which an all-reduce takes four times as long as the forward
    pass, where DeAR gains most: 1.25 over an ideal WFBP with the same buckets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dear_mpi.ranks.world import World
from dear_mpi.see.tables import comparison_progress, console, show_comparison, show_training, training_progress
from dear_mpi.training.compare import compare
from dear_mpi.training.config import Config
from dear_mpi.training.train import train

__all__ = ["DEMO", "Act"]

FORWARD_S = 0.25
SCHEDULES = ("wfbp", "sequential", "dear")
# ResNet-50 has 102.2 MB of fp32 gradients, of which a ring on 4 ranks sends 2 * 3/4 in each direction: 153 MB, and
# 4 * FORWARD_S at this bandwidth.
LINK = "1.227gbit,50us"


@dataclass(frozen=True)
class Act:
    """One part of the demo, and the link that it emulates."""

    show: Callable[[World], None]
    link: str | None = None


def digits(world: World) -> None:
    """Train a real classifier."""
    config = Config.of({"model": "cnn", "data": "digits", "schedule": "dear", "fusion": "layers:1"})
    with training_progress(world, config) as progress:
        report = train(config, world, progress)
    show_training(world, report)


def schedules(world: World) -> None:
    """Hold DeAR against its peers."""
    config = Config.of(
        {
            "model": "synthetic:resnet50",
            "fusion": "10MB",
            "forward_time": FORWARD_S,
            "iterations": 9,
            "segment_bytes": 1 << 20,
        }
    )
    console(world).print(f"\nAll-reduce takes 4 times as long as the forward pass, which takes {FORWARD_S} s asleep:")
    with comparison_progress(world, config, SCHEDULES) as progress:
        rows = compare(config, world, SCHEDULES, progress)
    show_comparison(world, rows)


DEMO = (Act(digits), Act(schedules, LINK))
