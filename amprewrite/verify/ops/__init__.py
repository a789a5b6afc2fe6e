"""The errors of single ops: own and accumulated errors, ranges and faults."""
