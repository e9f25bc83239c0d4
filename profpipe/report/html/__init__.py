"""Write the document as report.html: one file with its style and its scripts, and no request to anywhere."""
