"""Pack weights for the kernels that read them, and fuse the ops that follow."""
