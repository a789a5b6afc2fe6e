"""Programs: jaxprs with calls inlined and values named, and their program graphs."""
