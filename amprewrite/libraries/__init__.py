"""Optional libraries, each loaded by a function that says how to install it."""
