"""Placement strategies, and the casts and stored weights that follow from one."""
