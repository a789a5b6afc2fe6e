"""An einsum that multiplies nothing, or sums nothing, is no contraction."""

import pytest

import amprewrite

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp

pytestmark = pytest.mark.filterwarnings(
    "ignore:rewritten 0 of", "ignore:float16 on a CPU"
)

ROW = 262_144
"""A row of 0.3 adds up to 78,643: more than the largest float16."""


class Einsum(torch.nn.Module):
    def __init__(self, equation):
        super().__init__()
        self.equation = equation

    def forward(self, *operands):
        return torch.einsum(self.equation, *operands)


class Dice(torch.nn.Module):
    def forward(self, p, t):
        total = torch.einsum("bn->b", p) + torch.einsum("bn->b", t)
        return 1 - 2 * torch.einsum("bn,bn->b", p, t) / total


def converted(module, policy, operands, *, lazy):
    args = None if lazy else operands
    return amprewrite.convert(module.eval(), policy, args=args)


POLICIES = ["bf16", "fp16", "bf16-accumulate", "autocast-cpu"]


@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
def test_a_dice_loss_is_right_in_float16(lazy):
    p, t = torch.full((1, ROW), 0.2), torch.ones(1, ROW)
    loss = converted(Dice(), "fp16", (p, t), lazy=lazy)(p, t)
    assert torch.allclose(loss, Dice()(p, t), rtol=2e-3)


@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
@pytest.mark.parametrize(
    ("equation", "others"),
    [
        ("bn->b", ()),
        ("bn->", ()),
        ("...n->...", ()),
        ("bn,b->b", ((1,),)),
        ("bn,bk->bk", ((1, 3),)),
        ("bn,bk,bk->b", ((1, 3), (1, 3))),
    ],
)
def test_a_sum_alone_does_not_overflow(equation, others, lazy):
    operands = torch.full((1, ROW), 0.3), *(torch.full(o, 0.1) for o in others)
    model = Einsum(equation)
    result = converted(model, "fp16", operands, lazy=lazy)(*operands)
    assert torch.allclose(result, model(*operands))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("equation", "like"),
    [
        ("bn->b", "sum"),
        ("nn->", "sum"),
        ("bn->nb", "permute"),
        ("nn->n", "diagonal"),
        ("bn", "permute"),
    ],
)
def test_an_einsum_of_one_operand_has_the_class_of_its_computation(
    policy, equation, like
):
    plan = amprewrite.inspect(Einsum(equation), policy, args=(torch.ones(4, 4),))
    (decision,) = plan.decisions
    assert decision.op_class == amprewrite.load_policy(policy).ops[like].op_class


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("equation", "like"), [("bn,b->b", "sum_to_size"), ("b,n->bn", "outer")]
)
def test_an_einsum_of_two_operands_has_the_class_of_its_computation(
    policy, equation, like
):
    shapes = (4,) * len(equation.split(",")[0]), (4,)
    args = tuple(torch.ones(shape) for shape in shapes)
    plan = amprewrite.inspect(Einsum(equation), policy, args=args)
    (decision,) = plan.decisions
    assert decision.op_class == amprewrite.load_policy(policy).ops[like].op_class


def test_torch_lists_every_einsum_for_cuda():
    for equation in ("bn->b", "bn->nb"):
        args = (torch.ones(4, 4),)
        plan = amprewrite.inspect(Einsum(equation), "autocast-cuda", args=args)
        assert plan.by_op["einsum"].op_class == "allow"


class Moves(torch.nn.Module):
    def __init__(self, equation):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.equation = equation

    def forward(self, x):
        return self.last(torch.einsum(self.equation, self.first(x)))


@pytest.mark.parametrize("equation", ["ij->ji", "ij", "...ij->...ji"])
def test_a_transposition_between_layers_is_low(equation):
    x = torch.randn(8, 8)
    plan = amprewrite.inspect(Moves(equation).eval(), args=(x,))
    assert plan.by_op["einsum"].precision == "bfloat16"


def test_a_diagonal_that_is_written_in_place_is_the_models_storage():
    class Model(torch.nn.Module):
        def forward(self, x):
            x = x @ x
            torch.einsum("ii->i", x).add_(1)
            return x @ x

    x = torch.randn(8, 8)
    converted = amprewrite.convert(Model().eval(), args=(x,))
    assert amprewrite.verify(Model(), converted, (x,), rtol=2e-2).ok
    assert not torch.equal(converted(x), (x @ x) @ (x @ x))


@pytest.mark.parametrize("dims", [0, 1])
def test_a_tensordot_that_sums_nothing_is_no_contraction(dims):
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.tensordot(x, x, dims=dims)

    plan = amprewrite.inspect(Model(), args=(torch.ones(4, 4),))
    assert plan.by_op["tensordot"].op_class == ("allow" if dims else "deny")


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bn->b", [(4, 8)]),
        ("ij->ji", [(4, 4)]),
        ("ii->i", [(4, 4)]),
        ("bn,b->b", [(4, 8), (4,)]),
        ("i,j->ij", [(4,), (8,)]),
        ("bn,bn->bn", [(4, 8), (4, 8)]),
    ],
)
@pytest.mark.parametrize("policy", ["bf16", "bf16-accumulate"])
def test_gradients_are_those_of_full_precision_in_both_frameworks(
    policy, equation, shapes
):
    operands = [torch.randn(shape) for shape in shapes]
    leaves = [x.clone().requires_grad_() for x in operands]
    model = amprewrite.convert(Einsum(equation).train(), policy, args=tuple(leaves))
    model(*leaves).square().sum().backward()
    function = amprewrite.convert(lambda *xs: jnp.einsum(equation, *xs), policy)
    arrays = [jnp.asarray(x.numpy()) for x in operands]

    def loss(*xs):
        return (function(*xs) ** 2).sum()

    gradients = jax.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)
    plain = [x.clone().requires_grad_() for x in operands]
    torch.einsum(equation, *plain).square().sum().backward()
    tolerance = 2e-2 if policy == "bf16-accumulate" else 1e-5
    for exact, leaf, gradient in zip(plain, leaves, gradients, strict=True):
        assert torch.allclose(leaf.grad, exact.grad, tolerance, tolerance)
        theirs = torch.tensor(jax.device_get(gradient))
        assert torch.allclose(theirs, exact.grad, 2e-2, 2e-2)


def test_the_sum_of_one_operand_in_jax_does_not_overflow():
    p = jnp.full((1, ROW), 0.3)
    for equation, others in (("bn->b", ()), ("bn,b->b", (jnp.ones(1),))):
        function = amprewrite.convert(
            lambda *xs, e=equation: jnp.einsum(e, *xs), "fp16"
        )
        assert jnp.isfinite(function(p, *others)).all()


@pytest.mark.parametrize("policy", ["off", "bf16"])
@pytest.mark.parametrize(
    ("equation", "others"),
    [
        *(
            ("ij->ji", ()),
            ("ii->i", ()),
            ("ii", ()),
            ("ij->", ()),
            ("ij,j->i", ((4,),)),
        ),
        *(("ij,j->ij", ((4,),)), ("ij,k->k", ((4,),)), ("ij,ik->i", ((4, 4),))),
    ],
)
def test_every_form_computes_the_same(policy, equation, others):
    args = torch.randn(4, 4), *(torch.randn(shape) for shape in others)
    model = Einsum(equation)
    result = converted(model, policy, args, lazy=False)(*args)
    assert torch.allclose(result, model(*args), 0, 0 if policy == "off" else 4e-2)
