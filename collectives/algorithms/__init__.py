"""The algorithms, one file each, and ``registry.py``, which lists them.

``mirror.py``, ``butterfly.py`` and ``grid.py`` are what several of them share; ``user_algorithm.py`` loads yours.
"""
