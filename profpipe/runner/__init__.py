"""A Pipeline to finished jobs: plan, start, watch and record the processes of a run."""
