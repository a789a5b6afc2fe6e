"""Capture: from a torch model to an ATen-level graph."""
