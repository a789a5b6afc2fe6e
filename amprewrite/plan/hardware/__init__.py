"""Devices: their names, their calibrations, the accumulators of their kernels."""
