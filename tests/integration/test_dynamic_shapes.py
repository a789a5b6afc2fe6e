"""A wish for extents that vary is granted, refused with its mistake, or noted."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.export import Dim

import amprewrite
from amprewrite.errors import CaptureError, UnsupportedError
from tests.torch_programs import in_full, relative_error

ROUNDING = 2.0**-8
B = Dim("b")


def added(m: Any, x: Any, y: Any) -> Any:
    return m.a(x) + y


def specialised(m: Any, x: Any, y: Any) -> Any:
    return m.a(x).view(4, 2, 8) + y.view(4, 2, 8)


def branching(m: Any, x: Any, y: Any) -> Any:
    return m.a(x) + y if float(x.sum()) > 0 else m.a(x) - y


class Pair(nn.Module):
    """A function of a layer and two named arguments."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.a, self.function = nn.Linear(16, 16), function

    def forward(self, x: Any, y: Any) -> Any:
        return self.function(self, x, y)


def program(forward: Any) -> nn.Module:
    return Pair(forward).eval()


def inputs(rows: int = 4) -> tuple[Any, Any]:
    return torch.randn(rows, 16), torch.randn(rows, 16)


@pytest.mark.parametrize(
    "shapes", [({0: B}, {0: B}), {"x": {0: B}, "y": {0: B}}, ((Dim.AUTO, None),) * 2]
)
def test_extents_that_vary(shapes: Any) -> None:
    model = program(added)
    converted = amprewrite.convert(model, args=inputs(), dynamic_shapes=shapes)
    args = inputs(7)
    assert relative_error(converted(*args), in_full(model, *args)) < 2 * ROUNDING


@pytest.mark.parametrize("rows", [3, 20])
def test_the_batch_of_convolutions_may_be_of_any_size(rows: int) -> None:
    """The kernel that torch chooses for a convolution depends on the batch."""
    convolutions = nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3, groups=2)
    model = nn.Sequential(*convolutions, nn.Flatten(2), nn.Conv1d(4, 2, 1)).eval()
    x = torch.randn(rows, 4, 6, 6)
    for batch in (B, Dim.AUTO):
        converted = amprewrite.convert(
            model, "off", args=(x,), dynamic_shapes=({0: batch},)
        )
        for other in (x, x.repeat(8, 1, 1, 1), x[:2]):
            assert relative_error(converted(other), in_full(model, other)) < 1e-5
        assert len(converted.plans) == 1


@pytest.mark.parametrize(
    ("forward", "shapes", "found"),
    [
        (added, ({0: B},), "`inputs` has 2 elements, but `dynamic_shapes` has 1"),
        (added, {"x": {0: B}, "z": {}}, r"arg names \['x', 'y'\]"),
        (added, ({0: B}, {5: B}), r"args\[1\] has 2 dimensions, none of them 5"),
        (added, {"x": {0: B}, "y": {2: B}}, r"args\[1\] has 2 dim"),
        (added, ({0: B}, {}), r"specialized it to be a constant \(4\)"),
        (added, ({0: Dim("b", min=9)},) * 2, r"4 not in range \[9"),
        (added, ({0: 0.5}, {}), r"at `dynamic_shapes\[0\]`"),
        (specialised, ({0: B}, {0: B}), r"specialized it to be a constant \(4\)"),
        (specialised, ({0: Dim.DYNAMIC}, {}), r"specialized it to be a constant"),
        (branching, ({0: B},), "`inputs` has 2 elements, but `dynamic_shapes` has 1"),
    ],
)
def test_a_mistake_is_not_lost(forward: Any, shapes: Any, found: str) -> None:
    model, args = program(forward), inputs()
    for entry in (amprewrite.convert, amprewrite.inspect):
        with pytest.raises(
            CaptureError, match=f"^dynamic_shapes= does not fit Pair .*: .*{found}"
        ):
            entry(model, args=args, dynamic_shapes=shapes)
    if forward is not branching:  # the arguments are as good as before
        amprewrite.inspect(model, args=args)


def test_a_model_that_export_cannot_capture_is_captured_per_signature() -> None:
    model, args = program(branching), inputs()
    converted = amprewrite.convert(model, args=args, dynamic_shapes=({0: B}, {0: B}))
    assert "dynamic_shapes= is not used" in converted.plan.captured
    args = inputs(7)
    assert relative_error(converted(*args), in_full(model, *args)) < 2 * ROUNDING


def test_without_an_export_the_wish_is_refused() -> None:
    model, args = program(added), inputs()
    with pytest.raises(UnsupportedError, match="dynamic_shapes= needs args="):
        amprewrite.convert(model, dynamic_shapes=({0: B}, {0: B}))
    exported = torch.export.export(model, args)
    with pytest.raises(UnsupportedError, match=r"give it to torch\.export\.export"):
        amprewrite.convert(exported, dynamic_shapes=({0: B}, {0: B}))


class Options(nn.Module):
    """Takes options as keywords that reach ``**kwargs``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Any, **options: Any) -> Any:
        y = self.layer(x)
        if options.get("twice"):
            y = 2 * y
        if (added := options.get("added")) is not None:
            y = y + added
        return {"y": y, "x": x} if options.get("all") else y


def options(names: str, rows: int) -> dict[str, Any]:
    values = {"twice": True, "all": True, "added": torch.randn(rows, 16), "none": None}
    return {name: values[name] for name in names.split()}


@pytest.mark.parametrize("names", ["twice", "none", "added", "all added twice"])
def test_keywords_of_any_kind_leave_one_program_for_all_shapes(names: str) -> None:
    model = Options().eval()
    x, _ = inputs()
    converted = amprewrite.convert(model, args=(x,), kwargs=options(names, 4))
    for rows in (4, 5, 6, 9, 2, 4):
        x, _ = inputs(rows)
        kwargs = options(names, rows)
        found, wanted = converted(x, **kwargs), in_full(model, x, **kwargs)
        if "all" in kwargs:
            assert torch.equal(found["x"], x)
            found, wanted = found["y"], wanted["y"]
        assert relative_error(found, wanted) < 2 * ROUNDING
    assert len(converted.plans) == 2, "one is for fixed extents, one for all others"


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": {0: B}, "options": {"added": {0: B}, "twice": None}},
        ({0: B}, {"added": {0: B}, "twice": None}),
        {"x": {0: B}, "added": {0: B}, "twice": None},
    ],
)
def test_a_wish_for_extents_of_keywords(shapes: Any) -> None:
    model = Options().eval()
    x, _ = inputs()
    converted = amprewrite.convert(
        model, args=(x,), kwargs=options("added twice", 4), dynamic_shapes=shapes
    )
    for rows in (7, 3):
        x, _ = inputs(rows)
        kwargs = options("added twice", rows)
        wanted = in_full(model, x, **kwargs)
        assert relative_error(converted(x, **kwargs), wanted) < 2 * ROUNDING
    assert len(converted.plans) == 1
