"""Benchmark collectives. Each file needs only the ones before it (``tests/rooms.py`` holds the order).

Start at ``bench`` in run.py. machine_file: the rows of ``--json``. Case, data: what is timed and checked. Native,
backends: candidates. Suite: flags. Timing: starts and turns. Fit, run: a report. Output: its formats.
Saved, tune: files of runs, and the fastest algorithms.
"""
