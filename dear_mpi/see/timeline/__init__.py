"""Save timelines: ``write.py`` writes files, ``picture.py`` draws, ``trace.py`` is for Perfetto."""
