"""Charts of the document as SVG: the pictures of report.html, and the files of SUMMARY.md."""
