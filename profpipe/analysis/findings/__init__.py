"""What the analysis found, as plain values."""
