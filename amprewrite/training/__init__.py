"""Training in mixed precision: loss scaling, skipped steps, low-precision weights.

``amprewrite.training.jax`` and ``amprewrite.training.torch`` are each loaded by their
own name; this package loads neither framework.
"""
