"""Represent a job's ranks, their hosts' memory, and the streams of each rank."""
