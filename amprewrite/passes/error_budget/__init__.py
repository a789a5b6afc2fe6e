"""The cheapest plan within an error that the user accepts."""
