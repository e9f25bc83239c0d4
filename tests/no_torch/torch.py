"""Stands before the real torch on the path of a workload that needs none."""

raise ImportError("no torch for this test")
