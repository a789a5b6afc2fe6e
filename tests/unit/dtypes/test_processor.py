import pytest
from hypothesis import given
from hypothesis import strategies as st

from amprewrite.dtypes import FORMATS, SYSTEMS, Operand, format_of, result_type
from amprewrite.dtypes.processor import Behaviour, Processor, Promoted, Rule
from amprewrite.errors import ComplexTruncationError, PromotionError

SAME, PROMOTE = Rule(Behaviour.SAME), Rule(Behaviour.PROMOTE)
FOLLOW, MIXED = Rule(Behaviour.FOLLOW_SELF), Rule(Behaviour.MIXED)
TORCH = Processor("torch")


@pytest.mark.parametrize("system", ["jax", "torch"])
def test_equal_dtypes_are_made(system):
    assert Processor(system).apply(SAME, "bfloat16", "float16", "float32") == Promoted(
        "float32", "float32", weak=False, casts=("float32", "float32", None)
    )


def test_a_number_needs_no_cast():
    assert Processor().apply(PROMOTE, "bfloat16", 1.0).casts == (None, None)
    assert Processor().apply(PROMOTE, "int8", 1.0) == Promoted(
        "float32", "float32", weak=True, casts=("float32", None)
    )


def test_a_weak_array_needs_one():
    weak = Operand("float32", weak=True)
    assert Processor().apply(PROMOTE, "bfloat16", weak).casts == (None, "bfloat16")


def test_a_0d_tensor_keeps_its_precision_where_torch_promotes():
    zero_d = Operand("float32", ndim=0)
    assert TORCH.apply(PROMOTE, "float16", zero_d).casts == (None, None)
    assert TORCH.apply(PROMOTE, Operand("float16", ndim=0), zero_d).casts == (
        *("float32", None),
    )
    assert TORCH.apply(SAME, "float16", zero_d).casts == (None, "float16")
    assert Processor("numpy").apply(PROMOTE, "float16", zero_d).dtype == "float32"


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        *(("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32")),
        *(("float64", "float64"), ("complex64", "complex64"), ("int32", "float32")),
    ],
)
def test_statistics_have_a_minimum(given, dtype):
    rule = Rule(Behaviour.MINIMUM, dtype="float32")
    found = Processor(x64=True).apply(rule, given)
    assert (found.computes, found.dtype) == (dtype, dtype)
    assert found.casts == ((None,) if given == dtype else (dtype,))


def test_an_integer_minimum_is_for_integers():
    rule = Rule(Behaviour.MINIMUM, dtype="int64")
    for system, dtype in [("torch", "int64"), ("jax", "uint32"), ("numpy", "uint64")]:
        assert Processor(system).apply(rule, "uint8").dtype == dtype
    assert Processor(x64=True).apply(rule, "uint8").dtype == "uint64"
    assert TORCH.apply(rule, "bfloat16").dtype == "bfloat16"


def test_integers_become_floats():
    rule = Rule(Behaviour.INT_TO_FLOAT)
    assert TORCH.apply(rule, "int8", "int64") == Promoted(
        "float32", "float32", weak=False, casts=("float32", "float32")
    )
    half = Processor("torch", default_dtype="bfloat16")
    assert half.apply(rule, "bool").dtype == "bfloat16"
    assert TORCH.apply(rule, "complex64").dtype == "complex64"
    mean = Rule(Behaviour.INT_TO_FLOAT, floats=True, reduction=True)
    with pytest.raises(
        PromotionError, match=r"^int_to_float\(int8\): found int8; want"
    ):
        TORCH.apply(mean, "int8")
    assert Processor().apply(mean, 1).weak is False
    assert Processor().apply(rule, 1).weak is True


def test_a_result_of_another_kind():
    compares = TORCH.apply(Rule(Behaviour.BOOL), "bfloat16", "complex64")
    assert compares == Promoted(
        "complex64", "bool", weak=False, casts=("complex64", None)
    )
    argmax = Rule(Behaviour.FIXED, dtype="int64")
    assert TORCH.apply(argmax, "float16").dtype == "int64"
    assert Processor().apply(argmax, "float16").dtype == "int32"  # no 64 bits
    assert TORCH.apply(Rule(Behaviour.PRESERVE, real=True), "complex64").dtype == (
        "float32"
    )


@pytest.mark.parametrize(
    ("dtypes", "computes", "casts"),
    [
        (("bfloat16", "float32", "float32"), "float32", (None, None, None)),
        (("bfloat16", "bfloat16", "bfloat16"), "float32", (None, None, None)),
        (("bfloat16", "float32", "bfloat16"), "float32", (None, None, "float32")),
        (("bfloat16", "float16"), "float32", (None, "float32")),
        (("float32", "bfloat16"), "float32", (None, "float32")),
        (("float64", "float32"), "float64", (None, "float64")),
        (("bfloat16", "float64"), "float64", ("float64", None)),
    ],
)
def test_parameters_may_be_wider(dtypes, computes, casts):
    found = TORCH.apply(MIXED, *dtypes)
    assert found == Promoted(computes, dtypes[0], weak=False, casts=casts)


def test_the_first_operand_leads():
    assert TORCH.apply(FOLLOW, "bfloat16", "float32") == Promoted(
        "bfloat16", "bfloat16", weak=False, casts=(None, "bfloat16")
    )
    kept = TORCH.apply(Rule(Behaviour.PRESERVE), "bfloat16", "complex64")
    assert kept == Promoted("bfloat16", "bfloat16", weak=False, casts=(None, None))


def test_in_place_computes_in_the_promoted_dtype():
    found = TORCH.apply(PROMOTE, "bfloat16", "float32", in_place=True)
    assert found == Promoted("float32", "bfloat16", weak=False, casts=("float32", None))
    with pytest.raises(PromotionError, match="a result of float32; want one that can"):
        TORCH.apply(PROMOTE, "int64", "float32", in_place=True)
    for system in ("numpy", "numpy1"):  # same_kind: signed is not cast to unsigned
        with pytest.raises(PromotionError, match="found a result of int32"):
            Processor(system).apply(PROMOTE, "uint16", "int16", in_place=True)
    with pytest.raises(PromotionError, match="written into float32"):
        Processor("array-api").apply(PROMOTE, "float32", "float64", in_place=True)
    compares = TORCH.apply(Rule(Behaviour.BOOL), "float32", "complex64", in_place=True)
    assert compares.dtype == "float32"


def test_what_the_call_asks_for_wins():
    rule = Rule(Behaviour.MINIMUM, dtype="int64")
    found = TORCH.apply(rule, "bfloat16", dtype="float32")
    assert found == Promoted("float32", "float32", weak=False, casts=("float32",))


@pytest.mark.parametrize(
    ("rule", "operands", "options"),
    [
        (FOLLOW, ("float32", "complex64"), {}),
        (MIXED, ("float32", "complex64"), {}),
        (PROMOTE, ("float32", 1j), {"in_place": True}),
        (Rule(Behaviour.PRESERVE), ("complex128",), {"dtype": "float64"}),
        (FOLLOW, ("int32", "complex64"), {}),
        (FOLLOW, ("float32", Operand("complex64", ndim=0)), {}),
        (FOLLOW, ("float32", 1j), {}),
    ],
)
@pytest.mark.parametrize("system", ["jax", "torch", "numpy"])
def test_complex_is_never_cast_to_real(rule, operands, options, system):
    with pytest.raises(ComplexTruncationError) as raised:
        Processor(system).apply(rule, *operands, **options)
    text = str(raised.value)
    assert text.startswith(f"{rule.behaviour}(")
    assert "found a cast of complex" in text
    assert "want a complex dtype" in text
    assert "truncate_complex=True" in text
    allowed = Processor(system, truncate_complex=True)
    found = allowed.apply(rule, *operands, **options)
    assert format_of(found.dtype).kind != "complex"


def test_roles():
    assert PROMOTE.roles_of(3) == "xxx"
    assert MIXED.roles_of(3) == "xpp"
    where = Rule(Behaviour.PROMOTE, "-x")
    assert where.roles_of(3) == "-xx"
    assert TORCH.apply(where, "bool", "bfloat16", "float32").casts == (
        *(None, "float32", None),
    )
    index_put = Rule(Behaviour.FOLLOW_SELF, "x-*x")
    assert [index_put.roles_of(n) for n in (1, 2, 3, 5)] == ["x", "xx", "x-x", "x---x"]


def test_mistakes_say_where():
    with pytest.raises(PromotionError, match=r"^promote\(\): found no operand"):
        TORCH.apply(PROMOTE)
    with pytest.raises(PromotionError, match=r"^promote\(bool\): found no operand"):
        TORCH.apply(Rule(Behaviour.PROMOTE, "-x"), "bool")
    with pytest.raises(PromotionError, match=r"^same\(uint16, int8\): result_type"):
        TORCH.apply(SAME, "uint16", "int8")


@given(
    st.lists(st.sampled_from(sorted(FORMATS)), min_size=1, max_size=3),
    st.sampled_from(SYSTEMS),
)
def test_casts_make_every_operand_equal(dtypes, system):
    try:
        want = result_type(*dtypes, system=system)
    except PromotionError:
        with pytest.raises(PromotionError):
            Processor(system).apply(SAME, *dtypes)
        return
    found = Processor(system).apply(SAME, *dtypes)
    cast = {to or given for given, to in zip(dtypes, found.casts, strict=True)}
    assert (cast, found.dtype, found.weak) == ({want.dtype}, *want)
