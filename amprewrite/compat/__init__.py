"""The names of other libraries for mixed precision, on what this package does.

``from amprewrite.compat import mpx`` and ``from amprewrite.compat import jmp`` take the
place of ``import mpx`` and ``import jmp``.
"""
