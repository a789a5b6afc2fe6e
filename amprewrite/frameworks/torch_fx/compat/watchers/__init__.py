"""Watchers of a model that runs, for a capture, and programs that try them."""
