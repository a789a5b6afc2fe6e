"""Comparison of a model with its converted form, and with ops of it restored."""
