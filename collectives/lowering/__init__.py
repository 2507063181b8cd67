"""Lower a program to messages for one buffer (``messages.py``), or to phases in ranks' memory (``phases.py``)."""
