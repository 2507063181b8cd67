"""Run a configured job, trained once or compared, with a report."""
