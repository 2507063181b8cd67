"""Turn a call into a prepared collective that can run many times.

A runner (``runners/``) binds it to its buffer.
"""
