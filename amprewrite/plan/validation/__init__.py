"""Checks of a plan: against itself, its program and the policy that made it."""
