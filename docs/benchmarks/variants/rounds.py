"""Rounds of local steps."""

import numpy as np

from docs.benchmarks.variants.target import Target, accuracy, late_loss, trained


def diloco_loss() -> tuple[str, bool]:
    """With 16 examples on each rank, over three seeds."""
    how = {"optimizer": "adamw", "lr": 1e-3, "batch": 64, "link": None}
    found = {}
    for name in ("dear", "local:10", "diloco:10"):
        reports = [trained(240, schedule=name, seed=seed, **how) for seed in range(3)]
        found[name] = [float(np.mean([figure(each) for each in reports])) for figure in (late_loss, accuracy)]
    said = ", ".join(f"{name} {loss:.3f} ({percent:.1f} %)" for name, (loss, percent) in found.items())
    return said, found["diloco:10"][0] <= found["dear"][0]


TARGETS = [
    Target("diloco:10", "batch 64, adamw, 240 iterations: loss not above that of dear (and accuracy)", diloco_loss)
]
