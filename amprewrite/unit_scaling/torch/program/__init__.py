"""The unit-scaling pass on programs of torch: capture, rules, factors in the graph."""

from amprewrite.unit_scaling.torch.program.scaled_model import unit_scale

__all__ = ["unit_scale"]
