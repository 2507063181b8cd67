"""What schedules drive: buckets that go through their route, on a live network or on a virtual one.

``fabric.py`` has what both have in common. ``live.py`` carries legs out with plans and an engine (``engine.py``),
``virtual.py`` with a clock and prices. ``rules.py`` says what a schedule may do, ``order.py`` which collective is first
on the wire, ``statistic.py`` what must be known of gradients before they are used, and ``verdict.py`` how all ranks
learn it. ``foresight.py`` decides such an order from measured times; ``virtual_use.py`` is a layer that takes time.
"""

from dear_mpi.training.fabric.fabric import Fabric, Handle

__all__ = ["Fabric", "Handle"]
