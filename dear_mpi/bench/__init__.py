"""Benchmark collectives. Start at ``bench`` in run.py.

machine_file: rows of ``--json``. case, data: the timed calls and their results. native, backends: candidates. suite:
flags. timing: starts and turns. fit, run: a report.
"""
