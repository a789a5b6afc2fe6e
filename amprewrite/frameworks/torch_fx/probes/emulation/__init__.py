"""Low products on processors that emulate them, in less time with the same result."""
