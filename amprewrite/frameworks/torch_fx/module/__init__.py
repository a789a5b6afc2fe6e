"""Converted modules: calls, state, pickling, devices and distributed training."""
