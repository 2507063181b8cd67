"""Stands for ml_dtypes beside the stand-in of NumPy."""

from numpy import Named


def __getattr__(name: str) -> Named:
    if name.startswith("__"):
        raise AttributeError(name)
    return Named(name)
