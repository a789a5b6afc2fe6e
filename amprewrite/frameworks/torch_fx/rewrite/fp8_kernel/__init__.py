"""Matrix products by the kernel of torch for 8 bits: its contract, an operator."""
