"""From a call to a prepared collective that can be run many times.

``make_plan.py`` makes a plan of a checked call (``call.py``); a runner (``runners/``) carries it out; ``functions.py``
has all_reduce and its like, and keeps their plans.
"""
