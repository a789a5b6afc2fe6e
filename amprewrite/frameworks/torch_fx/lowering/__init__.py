"""Lower programs for the interpreter of Python: fewer and cheaper steps."""
