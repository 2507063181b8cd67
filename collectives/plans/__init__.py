"""Turn a call into a prepared collective that can run many times.

``call.py`` checks a call, ``make_plan.py`` plans it, a runner (``runners/``) binds it to its buffer, ``plan.py`` runs
it. ``functions.py`` has all_reduce and others, and caches their plans.
"""
