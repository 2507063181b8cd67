"""From a program to instructions: which messages a rank sends for one buffer, and in which order.

messages.py             cuts transfers into messages
instructions.py         orders them, so that nothing can deadlock
check_instructions.py   proves the order of all ranks on symbols
phases.py               what ranks do instead that work in each other's memory
check_phases.py         proves that, too
"""
