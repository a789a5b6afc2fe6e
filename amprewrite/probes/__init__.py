"""Public functions that look into runs of a model; their imports run when called."""

from amprewrite.probes.exponents import histogram

__all__ = ["histogram"]
