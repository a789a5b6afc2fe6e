"""Backward passes through a graph: in segments, with refusals of their ops."""
