"""Move buckets through their route, as a schedule directs.

``fabric.py`` has the common part and rules; ``live.py`` runs stages with plans and an engine
(``engine.py``), ``virtual.py`` with a clock and prices.
"""

from dear_mpi.training.fabric.fabric import Fabric
from dear_mpi.training.fabric.order import Handle

__all__ = ["Fabric", "Handle"]
