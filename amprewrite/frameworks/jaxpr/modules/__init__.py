"""Modules of Equinox and Flax: converted, they stay modules of their library."""
