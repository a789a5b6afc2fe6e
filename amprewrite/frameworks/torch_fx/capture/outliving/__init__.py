"""Tensors of a trace that outlive it, because the forward stores them."""
