"""Memory of a training step, as a plan holds it."""
