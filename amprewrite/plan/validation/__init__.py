"""Checks of a plan: against itself, its program and its policy."""
