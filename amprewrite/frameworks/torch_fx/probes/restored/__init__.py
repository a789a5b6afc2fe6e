"""Converted programs that run with some of their ops restored to the original's."""
