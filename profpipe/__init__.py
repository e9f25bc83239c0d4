"""profpipe: run GPU workloads under several profilers and get one table that can be trusted."""

__version__ = "0.1.0"
