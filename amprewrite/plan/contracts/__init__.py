"""Facts of a plan about contractions of 8 bits: formats, kernels, gradients."""
