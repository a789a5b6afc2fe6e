"""JAX: trace, inline, read, plan, and emit by a rebinding interpreter."""
