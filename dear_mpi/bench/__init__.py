"""Benchmark collectives. Each file needs only the ones before it (``tests/rooms.py`` holds the order).

Start at ``bench`` in run.py. machine_file: the rows of ``--json``. case, data: the timed calls and their results.
native, backends: candidates. suite: flags. timing: starts and turns. fit, run: a report. output: its formats.
saved, tune: files of runs, and the fastest algorithms.
"""
