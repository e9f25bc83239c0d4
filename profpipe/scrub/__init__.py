"""Remove private data from exports, and mask secrets in tables."""
