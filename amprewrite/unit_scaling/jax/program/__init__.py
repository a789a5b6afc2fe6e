"""The unit-scaling pass on programs of JAX: trace, rules, factors in the program."""

from amprewrite.unit_scaling.jax.program.scaled_function import unit_scale

__all__ = ["unit_scale"]
