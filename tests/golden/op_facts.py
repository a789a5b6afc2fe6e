"""What the package knows about ops, as the texts of golden files."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from textwrap import wrap

from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.ir import REGION_BOUNDARIES, Op
from amprewrite.ops import op_table
from amprewrite.policy import Matcher, load_policy, shipped_policies
from amprewrite.policy.load import PRIMITIVES

POLICIES = tuple(name for name in shipped_policies() if load_policy(name).low)
"""The policies that lower something, in the order of the columns."""


@cache
def op_names() -> tuple[str, ...]:
    """Return every op that a shipped policy, a rule or a reader names."""
    named = set[str]().union(*(load_policy(name).ops for name in POLICIES))
    return tuple(sorted(named.union(OP_RULES, REGION_BOUNDARIES, PRIMITIVES, {"cast"})))


def an_op(canonical: str, native: str = "") -> Op:
    return Op("op", canonical, native, ("x",), ("y",))


@cache
def matchers() -> tuple[Matcher, ...]:
    return tuple(Matcher(load_policy(name)) for name in POLICIES)


def classes_of(op: Op) -> tuple[str, ...]:
    """Return the class under each policy; a dash where it is not classified."""
    found = (matcher.listed(op) for matcher in matchers())
    return tuple("-" if m.rule == "unclassified" else str(m.op_class) for m in found)


def classes_text() -> str:
    """Return a line for each op: its class under each policy."""
    rows = [("op", *POLICIES), *((n, *classes_of(an_op(n))) for n in op_names())]
    return "".join(f"{_columns(row)}\n" for row in rows)


def _columns(row: Iterable[str]) -> str:
    name, *classes = row
    return f"{name:<40}{''.join(f'{c:<17}' for c in classes)}".rstrip()


def reasons_text() -> str:
    """Return the reasons that policies give, each with its ops.

    Of a policy that extends another one only what it says anew.
    """
    return "\n".join(
        f"{name}\n{''.join(_reasons(name, base))}"
        for name, base in (
            *(("bf16", "off"), ("bf16-accumulate", "bf16")),
            *(("fp16", "bf16"), ("fp16-accumulate", "fp16")),
        )
    )


def _reasons(name: str, base: str) -> Iterator[str]:
    known, found = load_policy(base).ops, defaultdict[str, list[str]](list)
    for op, entry in load_policy(name).ops.items():
        if entry.why and entry != known.get(op):
            found[entry.why].append(op)
    for why, ops in sorted(found.items()):
        yield f"  {why}\n{_listed(ops)}\n"


def _listed(names: Iterable[str]) -> str:
    indent = " " * 4
    return "\n".join(
        wrap(
            " ".join(sorted(names)),
            88,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
    )


def ops_with(trait: str) -> frozenset[str]:
    """Return the ops of whose line a field is true, or has a text."""
    lines = op_table().ops.items()
    return frozenset(name for name, traits in lines if getattr(traits, trait))


def traits() -> Mapping[str, Iterable[str]]:
    """Return the ops that have each trait of which passes make use."""
    return {
        "adds first": ops_with("addend_first"),
        "attention": op_table().members("attention"),
        "bends": ops_with("bends"),
        "chooses": ops_with("chooses"),
        "convolution": op_table().members("convolution"),
        "curves": ops_with("curves"),
        "exact argument": ops_with("exact_argument"),
        "filler": ops_with("filler"),
        "looks up": op_table().members("lookup"),
        "mean or sum": ops_with("first_moment"),
        "orders": ops_with("orders"),
        "scales": ops_with("scales"),
        "square": op_table().members("square"),
        "statistic": ops_with("statistic"),
    }


def torch_traits() -> Mapping[str, Iterable[str]]:
    """Return the ops that have each trait of which the torch side makes use."""
    found = {"has a dtype argument": ops_with("has_dtype_argument")}
    for op, its in op_table().ops.items():
        if its.operand_rule != "equal":
            key = f"operand rule {its.operand_rule}"
            found[key] = found.get(key, frozenset()) | {op}
        if its.rounds_inside:
            least = f", of {its.rounds_inside_from} operands"
            key = f"rounds inside {its.rounds_inside}"
            key += least * bool(its.rounds_inside_from)
            found[key] = found.get(key, frozenset()) | {op}
    return found


def traits_text(found: Mapping[str, Iterable[str]]) -> str:
    """Return each trait with its ops."""
    return "\n".join(f"{name}\n{_listed(ops)}\n" for name, ops in sorted(found.items()))


def aten_names() -> Mapping[str, str]:
    """Return the ATen packets that are another op under a different name."""
    return op_table().aten


def jax_names() -> Mapping[str, str]:
    """Return the primitives of JAX that are another op under a different name."""
    return op_table().jax


def names_text(found: Mapping[str, str]) -> str:
    """Return a line for each spelling with the op that it is."""
    return "".join(f"{name} = {op}\n" for name, op in sorted(found.items()))
