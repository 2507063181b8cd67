"""Pages that open anywhere: one file each, without a network or a server. ``whole.py`` joins data and ``web``."""
