"""The algorithms, one file each, and ``registry.py``, which lists them and loads yours.

``mirror.py``, ``butterfly.py`` and ``grid.py`` are what several of them share.
"""
