"""Printed views of plans, policies and promotion."""
