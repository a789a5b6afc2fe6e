"""An op is added by one line of the table: all policies and both frameworks know it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import amprewrite
from amprewrite.ops import op_table, table, traits_of
from amprewrite.plan import Decision
from amprewrite.policy import Policy, load, load_policy, shipped_policies

Add = Callable[[str], None]

CLASSES = {
    "pointwise": dict.fromkeys(shipped_policies(), "promote"),
    "contraction": dict.fromkeys(shipped_policies(), "allow")
    | {"autocast-cpu": "promote", "autocast-cuda": "promote"},
    "loss": dict.fromkeys(shipped_policies(), "deny")
    | {"autocast-cpu": "promote", "autocast-cuda": "promote"},
    "movement": dict.fromkeys(shipped_policies(), "follow"),
}
"""By group, the class of a new op under each policy; autocast has it on no list."""


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Add]:
    """Return a function that adds a line to a copy of the table of ops."""

    def forget() -> None:
        for cached in (op_table, traits_of, load.shipped_policy, load.known_ops):
            cached.cache_clear()

    def added(line: str) -> None:
        copy = tmp_path / "ops.toml"
        copy.write_text(table.FILE.read_text("utf-8") + line + "\n", "utf-8")
        monkeypatch.setattr(table, "FILE", copy)
        forget()

    yield added
    monkeypatch.undo()
    forget()


def torch_decision(policy: str | Policy) -> Decision:
    """Return what is decided about a custom operator of torch after a product."""
    torch = pytest.importorskip("torch")
    with torch.library._scoped_library("mylib", "FRAGMENT") as library:
        library.define("cube(Tensor x) -> Tensor")
        library.impl("cube", lambda x: x * x * x, "CompositeExplicitAutograd")
        torch.library.register_fake("mylib::cube", torch.empty_like, lib=library)

        class Cubed(torch.nn.Linear):
            def forward(self, x: Any) -> Any:
                return torch.ops.mylib.cube(super().forward(x))

        plan = amprewrite.inspect(Cubed(8, 8).eval(), policy, args=(torch.ones(4, 8),))
        assert "mylib.cube.default" in {d.native for d in plan.decisions}
        return plan.by_op["cube"]


def jax_decision(policy: str | Policy) -> Decision:
    """Return what is decided about a primitive of JAX after a product."""
    jax = pytest.importorskip("jax")
    from jax.extend.core import Primitive

    cube = Primitive("mylib::cube")
    cube.def_abstract_eval(lambda x: x)

    def program(x: Any, w: Any) -> Any:
        return cube.bind(x @ w)

    args = jax.numpy.ones((4, 8)), jax.numpy.ones((8, 8))
    plan = amprewrite.inspect(program, policy, args=args)
    (decision,) = (d for d in plan.decisions if d.native == "mylib::cube")
    return decision


DECISIONS = pytest.mark.parametrize("decision_of", [torch_decision, jax_decision])


@DECISIONS
@pytest.mark.parametrize("group", CLASSES)
def test_one_line_classifies_an_op_under_every_policy(
    decision_of: Callable[[str], Any], group: str, add: Add
) -> None:
    add(f'"mylib::cube" = {{ group = "{group}" }}')
    for name in shipped_policies():
        found = decision_of(name)
        if load_policy(name).low:
            assert (found.op_class, found.rule) == (
                *(CLASSES[group][name], f"groups.{group}"),
            )
        else:
            assert (found.op_class, found.rule) == ("keep", "policy")


@DECISIONS
def test_an_op_without_a_line_is_told_which_to_write(
    decision_of: Callable[[str | Policy], Any], add: Add, tmp_path: Path
) -> None:
    found = decision_of("bf16")
    assert (found.op_class, found.rule) == ("keep", "unclassified")
    for_a_policy, for_all = re.findall(r'such as ("mylib::cube" = [^,]+)', found.why)
    mine = tmp_path / "mine.toml"
    mine.write_text(f'extends = "bf16"\n[ops]\n{for_a_policy}\n')
    assert decision_of(load_policy(mine)).op_class == "promote"
    add(for_all)
    assert decision_of("bf16").op_class == "promote"


def test_a_primitive_that_is_spelled_in_another_way_is_the_same_op(add: Add) -> None:
    pytest.importorskip("jax")
    from amprewrite.frameworks.jaxpr.program.program import canonical_name

    add('"mylib::cube" = { group = "loss", jax = ["cubed"] }')
    assert canonical_name("cubed") == "mylib::cube"
    assert traits_of("mylib::cube").group == "loss"
