"""Adapters for modules of Equinox and Flax, which stay modules of their library."""
