"""What each rank did, and when: ``recorder.py`` collects it, ``live.py`` brings that of all ranks together.

``dear_mpi/see/timeline/`` writes it into files; a simulated one is of ``dear_mpi/simulate/recorded_fabric.py``.
"""
