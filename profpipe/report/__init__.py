"""Findings to a document, and the document to Markdown, HTML and text."""
