"""Wires: forms in which gradients travel that are no types of floating point. ``routes/find.py`` has all by name.

Codes that do not add up (``blocks.py``, top k) take the legs of ``routes/codes.py``; random selections add up.
"""
