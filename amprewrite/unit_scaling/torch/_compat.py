"""Private or untyped names of torch; each has a test."""

from typing import Any

import torch

_torch: Any = torch
_functorch: Any = _torch._C._functorch

Library: Any = _torch.library.Library
broadcast_shapes: Any = _torch.broadcast_shapes
register_vmap: Any = _torch.library.register_vmap


def in_transform() -> bool:
    """Return whether a transform of ``torch.func`` is being computed."""
    return (
        _functorch.maybe_current_level() is not None
        or _functorch.peek_interpreter_stack() is not None
    )
