"""Wires: forms in which gradients travel, beside the types of floating point. ``find.py`` has all by name: begin there.

Codes of shards that do not add up (``blocks.py``, ``TopK``) take the legs of ``routes/codes.py``; selections, thin
matrices, counters and noise add up, and have legs of their own.
"""
