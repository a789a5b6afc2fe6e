"""Forward hooks on the parts of a converted model."""

from typing import Any, cast

from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import module_state, private
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE

_OF_TORCH = "torch.nn.utils."
"""Module of the hooks that compute weights (pruning, weight norm): ops of a program."""


def refuse_new_hooks(model: nn.Module) -> None:
    """Refuse hooks that were registered on parts after the conversion.

    A program runs as one graph: what a hook does besides computing would happen once,
    while it is captured. Hooks of torch that compute a weight are captured.

    Raises:
        UnsupportedError: Names the part and the hook.
    """
    for path, part in private.modules_by_path(model):
        state: Any = vars(part).get(STATE)
        if part is model or state is None:
            continue
        for key, hook in module_state.named_call_hooks(part):
            kind = cast("type[Any]", type(hook))
            homes = f"{kind.__module__}. {getattr(hook, '__module__', '')}."
            if key in state.hooks or _OF_TORCH in homes:
                continue
            name = getattr(hook, "__qualname__", kind.__qualname__)
            msg = (
                f"part {path} of a converted model has a hook, {name}, which "
                f"was registered after the conversion: the converted program runs as "
                f"one graph and does not call it; remove it, register it on the "
                f"converted model itself, or on the part before amprewrite.convert, "
                f"which captures its ops"
            )
            raise UnsupportedError(msg)
