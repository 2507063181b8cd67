"""In which order: dimensions of a network (Themis), and both parts of a backward pass (Lancet). Priced, not timed."""

from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.virtual_trainer import predict
from docs.benchmarks.dimensions import gain
from docs.benchmarks.variants.target import Target
from tests.training_checks import cut_of


def themis_gain() -> tuple[str, bool]:
    found = gain(4, 4, 1)
    return f"{found:.2f}", found >= 1.9


def themis_least() -> tuple[str, bool]:
    found = min(gain(4, 4, 2.0**power) for power in range(-10, 10))
    return f"{found:.3f}", found >= 1 - 1e-9


def lancet_units() -> tuple[str, bool]:
    """Where dx, dw and an exchange take one unit each; without the exchanges of the forward pass."""
    layers = 12
    one, buckets = dict.fromkeys(range(layers), 1.0), cut_of(*((use,) for use in range(layers)))
    costs = Costs(forward_s=[0.0] * layers, backward_s=[2.0] * layers, weights_s=one, exchange_s=one)
    before, found = (
        predict(SCHEDULES[name], Rules(name, buckets, SCHEDULES[name]), costs).iteration_s - layers
        for name in ("dear", "lancet")
    )
    return f"{found:.1f} ({before:.0f} under dear)", found <= 26.8


TARGETS = [
    Target("themis", "4 hosts of 4 ranks, equal loads: 1.9 times as fast as hierarchical, priced", themis_gain),
    Target("themis", "least gain at 20 ratios of rates, not below 1", themis_least),
    Target("lancet", "backward pass of 12 layers with exchanges: 36 units to at most 26.8, predicted", lancet_units),
]
