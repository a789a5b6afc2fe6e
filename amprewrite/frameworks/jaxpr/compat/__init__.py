"""Private and moving names of JAX; only these modules touch them."""
