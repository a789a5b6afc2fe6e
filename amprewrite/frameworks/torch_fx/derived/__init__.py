"""Converted models as instances of classes that are derived from the models' own."""
