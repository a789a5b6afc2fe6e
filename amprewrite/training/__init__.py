"""Training in mixed precision: the loss scale, and steps that may be skipped.

``amprewrite.training.jax`` and ``amprewrite.training.torch`` are each loaded by their
own name; this package loads neither framework.
"""
