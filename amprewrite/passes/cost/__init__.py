"""Cost models: prices of ops and casts in bytes moved, default or measured."""
