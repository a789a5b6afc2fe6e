"""Watch runs of a model: its tensors, and its calls."""
