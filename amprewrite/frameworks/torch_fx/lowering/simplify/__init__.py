"""Passes that leave out ops of a lowered graph, in any layout and for any kernel."""
