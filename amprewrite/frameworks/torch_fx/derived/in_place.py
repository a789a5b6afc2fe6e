"""Convert a model in place, and make it plain again."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.derived.classes import (
    ConvertedModel,
    ConvertedPart,
    adopt,
    programs_of,
)
from amprewrite.frameworks.torch_fx.plain.plain_class import (
    OWN_FORWARD,
    follow_assigned,
)
from amprewrite.frameworks.torch_fx.plain.plain_model import (
    make_plain,
    without_conversion,
)
from amprewrite.frameworks.torch_fx.plain.tree import bound_attribute
from amprewrite.frameworks.torch_fx.programs.program_table import Programs
from amprewrite.frameworks.torch_fx.programs.shared_state import Capture, SharedState


def derive_in_place(model: nn.Module, capture: Capture) -> None:
    """Make ``model`` itself a converted one for training, captured at its calls.

    Its parts, tensors, attributes and hooks stay the same objects.

    Args:
        model: The model, which is changed.
        capture: Captures its programs.
    """
    shared = SharedState(capture, trains=True, refusal=bound_attribute(model))
    adopt(model, Programs(shared, model))
    untyped: Any = model  # its stubs say nothing of the hook's type
    untyped.register_load_state_dict_post_hook(follow_assigned)


def restore_in_place(model: nn.Module) -> None:
    """Make a model that was converted in place a plain one, with all that it holds.

    Raises:
        UnsupportedError: It is no converted model.
    """
    programs = programs_of(model)
    if programs is None:
        msg = f"{type(model).__name__} is not converted; want a model that is"
        raise UnsupportedError(msg)
    for part in list(_parts(model)):
        if OWN_FORWARD in vars(part):
            vars(part)["forward"] = vars(part).pop(OWN_FORWARD)
        make_plain(part)
    without_conversion(model)


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a converted model and its parts, but for those of models inside it."""
    below, seen = [model], set[int]()
    while below:
        part = below.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        below.extend(
            child
            for child in module_parts.children(part).values()
            if isinstance(child, ConvertedPart)
            and not isinstance(child, ConvertedModel)
        )
