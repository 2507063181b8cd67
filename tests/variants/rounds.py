"""Rounds of local steps."""

import numpy as np

from tests.variants.target import BASE, Target, accuracy, late_loss, mean_ms, trained


def diloco_time() -> tuple[str, bool]:
    found, dense = (mean_ms(trained(schedule=each, optimizer="adamw")) for each in ("diloco:10", "dear"))
    return f"{found:.1f} ms (dear {dense:.1f} ms)", found <= 8.0


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
    Target("diloco:10", f"mean iteration at most 8 ms at {BASE}", diloco_time),
    Target("diloco:10", "batch 64, adamw, 240 iterations: loss not above that of dear (and accuracy)", diloco_loss),
]
