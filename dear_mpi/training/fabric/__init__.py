"""What schedules drive: buckets that communicate, on a live network or on a virtual one.

``fabric.py`` has the protocol. ``live.py`` carries it out with plans and an engine.
"""

from dear_mpi.training.fabric.fabric import Fabric, Handle

__all__ = ["Fabric", "Handle"]
