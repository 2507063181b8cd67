"""Define wire formats that are not floating-point types; ``routes/find.py`` lists all by name.

Codes that do not add up (``blocks.py``, top k) use the stages (legs) of ``routes/codes.py``; random selections add up.
"""
