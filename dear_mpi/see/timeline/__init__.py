"""Timelines in files: ``write.py`` for Perfetto, ``picture.py`` for the eye."""
