"""Collective algorithms, one file each."""
