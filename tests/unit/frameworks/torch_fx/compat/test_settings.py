"""Every setting of torch that a capture changes, and that it is changed back."""

import inspect
import logging
import warnings
from importlib import import_module
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import GraphModule, symbolic_trace

from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.compat import (
    pytrees,
    settings,
    threads,
    watchers,
)
from tests.torch_programs import Program, graph_of

aten = torch.ops.aten


def x() -> Any:
    return torch.randn(4, 8)


def test_the_fast_path_of_attention_is_off_for_a_while() -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    with settings.slow_attention_path():
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_only_what_opens_regions_hears_that_autocast_is_on() -> None:
    generic = pytest.importorskip("transformers.utils.generic")
    with settings.regions_opened():
        region = generic.maybe_autocast("cpu", enabled=False)
        assert isinstance(region, torch.autocast)
        with region:
            assert nn.Linear(8, 8)(x()).dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
    assert not isinstance(generic.maybe_autocast("cpu", enabled=False), torch.autocast)


def test_openers_of_regions_are_there() -> None:
    pytest.importorskip("transformers")
    for module, name in settings.OPENERS:
        assert callable(getattr(import_module(module), name))


def test_ambient_autocast_is_off_for_a_while() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        with settings.without_autocast("cpu"):
            assert nn.Linear(8, 8)(x()).dtype == torch.float32
        assert nn.Linear(8, 8)(x()).dtype == torch.bfloat16


def test_dynamo_takes_recurrent_layers_and_many_captures() -> None:
    from torch._dynamo import config  # noqa: TID251  # what is patched

    before = config.allow_rnn
    with settings.dynamo_settings():
        assert config.allow_rnn
        assert config.recompile_limit >= 256
    assert config.allow_rnn == before


def test_an_inference_mode_is_captured_as_a_region_without_gradients() -> None:
    def forward(_: Any, value: Any) -> Any:
        with torch.inference_mode():
            inside = value + 1
        return inside, torch.inference_mode()(torch.neg)(value)

    value = x().requires_grad_()
    before = torch.inference_mode.__enter__
    with settings.inference_without_gradients():
        graph = graph_of(forward, value)
    assert not any(out.requires_grad for out in graph(value))
    assert torch.inference_mode.__enter__ is before


def test_marks_of_a_failed_export_are_taken_off() -> None:
    value, shapes = x(), ({0: torch.export.Dim.DYNAMIC},)
    value.mine = 1

    def export() -> None:
        with pytest.raises(RuntimeError, match="specialized it to be a constant"):
            torch.export.export(
                Program(lambda _, x: x.view(4, 2, 4)),
                (value,),
                dynamic_shapes=(shapes,),
                strict=False,
            )

    with settings.unmarked({"x": [value]}):
        export()
        assert set(vars(value)) > {"mine"}
    assert vars(value) == {"mine": 1}


def test_a_mask_is_not_asked_whether_it_is_causal() -> None:
    from torch.nn.modules import transformer

    mask = nn.Transformer.generate_square_subsequent_mask(4)
    asked = transformer._detect_is_causal_mask
    assert asked(mask, None, 4) is True
    with settings.plain_causal_hint():
        assert transformer._detect_is_causal_mask(mask, None, 4) is False
        assert transformer._detect_is_causal_mask(mask, True, 4) is True
    assert transformer._detect_is_causal_mask is asked


def test_caches_of_transformers_can_be_exported() -> None:
    transformers = pytest.importorskip("transformers")
    settings.register_caches()
    settings.register_caches()
    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)
    leaves = pytrees.pytree.tree_leaves(cache)
    assert [tuple(leaf.shape) for leaf in leaves] == [(1, 1, 2, 4)] * 2


def test_inputs_of_recurrent_layers_are_checked_in_the_dtype_of_their_weights() -> None:
    layer, given = torch.nn.GRU(4, 4).double(), torch.ones(2, 1, 4)
    with settings.recurrent_inputs_cast():
        layer.check_input(given, None)
        with pytest.raises(RuntimeError, match="input_size"):
            layer.check_input(torch.ones(2, 1, 5), None)
    with pytest.raises(ValueError, match="does not match weight dtype"):
        layer.check_input(given, None)


def test_nothing_is_said_in_a_quiet_run(recwarn: pytest.WarningsRecorder) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with settings.quiet():
        warnings.warn("said", stacklevel=1)
        assert not logger.filter(logger.makeRecord("", 30, "", 0, "said", (), None))
    assert not recwarn.list
    assert logger.filter(logger.makeRecord("", 30, "", 0, "said", (), None))


def test_a_cast_that_changes_nothing_is_another_value() -> None:
    def function(_: Any, x: Any) -> Any:
        y = x * 2
        return y.float() + 1, torch.relu(y)

    def read(graph: Any) -> str:
        relu = next(n for n in graph.graph.nodes if "relu" in str(n.target))
        return str(relu.args[0].target)

    assert read(graph_of(function)).startswith("aten.to")
    with settings.distinct_casts():
        assert read(graph_of(function)).startswith("aten.mul")


def test_the_random_state_is_given_back() -> None:
    before = torch.get_rng_state()
    with settings.fork_rng([]):
        x()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_ambient_autocast_is_off_on_each_device() -> None:
    """A model that was moved runs on another device than that of its capture."""
    torch.set_autocast_enabled("cuda", True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            with settings.without_any_autocast():
                assert not settings.is_any_autocast_on()
                assert not torch.is_autocast_enabled("cuda")
                assert nn.Linear(8, 8)(x()).dtype == torch.float32
            assert torch.is_autocast_enabled("cuda")
            assert settings.is_any_autocast_on()
            assert nn.Linear(8, 8)(x()).dtype == torch.bfloat16
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_tensors_that_a_capture_saves_do_not_reach_the_hooks_around_it() -> None:
    seen = list[torch.Tensor]()

    def run() -> None:
        nn.Linear(8, 8)(x()).sum()

    with torch.autograd.graph.saved_tensors_hooks(seen.append, lambda _: None):
        with settings.keeping_saved_tensors():
            run()
        assert not seen
        run()
    assert seen
    with settings.keeping_saved_tensors():
        run()


def test_code_of_graph_modules_is_generated_at_their_first_use() -> None:
    generated: list[int] = []
    before = GraphModule.recompile

    def counted(module: Any) -> Any:
        generated.append(id(module))
        return before(module)

    given = x()
    program = torch.export.export(nn.Linear(8, 8), (given,))
    with mock.patch.object(GraphModule, "recompile", counted):
        with settings.compiled_later():
            module = program.module()
            opened = [*generated]
            module.recompile()
        assert generated == opened
        found = module(given)
        assert generated == [*opened, id(module)]
    assert torch.equal(found, program.module()(given))
    assert list(inspect.signature(module.forward).parameters) == ["input"]
    assert module.code.strip()


def test_the_code_of_one_graph_is_generated_in_a_capture() -> None:
    generated: list[int] = []
    before = GraphModule.recompile

    def counted(module: Any) -> Any:
        generated.append(id(module))
        return before(module)

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    watchers.failed(torch.__version__)  # makes a graph, once
    with mock.patch.object(GraphModule, "recompile", counted):
        torch.export.export(model, (x(),))
        by_export = len(generated)
        generated.clear()
        export_model(model, (x(),), {})
    assert len(generated) == 1 < by_export


class _ReadsCode(nn.Module):
    def forward(self, given: Any) -> Any:
        part = symbolic_trace(nn.Linear(8, 8))
        return given + len(part.code)


def test_graph_modules_of_a_forward_have_code_in_a_capture() -> None:
    found = export_model(_ReadsCode(), (x(),), {})
    assert any(node.target is aten.add.Tensor for node in found.module.graph.nodes)


@pytest.mark.parametrize("write", [False, True])
def test_data_is_read_and_written_by_ops_for_a_while(*, write: bool) -> None:
    def program(m: Any, x: Any) -> Any:
        if write:
            m.a.bias.data = m.a.bias.data + 1
        return x @ m.a.weight.data.t()

    model = Program(program, a=nn.Linear(8, 8))
    before = model.a.bias.data
    with threads.data_traced():
        exported = torch.export.export(model, (x(),), strict=False)
    targets = [node.target for node in exported.graph.nodes]
    assert aten.detach.default in targets
    assert not exported.constants
    assert "data" not in vars(torch.Tensor)
    assert model.a.bias.data.data_ptr() == before.data_ptr()
