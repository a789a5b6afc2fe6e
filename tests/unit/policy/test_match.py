"""Which line of a policy decides the class of an op."""

from dataclasses import replace

import pytest

from amprewrite.errors import PolicyError
from amprewrite.ir import Op
from amprewrite.policy import (
    Matcher,
    OpClass,
    OpEntry,
    Policy,
    Reason,
    Rule,
    load_policy,
)
from amprewrite.policy.match import op_keys


def an_op(canonical="softmax", native="aten.softmax.int", **fields):
    return Op("softmax_1", canonical, native, ("x",), ("y",), **fields)


def a_policy(ops=None, rules=()):
    entries = {name: OpEntry(OpClass(c)) for name, c in (ops or {}).items()}
    return Policy(name="mine", low="bfloat16", ops=entries, rules=tuple(rules))


def test_overrides_then_rules_then_ops():
    policy = a_policy({"softmax": "allow"}, [Rule(op_class=OpClass.DENY, op="softmax")])
    override = {"op": "softmax", "class": "keep"}
    assert Matcher(policy, [override]).match(an_op()).rule == "overrides[0]"
    assert Matcher(policy).match(an_op()).rule == "rules[0]"
    assert Matcher(a_policy({"softmax": "allow"})).match(an_op()).rule == "ops.softmax"


def test_the_first_rule_that_matches_wins():
    rules = [
        Rule(op_class=OpClass.KEEP, path="decoder.*"),
        Rule(op_class=OpClass.DENY, path="encoder.*"),
        Rule(op_class=OpClass.ALLOW, path="encoder.*"),
    ]
    found = Matcher(a_policy(rules=rules)).match(an_op(path="encoder.0"))
    assert (found.op_class, found.rule) == ("deny", "rules[1]")


def test_the_reason_is_the_entry_s_own():
    policy = Policy("mine", ops={"softmax": OpEntry(OpClass.DENY, "range")})
    assert Matcher(policy).match(an_op()).why == "range"
    plain = Matcher(a_policy({"softmax": "deny"})).match(an_op())
    assert plain.why == "softmax is deny in mine"


def test_an_op_that_no_table_knows_is_kept_and_says_so():
    found = Matcher(a_policy({"matmul": "allow"})).match(an_op())
    assert (found.op_class, found.rule) == ("keep", "unclassified")
    assert "no policy names this op" in found.why


@pytest.mark.parametrize("key", ["mylib::scan", "mylib.scan", "mylib.scan.default"])
def test_native_names_of_custom_ops(key):
    op = an_op("mylib.scan", "mylib.scan.default")
    assert Matcher(a_policy({key: "allow"})).match(op).rule == f"ops.{key}"


def test_the_most_exact_name_wins():
    op = an_op()
    keys = op_keys(op)
    assert keys == ("aten.softmax.int", "aten.softmax", "aten::softmax", "softmax")
    classes = ["keep", "deny", "promote", "allow"]
    ops = dict(zip(keys, classes, strict=True))
    for key in keys:
        assert Matcher(a_policy(ops)).match(op).op_class == ops.pop(key)


def test_a_name_without_a_namespace():
    assert op_keys(an_op("add", "add")) == ("add", "add")


def test_unused_rules_are_named():
    rules = [
        Rule(op_class=OpClass.DENY, path="encoder.*"),
        Rule(op_class=OpClass.DENY, path="decoder.*"),
    ]
    matcher = Matcher(a_policy(rules=rules), [{"op": "exp", "class": "deny"}])
    assert len(matcher.unused()) == 3
    matcher.match(an_op(path="encoder.0"))
    assert matcher.unused() == (
        "overrides[0] { op = 'exp', class = 'deny' } matched no op",
        "rules[1] { path = 'decoder.*', class = 'deny' } matched no op",
    )


def test_a_rule_for_what_runs_elsewhere_is_not_unused():
    rules = [
        {"path": "decoder.1", "class": "deny"},
        {"path": "*.norm", "op": "softmax", "class": "deny"},
        {"path": "decodre", "class": "deny"},
        {"op": "softmax", "class": "deny"},
    ]
    unused = Matcher(a_policy(), rules).unused((), ["decoder.1.mlp", "decoder.norm"])
    assert [line[:12] for line in unused] == ["overrides[2]", "overrides[3]"]


def test_a_rule_behind_one_that_took_its_ops_is_unused():
    matcher = Matcher(
        a_policy(), [{"op": "*", "class": "deny"}, {"op": "softmax", "class": "keep"}]
    )
    matcher.match(an_op())
    assert [line[:12] for line in matcher.unused()] == ["overrides[1]"]


def test_unused_rules_name_what_is_nearest():
    matcher = Matcher(a_policy(), [{"path": "encoder.1", "class": "deny"}])
    (line,) = matcher.unused([an_op(path="encoder.0")])
    rule, _, why = line.partition("; ")
    assert rule == "overrides[0] { path = 'encoder.1', class = 'deny' } matched no op"
    assert why == "no module path is 'encoder.1', nearest 'encoder.0', 'encoder'"


@pytest.mark.parametrize("rule", ["op=exp", 3, None])
def test_an_override_of_another_kind(rule):
    with pytest.raises(PolicyError, match=r"overrides\[0\] is a \w+; want a table"):
        Matcher(a_policy(), [rule])


@pytest.mark.parametrize(
    "rule",
    [
        {"op": "layernorm", "class": "deny"},
        Rule(op_class=OpClass.DENY, op="layernorm"),
    ],
)
def test_an_op_of_an_override_that_is_misspelt_is_told_the_nearest(rule):
    message = r"op: unknown op 'layernorm' \(did you mean 'layer_norm'"
    with pytest.raises(PolicyError, match=message):
        Matcher(load_policy("bf16"), [rule])


@pytest.mark.parametrize(
    "op",
    [
        *("layer_norm", "mylib::layernorm", "aten.layernorm", "mylib.layernorm"),
        *("layer*", "dot_general", "my_own_primitive", "mine"),
    ],
)
def test_ops_that_a_rule_may_name(op):
    policy = a_policy({"mine": "allow"})
    Matcher(policy, [{"op": op, "class": "deny"}])


def test_what_nothing_names_is_told_the_line_to_write():
    policy = a_policy({"softmax": "deny"})
    why = Matcher(policy).match(an_op("mylib.cube", "mylib.cube.default")).why
    assert 'under [ops] of a policy, such as "mylib::cube" = "promote"' in why
    assert '"mylib::cube" = { group = "pointwise" }' in why
    why = Matcher(policy).match(an_op("exp", "aten.exp.default")).why
    assert why.endswith('under [groups], such as exponential = "promote"')


def test_a_group_says_what_its_ops_are():
    entry = OpEntry(OpClass.DENY, "range", "softmax")
    policy = Policy("mine", ops={"softmax": entry, "softmin": OpEntry(OpClass.ALLOW)})
    found = Matcher(policy).match(an_op())
    assert (found.reason, found.rule) == (Reason.GROUP, "groups.softmax")
    assert found.why == "range"
    found = Matcher(policy).match(an_op("softmin", "aten.softmin.int"))
    assert (found.reason, found.rule) == (Reason.OPS, "ops.softmin")


def test_a_rule_matches_by_group():
    matcher = Matcher(a_policy(), [{"group": "softmax", "class": "allow"}])
    assert matcher.match(an_op()).rule == "overrides[0]"
    assert matcher.match(an_op("exp", "aten.exp.default")).rule == "unclassified"
    (unused,) = Matcher(a_policy(), [{"group": "loss", "class": "deny"}]).unused(
        [an_op()]
    )
    assert "no group is 'loss', there are 'softmax'" in unused


def test_a_rule_for_a_group_that_is_none():
    with pytest.raises(PolicyError, match=r"group: unknown group 'losss'; want one of"):
        Matcher(a_policy(), [{"group": "losss", "class": "deny"}])


def test_no_primitive_of_jax_is_taken_for_a_spelling_mistake():
    pytest.importorskip("jax")
    from jax.extend.core import primitives

    found = [value for name, value in vars(primitives).items() if name.endswith("_p")]
    names = [primitive.name for primitive in found]
    assert "dot_general" in names
    Matcher(a_policy(), [{"op": name, "class": "deny"} for name in names])


def test_an_override_that_is_no_rule():
    with pytest.raises(PolicyError, match=r"overrides\[1\]: 1 mistake"):
        Matcher(a_policy(), [{"op": "exp", "class": "deny"}, {"op": "exp"}])


def test_what_another_plan_runs_in_full_comes_before_every_rule():
    policy = a_policy({"softmax": "allow"}, [Rule(op_class=OpClass.ALLOW, op="*")])
    matcher = Matcher(policy, [{"op": "softmax", "class": "keep"}], frozenset(["a"]))
    held = replace(an_op(), name="a")
    assert (matcher.match(held).op_class, matcher.match(held).rule) == (
        "deny",
        "override",
    )
    assert matcher.match(an_op()).op_class == "keep"
