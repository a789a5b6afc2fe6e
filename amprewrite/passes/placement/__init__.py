"""Placements, and the casts, stored weights and accumulators that follow from one."""
