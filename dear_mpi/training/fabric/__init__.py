"""What schedules drive: buckets that go through their route, on a live network or on a virtual one.

``fabric.py`` has what both have in common. ``live.py`` carries legs out with plans and an engine (``engine.py``),
``virtual.py`` with a clock and prices (``costs.py``). ``rules.py`` says what a schedule may do, ``order.py`` what the
engine does first, and ``statistic.py`` how all ranks learn what must be known of gradients before they are used.
"""

from dear_mpi.training.fabric.fabric import Fabric
from dear_mpi.training.fabric.order import Handle

__all__ = ["Fabric", "Handle"]
