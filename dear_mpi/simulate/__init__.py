"""Predict iterations with a virtual trainer, on any number of ranks and any network. Read first ``sweep.py``."""
