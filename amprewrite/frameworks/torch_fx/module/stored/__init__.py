"""Programs as plain data, for a pickle: their graphs, and the metadata of nodes."""
