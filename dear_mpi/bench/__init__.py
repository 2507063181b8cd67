"""Benchmark collectives. Start at ``bench`` in run.py.

machine_file: rows of ``--json``. case, data: timed calls and their results. native, backends: candidates. timing:
starts and turns.
"""
