"""From a program to instructions: which messages a rank sends for one buffer, and in which order.

``messages.py`` cuts, ``instructions.py`` orders; ``phases.py`` is for ranks that work in each other's memory instead.
"""
