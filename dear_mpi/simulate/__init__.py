"""Predict iterations with a virtual trainer, on any ranks and network. Read first ``sweep.py``."""
