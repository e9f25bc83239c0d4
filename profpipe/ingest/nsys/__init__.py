"""Code that the parsers of Nsight Systems share."""
