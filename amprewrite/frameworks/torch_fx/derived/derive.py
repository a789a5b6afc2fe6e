"""Make a converted model: an instance of a class derived from the model's own."""

from typing import Any

from torch import nn

from amprewrite.frameworks.torch_fx.compat import module_hooks, module_parts
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.derived.classes import adopt
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.module.snapshot import snapshot
from amprewrite.frameworks.torch_fx.plain.hidden import hidden_modules
from amprewrite.frameworks.torch_fx.plain.plain_class import follow_assigned
from amprewrite.frameworks.torch_fx.plain.tree import (
    bound_attribute,
    copy_tree,
    scripted,
    scripts_of,
)
from amprewrite.frameworks.torch_fx.plain.written import share_attributes
from amprewrite.frameworks.torch_fx.programs.linking import link, tensors_of
from amprewrite.frameworks.torch_fx.programs.program_table import Programs
from amprewrite.frameworks.torch_fx.programs.shared_state import Capture, SharedState
from amprewrite.runtime.collector import collector_paused

_SCRIPTED = (
    "a part of the model is TorchScript, which cannot be copied with other weights, so "
    "that there is no plain model to give back or to capture again; convert the model "
    "with a part in Python, or with training=True, which shares the part"
)


@collector_paused()
def derive(
    conversion: Conversion, program: ConvertedModule | None, capture: Capture
) -> nn.Module:
    """Return ``model`` converted: a copy of a derived class that runs programs.

    Args:
        conversion: The model and the request. Tensors of the model are shared, but for
            those that the program has copies of.
        program: The first program; None if it is captured at the first call.
        capture: Captures further programs.

    Raises:
        UnsupportedError: The model cannot be copied.
    """
    model, trains, mode = conversion.root, conversion.trains, None
    refusal = ""
    if isinstance(program, LazyModule):
        source = program.model
        kept = {**scripted(source), **hidden_modules(source)}
        made = copy_tree(source, {**_shared(source), **kept})
        share_attributes(made, source)
    elif program is None:
        source = model if trains else snapshot(model)
        kept = {**scripted(source), **hidden_modules(source)}
        made = copy_tree(source, {**_tensors(source), **kept})
    else:
        source = model
        scripts = scripted(model)
        if scripts and not trains:
            refusal = _SCRIPTED
            scripts = {id(p): program.get_submodule(n) for n, p in scripts_of(model)}
        kept = hidden_modules(model) if trains else {}
        made = copy_tree(model, {**tensors_of(program, model), **scripts, **kept})
        mode = None if trains else model.training
    shared = SharedState(capture, trains, mode, source if trains else None)
    shared.with_args = conversion.request.has_arguments
    shared.refusal = refusal or bound_attribute(source)
    shared.hooks = module_hooks.take_forward_hooks(made)
    programs = Programs(shared, made)
    # A model in training that dynamo runs keeps its own dicts, which are shared: dynamo
    # itself sees where None is replaced.
    by_dynamo = program is None or isinstance(program, LazyModule)
    adopt(made, programs, linked=trains and by_dynamo)
    untyped: Any = made  # its stubs say nothing of the hook's type
    untyped.register_load_state_dict_post_hook(follow_assigned)
    if program is not None:
        link(program, made, (), made)
        programs.install(made, program)
        if conversion.request.has_arguments:
            programs.note_extents(made, conversion.args, conversion.kwargs)
    return made


def _tensors(model: nn.Module) -> dict[int, Any]:
    return {id(t): t for t in (*model.parameters(), *model.buffers())}


def _shared(model: nn.Module) -> dict[int, Any]:
    """Return the tensors of a model, and the dicts that hold them, to be shared."""
    found = _tensors(model)
    for part in model.modules():
        for kept in (
            module_parts.parameters(part),
            module_parts.buffers(part),
            module_parts.hidden_buffers(part),
        ):
            found[id(kept)] = kept
    return found
