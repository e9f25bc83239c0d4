"""Remove private data from exports."""
