"""Probes: sensitivities, roundings inside kernels, two graphs run in lockstep."""
