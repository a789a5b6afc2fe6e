"""Converted functions, and models as pure functions of arrays."""
