"""Price a collective on a network, for many buffer sizes at once, and for thousands of ranks.

prices.py     what is asked: seconds of an algorithm's collective, for buffers of these bytes; of few ranks for all
lockstep.py   replays programs whose messages never meet, for thousands of ranks; or any, event by event, as ``cost``
"""
