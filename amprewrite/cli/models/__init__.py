"""The commands for one model: its plan, its conversion, the error of that."""
