"""Modules of Equinox and Flax: converted, they stay modules of their library."""

from amprewrite.frameworks.jaxpr.modules.adapters import adapter_of

__all__ = ["adapter_of"]
