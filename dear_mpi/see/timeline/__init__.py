"""Timelines in files: ``trace.py`` for Perfetto, ``picture.py`` for the eye; ``write.py`` chooses by their endings."""
