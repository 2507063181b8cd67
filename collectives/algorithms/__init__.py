"""Collective algorithms, one file each; ``registry.py`` lists them and loads users' own."""
