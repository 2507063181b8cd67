"""What the commands run: a configuration, its workload and its job, trained once or compared; and what is reported."""
