"""Code that the parsers of torch.profiler share."""
