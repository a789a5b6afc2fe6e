"""Programs of a converted model: one for each call signature and mode."""
