"""A report as the contents of an HTML page."""
