"""Give the keywords that reach ``**kwargs`` a place in the signature of a model.

torch.export lists such a keyword twice, in the dict of ``**kwargs`` and beside it, and
refuses any ``dynamic_shapes`` for it (torch 2.13). A parameter with its name is listed
once. It has one without ``dynamic_shapes`` too, because inputs are named by parameters.
"""

import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from inspect import Parameter
from typing import Any, cast

from torch import nn

from amprewrite.frameworks.torch_fx.compat import pytrees


@contextmanager
def keywords_named(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any
) -> Generator[Any]:
    """Give ``model.forward`` a parameter for each keyword of a call, in the context.

    Args:
        model: The model.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        shapes: ``dynamic_shapes`` for the model's own signature.

    Yields:
        ``dynamic_shapes`` for the signature in the context.
    """
    forward = model.forward
    signature = inspect.signature(forward)
    try:
        bound = signature.bind(*args, **kwargs).arguments
        extended = _extended(signature, bound)
    except (TypeError, ValueError):  # a call that fails, or a keyword such as "a b"
        yield shapes
        return
    if extended is signature:
        yield shapes
        return

    def called(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    untyped: Any = called
    untyped.__signature__ = extended
    own = vars(model)  # other threads call the same forward by it
    before = {"forward": own["forward"]} if "forward" in own else {}
    own["forward"] = called
    try:
        yield _spread(shapes, [*bound])
    finally:
        own.pop("forward", None)
        own.update(before)


def _extended(
    signature: inspect.Signature, bound: Mapping[str, Any]
) -> inspect.Signature:
    """Return a signature with a parameter for each keyword that reaches ``**kwargs``.

    Raises:
        ValueError: A keyword is not a name, or another parameter has that name.
    """
    formals = [*signature.parameters.values()]
    rest = formals[-1] if formals else None
    if rest is None or rest.kind is not Parameter.VAR_KEYWORD or rest.name not in bound:
        return signature
    formals[-1:-1] = [Parameter(n, Parameter.KEYWORD_ONLY) for n in bound[rest.name]]
    return signature.replace(parameters=formals)


def _spread(shapes: Any, names: list[str]) -> Any:
    """Return ``dynamic_shapes`` with those in ``**kwargs`` beside the others.

    Args:
        shapes: As torch.export takes it: by the names of parameters, or in their order.
        names: The parameters that have arguments; the last one is ``**kwargs``.
    """
    wish = _as_dict(shapes)
    if pytrees.is_sequence(shapes) and len(shapes) == len(names):
        wish = dict(zip(names, shapes, strict=True))
    inside = _as_dict(wish.pop(names[-1], None))
    return wish | inside if inside else shapes


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a copy of a mapping; an empty dict for anything else."""
    if not isinstance(value, Mapping):
        return {}
    return dict(cast("Mapping[str, Any]", value))
