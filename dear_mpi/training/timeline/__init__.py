"""What each rank did, and when: ``recorder.py`` collects it, ``live.py`` and ``virtual.py`` bring it together.

``dear_mpi/see/timeline/`` writes it into files.
"""
