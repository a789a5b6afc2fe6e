"""Readers and writers: the only code that knows a framework."""
