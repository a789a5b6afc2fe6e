"""Prices of ops and casts: bytes moved, or times measured on a device."""
