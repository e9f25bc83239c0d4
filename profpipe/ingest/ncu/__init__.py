"""Code that the parsers of Nsight Compute share."""
