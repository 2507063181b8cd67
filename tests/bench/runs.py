"""Made-up runs of the benchmark, for what compares and draws them."""

from dataclasses import replace

import numpy as np

from dear_mpi.bench.case import Case, Samples, row_of
from dear_mpi.bench.saved import Run

SIZES = tuple(4**power for power in range(1, 12))
SPREAD, OUTLIERS, OUTLIER = 0.1, 0.05, 3.0  # of samples: on a scale of logarithms; their part, and how long they take


def run_of(
    rng=None, *, name="run", slow=1.0, likeness=0.0, samples=40, sizes=SIZES, algorithms=("native", "ring"), **facts
):
    """A run whose samples have log-normal times with outliers (all are 10 us and more without ``rng``)."""
    rows = [
        replace(row_at(nbytes, algorithm, times_s(rng, nbytes, samples, likeness) * slow), **facts)
        for nbytes in sizes
        for algorithm in algorithms
    ]
    return Run(name, rows)


def row_at(nbytes, algorithm, seconds, ranks=4, backend="here", collective="all_reduce"):
    measured = Samples([seconds.tolist()] * ranks, 0)
    case = Case(collective, nbytes)
    return row_of(case, algorithm, measured, backend=backend, hosts=[ranks], segment_bytes=1 << 18)


def times_s(rng, nbytes, samples, likeness):
    """An AR(1) process on the logarithms, if neighbours are alike."""
    mean_s = 10e-6 + nbytes * 1e-9
    if rng is None:
        return np.full(samples, mean_s)
    noise = rng.standard_normal(samples)
    for number in range(1, samples if likeness else 0):
        noise[number] = likeness * noise[number - 1] + np.sqrt(1 - likeness**2) * noise[number]
    return mean_s * np.exp(SPREAD * noise) * np.where(rng.random(samples) < OUTLIERS, OUTLIER, 1.0)


BAD_SUITES = [
    ({"collectives": ("allreduce",)}, "did you mean 'all_reduce'"),
    ({"algorithms": ("native", "rnig")}, "'rnig' is unknown: did you mean 'ring'"),
    ({"algorithms": ("",)}, "algorithm '' is unknown"),
    ({"algorithms": ("ring", "ring")}, "algorithms must be different ones, not ring, ring"),
    ({"placements": ("inside",)}, "placement 'inside' is unknown"),
    ({"dtypes": ("fp32", "fp8")}, "dtype 'fp8' is unknown"),
    ({"dtypes": ("fp32", "fp32")}, "dtypes must be different ones"),
    ({"ops": ("sum", "average"), "dtypes": ("int8",)}, "op 'average' needs a floating dtype, not 'int8'"),
    ({"ops": ("sum", "mean")}, "op 'mean' is unknown"),
    ({"device": "gpu"}, "device 'gpu' is unknown"),
    ({"memory": "public"}, "memory 'public' is unknown"),
    ({"cadence": "slow"}, "cadence 'slow' is unknown"),
    ({"sizes": (1,)}, "sizes must be at least 4 B, one element, not 1 B"),
    ({"sizes": ()}, "sizes must be at least 4 B"),
    ({"segments": (2, 512)}, "segments must be at least 4 B, one element, not 2 B"),
    ({"iterations": 0}, "iterations must be a whole number|iterations must be at least 1"),
    ({"warmup": -1}, "warmup must not be negative"),
    ({"budget_s": 0.0}, "budget must be above 0 s, not 0 s"),
    ({"start": "gun"}, "start 'gun' is unknown"),
]
