"""Functions of structures."""

from dataclasses import asdict, replace

__all__ = ["asdict", "replace"]
