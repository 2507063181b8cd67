"""What a rank did, and when. ``log.py`` is the list of events, live and virtual; all else is made of it:

``times.py``      seconds of an iteration, of its layers and of its waits
``timeline.py``   spans for a picture or a trace, which ``spans.py`` describes
"""
