"""What a rank did, and when: events and the seconds of iterations (``log.py``), spans for pictures (``spans.py``)."""
