"""Exact placement: a minimum cut with branch and bound, and its certificate."""
