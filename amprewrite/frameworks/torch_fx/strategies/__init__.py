"""The strategies to capture a torch model: their table, and a file for each."""
