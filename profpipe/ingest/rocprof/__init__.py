"""Code that the parsers of rocprof share."""
