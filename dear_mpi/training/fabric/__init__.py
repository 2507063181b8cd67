"""Move buckets through their route, as a schedule directs.

``fabric.py`` has the common part, ``rules.py`` checks schedules; ``live.py`` runs stages with plans and an engine,
``virtual.py`` with a clock and prices.
"""
