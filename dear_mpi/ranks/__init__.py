"""The ranks of a job, the memory of their hosts, and the streams on which each of them works."""
