"""Collective algorithms, one file each; ``registry.py`` lists them and loads users' own.

Several share ``mirror.py``, ``butterfly.py`` and ``ring.py``.
"""
