"""A callback for the Trainer of transformers.

Convert the model for training and give that to the Trainer: a callback gets the model
when the Trainer has it already, and could not put another in its place.
"""

from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.derived.classes import ConvertedModel, programs_of
from amprewrite.plan import Plan


class PlanCallback(TrainerCallback):
    """Callback that checks, logs and saves the precision of a converted model.

    - When training begins, it refuses a model that is not converted, and
      ``TrainingArguments`` that would choose a precision besides the plan.
    - Each log gets ``low_ops``, the share of ops that run in 16 bits, ``programs``, the
      number of programs captured so far (one that grows all the time means that shapes
      differ too much), and ``loss_scale`` where there is one.
    - Beside each checkpoint it saves the plans, as ``plan_0.json`` and on: see
      :meth:`amprewrite.plan.Plan.save`.

    Usage::

        model = amprewrite.convert(model.train())
        trainer = Trainer(model, args, callbacks=[PlanCallback()], ...)
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Check the model and the arguments.

        Raises:
            UnsupportedError: The model is not converted, or it is cast as a whole.
        """
        del state, control
        _converted_in(kwargs["model"])
        for name in ("bf16", "bf16_full_eval", "fp16_full_eval"):
            if getattr(args, name):
                msg = (
                    f"TrainingArguments({name}=True) with a converted model: the plan "
                    f"has the precision of every op already, and this would cast the "
                    f"ops around it; leave {name} out"
                )
                raise UnsupportedError(msg)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Check, after the first step, that float16 has a loss scale.

        Raises:
            UnsupportedError: It has none, or another format has one.
        """
        del state, control
        low = {plan.low for plan in _plans(kwargs["model"])}
        if "float16" in low and not args.fp16:
            msg = (
                "the model was converted to float16, whose small gradients become zero "
                "without a loss scale, and this Trainer has none; want "
                "TrainingArguments(fp16=True), which has one on CUDA, or "
                "amprewrite.convert(model, policy='bf16'), which needs none"
            )
            raise UnsupportedError(msg)
        if "float16" not in low and args.fp16:
            msg = (
                f"TrainingArguments(fp16=True) scales the loss for float16, and the "
                f"model was converted to {', '.join(sorted(low)) or 'no low dtype'}; "
                f"leave fp16 out, or convert with policy='fp16'"
            )
            raise UnsupportedError(msg)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Add the share of low ops and the number of programs to the logs."""
        del args, control
        plans = _plans(kwargs["model"])
        if not plans:
            return
        ops = sum(len(plan.decisions) for plan in plans)
        low = sum(len(plan.lowered) for plan in plans)
        found = {"low_ops": round(low / max(ops, 1), 4), "programs": len(plans)}
        scaler = getattr(kwargs.get("optimizer"), "scaler", None)
        if scaler is not None:
            found["loss_scale"] = scaler.get_scale()
        kwargs["logs"].update(found)
        state.log_history[-1].update(found)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save the plans beside the checkpoint."""
        del control
        if not state.is_world_process_zero:
            return
        folder = Path(str(args.output_dir))
        folder /= f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        for number, plan in enumerate(_plans(kwargs["model"])):
            plan.save(folder / f"plan_{number}.json")


def _converted_in(model: object) -> list[ConvertedModel]:
    """Return the converted models in the model of a Trainer, which may be wrapped.

    Raises:
        UnsupportedError: There is none.
    """
    parts = model.modules() if isinstance(model, nn.Module) else ()
    found = [part for part in parts if isinstance(part, ConvertedModel)]
    if not found:
        msg = (
            f"the model of this Trainer is a plain {type(model).__name__}; want one "
            f"that is converted for training: "
            f"Trainer(model=amprewrite.convert(model.train()), ...)"
        )
        raise UnsupportedError(msg)
    return found


def _plans(model: object) -> list[Plan]:
    """Return the plans of the programs that were captured so far."""
    held = [programs_of(part) for part in _converted_in(model)]
    return [plan for programs in held if programs for plan in programs.plans]
