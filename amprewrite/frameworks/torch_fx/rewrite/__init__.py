"""Rewrite: read a captured graph, write a plan into it, and check the result."""
