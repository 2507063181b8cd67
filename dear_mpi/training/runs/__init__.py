"""Run the commands' jobs: a configuration, its workload and its job, trained once or compared, with a report."""
