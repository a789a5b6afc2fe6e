"""The Python interpreter: its settings while code runs here, and fast objects."""
