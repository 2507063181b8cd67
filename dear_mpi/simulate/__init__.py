"""Predict iterations with a virtual trainer, on any number of ranks and any network, without MPI.

Read first ``settings.py``, then ``sweep.py``; ``scenario.py`` combines a model, a network and its prices.
"""
