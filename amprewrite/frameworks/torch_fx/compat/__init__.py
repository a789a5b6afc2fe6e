"""Private and moving names of torch; only these modules touch them."""
