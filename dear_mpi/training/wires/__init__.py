"""Wires: forms in which gradients travel, beside the types of floating point. Codes of shards are in ``blocks.py`` and
``top_k.py``; they do not add up, and take the legs of ``routes/codes.py``."""
