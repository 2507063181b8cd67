"""Measure compute on this machine for ``simulate`` and the tuners."""
