"""Probes: sensitivities, values watched while a program runs, lockstep runs."""
