"""What times a callable in the workload's process: the parts of ``timing`` and of ``harness``."""
