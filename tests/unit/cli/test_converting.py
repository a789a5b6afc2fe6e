"""Models are converted and verified; JSON parses."""

import json

import pytest

from amprewrite.plan import Plan
from amprewrite.verify import Report
from tests.command_line import done, mistake, run

CAST_LINE = "to = cast(%input_1) -> %to: bf16[4,16]"

# --- convert -----------------------------------------------------------------------


def test_convert_shows_the_summary(model):
    assert "rewritten 1 of 3 ops" in done("convert", model)


def test_convert_prints_the_graph_as_it_becomes(model):
    assert CAST_LINE in done("convert", model, "--graph")


def test_convert_writes_plan_and_program(model, tmp_path):
    plan, program = tmp_path / "plan.json", tmp_path / "model.pt2"
    result = run("convert", model, "--output", plan, "--output", program, "--json")
    assert result.exit_code == 0
    assert Plan.load(plan) == Plan.from_json(json.loads(result.stdout))
    assert f"wrote {program}" in result.stderr
    torch = pytest.importorskip("torch")
    loaded = torch.export.load(program).module()
    assert loaded(torch.randn(4, 16)).dtype == torch.float32


def test_convert_writes_onnx_and_its_warning(model, tmp_path):
    pytest.importorskip("onnxscript")
    for policy, warned in (("fp16", 0), ("bf16", 1)):
        file = tmp_path / f"{policy}.onnx"
        result = run("convert", model, "--policy", policy, "--out", file)
        assert result.exit_code == 0, result.stderr
        assert file.stat().st_size > 500
        assert f"wrote {file}: the converted model; ONNX Runtime" in result.stderr
        assert result.stderr.count("amprewrite: warning: ") == warned


def test_a_file_of_jax_is_refused_for_torch(model, tmp_path):
    line = mistake("convert", model, "--output", tmp_path / "model.stablehlo")
    assert line.endswith("want a name that ends in .json or .pt2 or .onnx")


def test_convert_applies_a_plan(model, tmp_path):
    plan = tmp_path / "plan.json"
    done("inspect", model, "--override", "op=linear,class=deny", "--output", plan)
    assert "bf16" not in done("convert", model, "--plan", plan, "--graph")


# --- verify ------------------------------------------------------------------------


def test_verify_shows_the_report(model):
    text = done("verify", model, "--rtol", "0.5")
    assert "bound 0.5: ok" in text
    assert "autocast: " in text


def test_verify_json_is_a_report(model):
    report = Report.from_json(json.loads(done("verify", model, "--json")))
    assert report.bound is not None
    assert 1e-5 < report.error < report.bound


def test_verify_compares_gradients_if_asked(model):
    assert "largest gradient errors" in done("verify", model, "--gradients")


def test_verify_fails_with_exit_code_1(model):
    result = run("verify", model, "--rtol", "1e-9")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("amprewrite: verification failed: output ")
    assert "NOT OK" in result.stdout


def test_verify_fails_where_something_overflows(model):
    loud = model.replace("build", "loud")
    assert run("verify", loud, "--policy", "bf16").exit_code == 0
    result = run("verify", loud, "--policy", "fp16")
    assert result.exit_code == 1
    assert "4 elements that are finite in the reference are not" in result.stderr


def test_verify_refuses_another_reference(model):
    assert "float64" in mistake("verify", model, "--reference", "float16")


# --- a page ------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "convert", "verify"])
def test_a_page_is_written_beside_the_result(model, tmp_path, command):
    page = tmp_path / "page.html"
    result = run(command, model, "--html", page)
    assert result.exit_code == 0, result.stderr
    assert f"wrote {page}: the " in result.stderr
    assert "layer_norm" in page.read_text("utf-8")
    wrong = mistake(command, model, "--html", "page.txt")
    assert (
        wrong == "amprewrite: --html page.txt: want a name that ends in .html or .htm"
    )
