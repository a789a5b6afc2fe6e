"""Load models from files: exported programs, and folders that transformers wrote."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from amprewrite.errors import TargetError

Loaded = tuple[Any, tuple[Any, ...], Mapping[str, Any]]
"""A model, and the positional and keyword arguments to call it with."""

CONFIG = "config.json"
"""File of transformers that names the class of a model and its sizes."""


def load_saved(path: Path) -> Loaded:
    """Return the model at ``path`` with arguments to call it with.

    Args:
        path: A file of ``torch.export.save``, with the arguments of its export; or a
            folder of ``save_pretrained``, with inputs of two or three short rows of
            tokens, or of one image of random pixels. Nothing is downloaded.

    Raises:
        TargetError: There is no model, it cannot be loaded, or it has no arguments.
    """
    return _load_folder(path) if path.is_dir() else _load_program(path)


def _load_program(path: Path) -> Loaded:
    if not path.is_file():
        raise TargetError(f"{path}: no such file; want one of torch.export.save")
    try:
        program = torch.export.load(path)
    except Exception as error:  # a file of anything
        msg = f"{path}: torch.export.load fails: {_first_line(error)}"
        raise TargetError(msg) from error
    if program.example_inputs is None:
        msg = (
            f"{path}: the program has no example inputs; save it with those of its "
            f"export, or name a function that gives (program, args)"
        )
        raise TargetError(msg)
    args, kwargs = program.example_inputs
    return program, tuple(args), dict(kwargs)


def _load_folder(path: Path) -> Loaded:
    if not (path / CONFIG).is_file():
        msg = f"{path}: the folder has no {CONFIG}; want one of save_pretrained"
        raise TargetError(msg)
    if find_spec("transformers") is None:
        msg = f"{path}: transformers loads it; pip install transformers"
        raise TargetError(msg)
    import transformers  # noqa: PLC0415  # only if installed

    library: Any = transformers
    try:
        config = library.AutoConfig.from_pretrained(path, local_files_only=True)
        names = config.architectures or ["AutoModel"]
        kind = getattr(library, names[0], library.AutoModel)
        model = kind.from_pretrained(path, local_files_only=True).eval()
    except Exception as error:  # files of anything
        msg = f"{path}: transformers cannot load it: {_first_line(error)}"
        raise TargetError(msg) from error
    return model, (), _inputs(path, model)


def _inputs(path: Path, model: Any) -> Mapping[str, Any]:
    """Return small inputs of a model's kind.

    Raises:
        TargetError: Its main input is neither tokens nor pixels.
    """
    if model.main_input_name == "input_ids":
        return dict(model.dummy_inputs)
    channels = getattr(model.config, "num_channels", None)
    size = getattr(model.config, "image_size", None)
    if model.main_input_name != "pixel_values" or channels is None or size is None:
        msg = (
            f"{path}: a {type(model).__name__} takes {model.main_input_name}, of which "
            f"no example is known; want a function that gives (model, args, kwargs)"
        )
        raise TargetError(msg)
    height, width = (size, size) if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(0)
    return {
        "pixel_values": torch.randn(1, channels, height, width, generator=generator)
    }


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
