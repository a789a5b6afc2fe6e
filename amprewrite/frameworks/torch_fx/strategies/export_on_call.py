"""Capture by ``torch.export`` at the first call, once for each signature."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from amprewrite.errors import CaptureError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.capture.on_call import late_runner
from amprewrite.frameworks.torch_fx.module.distributed import refuse_wrapped
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule, Use, run_later
from amprewrite.frameworks.torch_fx.module.loss_scale_warning import watch_training
from amprewrite.frameworks.torch_fx.strategies.export_now import export_now
from amprewrite.frameworks.torch_fx.subject import Subject
from amprewrite.plan import Plan


def export_on_call(subject: Subject) -> LazyModule:
    """Return a module that is exported when it is called.

    Raises:
        UnsupportedError: The model holds something that cannot be copied.
    """
    model, use = run_later(subject.root, trains=subject.trains)
    return _on_call(model, subject.request, use)


def _on_call(model: nn.Module, request: Request, use: Use) -> LazyModule:
    plans = list[Plan]()
    trains = request.training is not False

    def capture(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> nn.Module:
        wanted = replace(request, args=args, kwargs=kwargs, training=trains)
        refuse_wrapped(model)
        found = export_now(Subject.of(model, wanted))
        if isinstance(found, CaptureError):
            raise found
        return watch_training(found, wanted)

    run = late_runner(model, capture, plans, follows=trains)
    again = partial(_on_call, request=request, use=replace(use))
    return LazyModule(model, run, plans, again, use)
