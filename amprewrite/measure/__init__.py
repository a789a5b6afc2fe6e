"""Drivers of measurements, written once for all frameworks."""
