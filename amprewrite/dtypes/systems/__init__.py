"""Promotion systems: JAX, torch, NumPy 1 and 2, the array API standard."""
