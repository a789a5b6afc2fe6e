"""Interpreter: bind the equations of a program again, with the casts of a plan."""
