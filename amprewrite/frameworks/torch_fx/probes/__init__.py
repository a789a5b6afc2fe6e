"""Probes: sensitivities, roundings inside kernels, and runs in lockstep."""
