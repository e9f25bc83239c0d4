"""Findings to a document, and the document to Markdown and text."""
