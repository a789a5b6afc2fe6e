"""Values of tensors, read as float64 block by block."""
