"""Charts of the document, drawn by matplotlib."""
