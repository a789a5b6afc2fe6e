"""A plan as the contents of an HTML page."""
