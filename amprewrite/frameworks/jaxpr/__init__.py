"""JAX: trace, inline, read, plan, and emit by a rebinding interpreter."""

from amprewrite.frameworks.least import require

require("jax")
