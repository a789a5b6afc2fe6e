"""Probes: sensitivities, watched values, and lockstep runs against a reference."""
