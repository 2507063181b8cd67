"""Move buckets through their route, on a live or a virtual network, under a schedule's control.

``fabric.py`` is the common part. ``live.py`` runs stages (legs) with plans and an engine (``engine.py``),
``virtual.py`` with a clock and prices (``costs.py``). ``rules.py`` restricts schedules, ``order.py`` orders the
engine's work, and ``statistic.py`` examines gradients on all ranks before their use.
"""

from dear_mpi.training.fabric.fabric import Fabric
from dear_mpi.training.fabric.order import Handle

__all__ = ["Fabric", "Handle"]
