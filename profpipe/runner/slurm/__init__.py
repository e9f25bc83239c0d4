"""Runs on a Slurm cluster: plan, submit, carry out one task, follow the queue and collect the records."""
