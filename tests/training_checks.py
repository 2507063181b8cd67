"""Small training runs that the tests over threads and under mpirun share."""

from pathlib import Path

README = str(Path(__file__).parent.parent / "README.md")

SCHEDULE_CASES = [
    {"model": "mlp", "fusion": "none"},
    {"model": "mlp", "fusion": "25MB", "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True},
    {"model": "cnn", "fusion": "layers:2", "weight_decay": 1e-3},
    {"model": "cnn", "fusion": "buckets:3", "wire": "bf16", "algorithm": "naive"},
    {"model": "gpt", "data": README, "fusion": "none", "context": 8, "batch": 6, "iterations": 4},
    {"model": "mlp", "fusion": "none", "segment_bytes": 4096, "batch": 7},
]


def settings(**choices):
    """A run of a second."""
    return {"model": "mlp", "data": "digits", "fusion": "none", "batch": 32, "iterations": 8, "seed": 3} | choices
