"""Unit scaling of a whole program, on the neutral graph: which factor stands where.

Nothing here belongs to a framework. Rules of single ops come in as data, and a scale
plan goes out, which a writer of the framework applies.
"""
