"""From a call to a prepared collective that can be run many times.

functions.py        all_reduce and its like; one_off.py keeps their plans
make_plan.py        makes a plan; plan.py is what it makes
call.py             what a user asked for, checked; tuning.py chooses for it, proof.py says what may run
reach.py            which memory all ranks can reach
execution.py        carries out instructions; message_buffers.py is the memory of their messages
runners/            how a collective is carried out
"""
