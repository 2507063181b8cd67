"""Training with one planted cause: a rank that sleeps, a link of half the rate, a layer that takes twice as long.

Layers sleep and links are emulated, so a cause is what it says, whatever else the machine does.
"""

import json
import time
from dataclasses import dataclass, replace

from dear_mpi.collectives.transports.emulated import EmulatedTransport, Link, Port

LAYERS, PARAMETERS = 6, 20_000
MODEL = {"modules": [{"name": f"layer{at}", "params": [PARAMETERS], "fwd_flops": 1 + at % 2} for at in range(LAYERS)]}
MODEL_FILE = "planted.json"
FORWARD_S = 0.030
LINK = "100mbit,100us"
TRAINING = {"schedule": "dear", "fusion": "none", "iterations": 24, "forward_time": FORWARD_S}
LATE_S = 0.015


@dataclass(frozen=True)
class Cause:
    """``name`` as blame says it, such as 2, 1 -> 2, layer3; nothing is planted if the kind is ``none``."""

    kind: str
    name: str = ""

    @classmethod
    def drawn(cls, kind, rng, ranks):
        first = rng.randrange(ranks)
        names = {"rank": str(first), "link": f"{first} -> {(first + 1) % ranks}"}
        return cls(kind, names.get(kind, f"layer{rng.randrange(LAYERS)}" if kind == "layer" else ""))


def model_in(folder):
    path = folder / MODEL_FILE
    path.write_text(json.dumps(MODEL))
    return f"synthetic:{path}"


class HalvedTransport(EmulatedTransport):
    """One link, from this rank to a peer, has half the rate."""

    def __init__(self, below, link, slow):
        super().__init__(below, link)
        self.slow, self.half = slow, Port(Link(link.bandwidth / 2, link.latency_s))
        self.outbox.ports = [*self.outbox.ports, self.half]

    def send_init(self, data, peer, tag):
        request = super().send_init(data, peer, tag)
        if (self.rank, peer) == self.slow:
            request.ports = [self.half]
        return request


def planted(world, cause):
    """The world in which a cause is; that of a link."""
    if cause.kind != "link":
        return world
    sender, receiver = map(int, cause.name.split(" -> "))
    return replace(world, transport=HalvedTransport(world.transport.below, world.link, (sender, receiver)))


def plant_in_layers(layers, cause, rank):
    for layer in layers:
        name = layer.parameters[0].name.rpartition(".")[0]
        if (cause.kind, cause.name) == ("layer", name):
            slow(layer)
        if (cause.kind, cause.name) == ("rank", str(rank)) and name == f"layer{LAYERS // 2}":
            before(layer, lambda: time.sleep(LATE_S))


def slow(layer):
    """Let it take twice as long as it declares."""
    for passed in ("forward", "backward"):
        call, seconds = getattr(layer, passed), getattr(layer, f"{passed}_s")

        def twice(given, call=call, seconds=seconds):
            layer.compute_time.spend(seconds, time.perf_counter())
            return call(given)

        setattr(layer, passed, twice)


def before(layer, do):
    call = layer.forward

    def later(given):
        do()
        return call(given)

    layer.forward = later
