"""Build the module that runs a program by a plan."""

from torch import nn

from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.signature import signature_of
from amprewrite.frameworks.torch_fx.module.snapshot import own_tensors
from amprewrite.frameworks.torch_fx.module.state import (
    fold_copies,
    mirror_extras,
    mirror_state,
    stored_weights,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.frameworks.torch_fx.rewrite.write import rewrite
from amprewrite.plan import Plan
from amprewrite.runtime.collector import collector_paused


@collector_paused()
def build(
    root: nn.Module, reading: Reading, plan: Plan, *, shared: bool
) -> ConvertedModule:
    """Rewrite a program by ``plan`` and return the module that runs it.

    Args:
        root: The model.
        reading: The program with its graph; it is rewritten in place.
        plan: The plan.
        shared: Whether tensors that keep their dtype are the model's own, not copies.

    Raises:
        PlanMismatchError: The plan was made for another program.
    """
    module = reading.module
    low = stored_weights(reading, plan)
    kept = low if shared else own_tensors(root, module, low)
    signature = signature_of(root, module)
    plan = rewrite(reading, plan)
    recipe = fold_copies(module)
    converted = ConvertedModule()
    mirror_state(converted, root, kept)
    mirror_extras(converted, module, kept)
    converted.install(module, plan, signature, training=root.training)
    converted.keep_copies(recipe)
    return converted
