"""The public names of mpx and jmp, implemented with this package.

``from amprewrite.compat import mpx`` and ``from amprewrite.compat import jmp`` take the
place of ``import mpx`` and ``import jmp``.
"""
