"""What a collective costs on a network, for many sizes of the buffer at once, and for thousands of ranks.

prices.py     what is asked: seconds of an algorithm's collective, for buffers of these bytes
stand_ins.py  the few ranks whose programs are replayed for all
lockstep.py   replays programs whose messages never meet: the fast way, for thousands of ranks
columns.py    replays any programs, event by event, as ``cost`` does for one size
"""
