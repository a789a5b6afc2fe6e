"""Models are loaded from exported programs and from folders of transformers."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import TargetError
from amprewrite.factories import load_factory
from amprewrite.frameworks.torch_fx.saved.models import load_saved
from tests.command_line import done


def test_an_exported_program_comes_with_its_arguments(tmp_path):
    file = tmp_path / "model.pt2"
    args = (torch.ones(2, 4),)
    torch.export.save(torch.export.export(nn.Linear(4, 4).eval(), args), file)
    found = load_factory(str(file))
    assert torch.equal(found.args[0], args[0])
    assert dict(found.kwargs) == {}
    assert "rewritten 1 of 1 ops" in done("inspect", file)


def test_a_folder_of_transformers_comes_with_tokens(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.BertConfig(**sizes, num_attention_heads=2, vocab_size=30)
    transformers.BertModel(config).save_pretrained(tmp_path)
    model, args, kwargs = load_saved(tmp_path)
    assert type(model) is transformers.BertModel
    assert args == ()
    assert not model.training
    assert model(**kwargs).last_hidden_state.shape[-1] == 16


def test_a_folder_of_transformers_comes_with_pixels(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.ViTConfig(**sizes, num_attention_heads=2, image_size=32)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    model, _, kwargs = load_saved(tmp_path)
    assert model(**kwargs).last_hidden_state.shape[0] == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no config.json; want one of save_pretrained"),
        ({"config.json": "{}"}, "transformers cannot load it: "),
        (
            {"config.json": '{"model_type": "bert", "architectures": ["BertModel"]}'},
            "transformers cannot load it: OSError",
        ),
    ],
)
def test_a_folder_without_a_model_is_refused(tmp_path, files, message):
    pytest.importorskip("transformers")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(TargetError, match=message):
        load_saved(tmp_path)


def test_a_file_without_a_program_is_refused(tmp_path):
    file = tmp_path / "model.pt2"
    with pytest.raises(TargetError, match=r"no such file; want one of torch.export"):
        load_saved(file)
    file.write_text("nothing")
    with pytest.raises(TargetError, match=r"torch.export.load fails: "):
        load_saved(file)
