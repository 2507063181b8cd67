"""Write self-contained pages: one file each, without network or server. ``whole.py`` joins data and ``web``."""
