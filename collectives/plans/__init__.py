"""Turn a call into a prepared collective that can run many times.

``call.py`` checks it, ``make_plan.py`` plans, a runner (``runners/``) binds its buffer, ``plan.py`` runs it.
"""
