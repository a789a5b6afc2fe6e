"""Devices: their names, what was measured on them, what their kernels hand over."""
