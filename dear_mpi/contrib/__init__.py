"""Extras. Core works without them, and imports none: it finds what they publish as entry points."""
