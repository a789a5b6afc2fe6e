"""A plan told to people: its layers, compounds, heaviest casts and reasons."""
