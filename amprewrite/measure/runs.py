"""Results of runs of a model and of its converted form, as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.ir import ProgramGraph
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Sensitivity

Array = NDArray[np.float64]
"""Values of one tensor; complex ones have a last dimension of two."""


@dataclass(frozen=True)
class Call:
    """Arguments of a call, the reference dtype, and whether gradients are compared.

    Attributes:
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        reference: Name of the dtype in which the original is run as the reference.
        gradients: Whether the gradients of parameters and inputs are compared too.
    """

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    reference: str = "float64"
    gradients: bool = False


@dataclass(frozen=True)
class Run:
    """Results of one run of a model.

    Attributes:
        outputs: The float outputs, by their path in the output's structure.
        dtypes: Dtype of every output.
        others: The outputs that are no floats.
        gradients: Gradient of a loss over the float outputs, by parameter or input.
        inputs: Names of those gradients that are an input's.
    """

    outputs: Mapping[str, Array]
    dtypes: Mapping[str, str] = field(default_factory=dict[str, str])
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    gradients: Mapping[str, Array] = field(default_factory=dict[str, Array])
    inputs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Stepped:
    """Result of one run of both forms, op by op.

    Attributes:
        notes: Comparisons that failed, with the reasons.
        run: Outputs of the original's program; None if they were not kept.
        noted: Notes on these, where they are the reference.
    """

    notes: Sequence[str] = ()
    run: Run | None = None
    noted: Sequence[str] = ()


@dataclass(frozen=True)
class Walked:
    """Result of a walk over the ops.

    Attributes:
        reference: Dtype of the reference; empty if no walk was possible.
        graph: The program; None if no walk was possible.
        notes: Comparisons that failed, with the reasons.
        sensitivity: Sensitivity of the outputs to the roundings of the plan, the error
            of each output relative to its own norm; None if it could not be measured.
        run: Outputs of the original's program in the reference's dtype; None if they
            are not known.
        noted: Notes on these, where they are the reference.
    """

    reference: str = ""
    graph: ProgramGraph | None = None
    notes: tuple[str, ...] = ()
    sensitivity: Sensitivity | None = None
    run: Run | None = None
    noted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """Results of all runs: the reference, the converted model and the baselines.

    Attributes:
        reference: Dtype in which the reference was run, possibly another one than
            requested.
        runs: By name, see :mod:`amprewrite.measure.run_names`: the reference, the
            converted model, that model compiled as a whole if the framework does so,
            and the baselines.
        failures: Baselines that could not be run, with the message.
        plan: The plan of the converted model; None if it has none.
        low: Dtype of the low baselines; empty if there are none.
        notes: Notes for the user.
        walked: Result of the walk over the ops; None if there was none.
    """

    reference: str
    runs: Mapping[str, Run]
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    plan: Plan | None = None
    low: str = ""
    notes: tuple[str, ...] = ()
    walked: Walked | None = None
