"""A profiler's file to the tables."""
