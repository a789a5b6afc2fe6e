"""Rewrite: read a captured graph, write a plan into it, check what it then reads."""
