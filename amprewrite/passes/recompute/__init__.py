"""Choose the values that a training step keeps, and the ops that it runs twice.

The result is plain data, a :class:`amprewrite.plan.memory.recompute.Recompute`: an
integer program weighs the bytes that derivatives keep against the bytes moved twice.
"""
