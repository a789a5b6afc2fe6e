"""Search for the cheapest plan within a tolerance on the error."""
