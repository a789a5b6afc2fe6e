"""Drivers of measurements, written once for all frameworks."""

CONVERTED = "converted"
"""Name of the run of the converted model."""

JITTED = "converted, jitted"
"""Name of the run of the converted model compiled as a whole, where that differs."""

ORIGINAL = "original"
"""Name of the run of the original in its own dtype: the noise floor."""

REFERENCE = "reference"
"""Name of the run that the others are compared with."""
