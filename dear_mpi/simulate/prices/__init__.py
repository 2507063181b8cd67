"""What a collective costs on a network, for many sizes of the buffer at once, and for thousands of ranks.

prices.py     what is asked: seconds of an algorithm's collective, for buffers of these bytes; of few ranks for all
lockstep.py   replays programs whose messages never meet, for thousands of ranks; or any, event by event, as ``cost``
"""
