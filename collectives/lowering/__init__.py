"""From a program to instructions: which messages a rank sends for one buffer, and in which order.

messages.py      cuts transfers into segments
instructions.py  orders them, so that nothing can deadlock
check_instructions.py         proves the order of all ranks on symbols
"""
