"""Record a rank's events and iteration times (``log.py``), and spans for pictures (``spans.py``)."""
