"""What the product did, so that a change of its shape cannot change it unseen.

parameters     SHA-256 of the parameters after training, for schedules x routes x wires x ranks and further options
commands       flags, JSON keys and exit codes of all commands
predictions    rows of ``simulate`` for 40 settings

``python -m tests.golden`` writes the files anew; ``make golden`` compares all cases, and the tests a part of them.
The prover's error messages are held by ``tests/collectives/test_verify.py``.
"""
