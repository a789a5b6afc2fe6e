"""Programs of JAX as unit scaling reads them: with functions as single ops."""
