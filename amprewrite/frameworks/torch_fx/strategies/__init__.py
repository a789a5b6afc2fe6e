"""The ways to capture a torch model: their table, and a file for each."""
