"""Capture: from a JAX function to a jaxpr."""
