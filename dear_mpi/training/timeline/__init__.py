"""What a rank did, and when: ``recorder.py`` collects it, ``spans.py`` is what comes out.

``dear_mpi/training/recording.py`` brings the timelines of all ranks together, ``dear_mpi/simulate/recorded_fabric.py``
has a simulated one, and ``dear_mpi/see/timeline/`` writes it into files.
"""
