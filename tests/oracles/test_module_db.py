"""Every module that torch has samples of: forward and backward, in every form.

Policy off gives the bits of the module itself. By bf16 outputs and gradients are within
four times the error of torch.autocast, against float64. `poe oracles` runs all modules,
other runs a slice.
"""

import os

import pytest

torch = pytest.importorskip("torch")

from tests.oracles.module_db import (
    FLOOR,
    equal,
    module_db,
    name_of,
    samples,
    too_far,
)

pytestmark = pytest.mark.filterwarnings("ignore")

INFOS = module_db()

FULL = os.environ.get("AMPREWRITE_ORACLES") == "1"
"""Whether all modules are tested, each with :data:`COUNT` samples, else a slice."""

SLICE = (
    *("BatchNorm2d", "Conv2d", "CrossEntropyLoss", "Embedding", "GELU", "LayerNorm"),
    *("Linear", "LSTM", "MaxPool2d", "MultiheadAttention"),
)
"""Classes of the slice, each with one sample."""

COUNT = 2
"""Samples of each module: the second one varies an option."""

KNOWN: dict[str, str] = {}
"""Modules that fail, and why."""


def forms(training):
    """Each form of a call: whether it is captured at the call, and has gradients."""
    yield "args", {"lazy": False, "gradients": True}
    yield "lazy", {"lazy": True, "gradients": True}
    if not training:
        yield "inference", {"lazy": False, "gradients": False}


def checks_of(info, count):
    """Yield each check of a module, and its mistake; the text is empty if it is right.

    A module that trains as it evaluates is tested in one mode with gradients, and
    without.
    """
    modes = [True, False] if info.train_and_eval_differ else [False]
    for training in modes:
        for index, sample in enumerate(samples(info, training=training, count=count)):
            for form, how in forms(training):
                where = f"sample {index}, {'train' if training else 'eval'}, {form}"
                for policy, mistake in compared(sample, how):
                    yield f"{policy}, {where}", mistake
    torch._dynamo.reset()  # it keeps what was captured lazily


def compared(sample, how):
    gradients = how["gradients"]
    plain = sample.plain(gradients=gradients)
    same = equal(plain, sample.converted("off", **how))
    yield "off", "" if same else "other bits than those of the module"
    autocast = exact = plain
    if not sample.random:  # float64 draws others
        exact = sample.plain(torch.float64, gradients=gradients)
    try:
        autocast = sample.by_autocast(gradients=gradients)
    except RuntimeError:  # it has no kernel, and the bound is that of rounding
        autocast = exact
    yield "bf16", "; ".join(too_far(exact, autocast, sample.converted("bf16", **how)))


def cases():
    for info in INFOS:
        name = info.module_cls.__name__
        marks = [pytest.mark.slow] * (name in ("LSTM", "MultiheadAttention"))
        if FULL or name in SLICE:
            yield pytest.param(info, marks=marks, id=name_of(info))


@pytest.mark.oracle
@pytest.mark.parametrize("info", list(cases()))
def test_a_module(info):
    checks = dict(checks_of(info, COUNT if FULL else 1))
    wrong = [f"{check}: {mistake}" for check, mistake in checks.items() if mistake]
    reason = KNOWN.get(name_of(info), "")
    assert checks
    assert bool(wrong) == bool(reason), "\n".join([reason, *wrong])


def test_names_are_those_of_modules():
    assert set(KNOWN) <= set(map(name_of, INFOS))
    assert set(SLICE) <= {info.module_cls.__name__ for info in INFOS}


def test_the_checks_can_fail():
    exact = {"output 0": torch.ones(4), "gradient of w": torch.ones(4)}
    assert not list(too_far(exact, exact, exact))
    off = {name: value * (1 + 2 * FLOOR) for name, value in exact.items()}
    assert not equal(exact, off)
    assert len(list(too_far(exact, exact, off))) == 2
    assert not list(too_far(exact, off, off))
    nan = {**exact, "output 0": torch.full((4,), float("nan"))}
    assert list(too_far(exact, exact, nan))
    lost = {"output 0": exact["output 0"]}
    assert list(too_far(exact, exact, lost)) == [
        "found ['output 0'], want ['gradient of w', 'output 0']"
    ]
    assert not equal(exact, lost)
