"""A claim of the table of variants, and the runs that several claims look at."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dear_mpi.collectives.transports.emulated import Link
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_links
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train

SLOW, BASE, HOSTS = "10mbit,100us", "100mbit,100us", "1gbit,20us/20mbit,100us,hosts=2"
NEAR = "100gbit,1us/100gbit,1us,hosts=2"  # hosts between which hardly anything takes time


@dataclass(frozen=True)
class Target:
    """A claim.

    Attributes:
        variant, claim: in words.
        measure: gives what was seen, in words, and whether that is what was claimed.
    """

    variant: str
    claim: str
    measure: Callable[[], tuple[str, bool]]


@cache
def trained(iterations: int = 300, *, link: str | None = BASE, ranks: int = 4, **choices: object) -> dict:
    """A run's report; the same one for the same choices."""
    config = Config.of({"model": "mlp", "data": "digits", "iterations": iterations, **choices})
    emulated: Link | None = None if link is None else parse_links(link)
    return run_world(lambda world: train(config, world), threads=ranks, link=emulated)


def accuracy(report: dict) -> float:
    return 100 * report["accuracy"]


def mean_ms(report: dict) -> float:
    return 1e3 * float(np.mean(report["iteration_s"][report["uncounted"] :]))


def late_loss(report: dict) -> float:
    """The mean of the last 20 losses: one alone is noise."""
    return float(np.mean(report["loss"][-20:]))
