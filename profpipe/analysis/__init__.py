"""The parts of ``analyze``: tables -> findings."""
