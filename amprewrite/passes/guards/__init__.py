"""Guards: numbers that low cannot tell from the value that they guard against."""
