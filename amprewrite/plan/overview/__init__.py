"""Summaries of a plan: its layers, compounds, heaviest casts and reasons."""
