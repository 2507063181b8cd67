"""From a call to a prepared collective that can be run many times.

calls.py, make_plan.py  what users call
arguments.py            checks a call; tuning.py chooses for it
plan.py                 what they get
execution.py            a run as a list of instructions; message_buffers.py is the memory of its messages
runners/                how a collective is carried out
"""
