"""Scaled modules of Equinox and Flax: of classes derived from the models' own."""
