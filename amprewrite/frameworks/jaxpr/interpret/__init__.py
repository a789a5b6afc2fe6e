"""Run a program by its plan: casts, contractions, recomputed regions."""
