"""What the parsers of several formats share: columns, counters, numbers, and placing launches in ranges."""
