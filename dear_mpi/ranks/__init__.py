"""The ranks of a job, and the streams on which each of them works."""
