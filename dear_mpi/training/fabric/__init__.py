"""What schedules drive: buckets that communicate, on a live network or on a virtual one.

``fabric.py`` has the protocol. ``live.py`` carries it out with plans and an engine, ``virtual.py`` with a clock and
prices; ``rules.py`` says what a schedule may do, and ``order.py`` who is first on the wire.
"""

from dear_mpi.training.fabric.fabric import Fabric, Handle

__all__ = ["Fabric", "Handle"]
