"""Findings to the sections of the document, one file a subject."""
