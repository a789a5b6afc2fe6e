"""The errors of single ops: their own, what accumulates, ranges and faults."""
