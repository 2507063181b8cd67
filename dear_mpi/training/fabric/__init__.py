"""What schedules drive: buckets that communicate, on a live network or on a virtual one.

``fabric.py`` has the protocol. ``live.py`` carries it out with plans and an engine (``engine.py``), ``sharded.py``
where each rank updates a shard, ``virtual.py`` with a clock and prices. ``rules.py`` says what a schedule may do,
``order.py`` which collective is first on the wire, and ``verdict.py`` what must be known of gradients before they are
used. ``foresight.py`` decides such an order from measured times; ``extras.py`` has what schedules start beside
reductions of gradients; ``slab.py`` has the memory of all; ``virtual_use.py`` is a layer that takes time.
"""

from dear_mpi.training.fabric.fabric import Fabric, Handle

__all__ = ["Fabric", "Handle"]
