"""Lower a program to ordered messages for one buffer.

``messages.py`` cuts and orders. ``phases.py`` is for ranks that work in each other's memory.
"""
