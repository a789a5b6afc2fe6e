"""Find a policy by name, file or jmp string, and follow what it extends."""

import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from amprewrite.dtypes import from_short_name
from amprewrite.errors import PolicyError
from amprewrite.policy.model import OpEntry, Policy
from amprewrite.policy.schema import PolicyFile, near, read_table

JMP_KEYS = {
    "params": "params",
    "p": "params",
    "compute": "compute",
    "c": "compute",
    "output": "output",
    "o": "output",
}
"""Keys of a jmp policy string, long and short. Source: the jmp library's README."""

JMP_BASES = {"bfloat16": "bf16", "float16": "fp16", "float32": "off"}
"""Shipped policy that each compute dtype of a jmp string stands for."""


def policy_folder() -> Path:
    """Return the folder of the shipped policies.

    A wheel carries them inside the package; an editable install does not see that
    copy and finds them beside the package.
    """
    inside = Path(str(files("amprewrite"))) / "policies"
    return inside if inside.is_dir() else inside.parent.parent / "policies"


def shipped_policies() -> tuple[str, ...]:
    """Return the names of the shipped policies, sorted."""
    return tuple(sorted(path.stem for path in policy_folder().glob("*.toml")))


def load_policy(policy: str | Path | Policy) -> Policy:
    """Return a policy.

    Args:
        policy: Name of a shipped policy, path of a TOML file, a jmp string such as
            ``params=float32,compute=bfloat16,output=float32``, or a policy itself.

    Raises:
        PolicyError: No such policy (the nearest name is offered), a file that cannot
            be read, or the list of its mistakes.
    """
    if isinstance(policy, Policy):
        return policy
    text = str(policy)
    if "=" in text:
        return _from_jmp(text)
    if text.endswith(".toml") or "/" in text:
        return _from_file(Path(text), ())
    return _shipped(text)


@cache
def _shipped(name: str) -> Policy:
    names = shipped_policies()
    if name not in names:
        msg = (
            f"unknown policy {name!r}; want {', '.join(names)}, the path of a .toml "
            f"file, or a jmp string{near(name, names)}"
        )
        raise PolicyError(msg)
    return replace(_from_file(policy_folder() / f"{name}.toml", ()), name=name)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        msg = f"policy {path}: cannot be read ({error.strerror}); want a TOML file"
        raise PolicyError(msg) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"policy {path}: is no TOML: {error}; an op can have only one class"
        raise PolicyError(msg) from error


def _from_file(path: Path, seen: tuple[Path, ...]) -> Policy:
    if path in seen:
        chain = " -> ".join(str(p) for p in (*seen, path))
        msg = f"policy {path}: extends itself: {chain}"
        raise PolicyError(msg)
    data = _read_toml(path)
    extends = data.get("extends")
    base = Policy(name="")
    if isinstance(extends, str):
        base = _extended(extends, path, (*seen, path))
    file = read_table(data, str(path), tuple(base.ops))
    return _merge(base, file, str(path))


def _extended(name: str, path: Path, seen: tuple[Path, ...]) -> Policy:
    sibling = path.parent / name
    if name.endswith(".toml"):
        return _from_file(sibling, seen)
    if name not in shipped_policies():
        names = shipped_policies()
        msg = (
            f"policy {path}: extends: unknown policy {name!r}; want "
            f"{', '.join(names)} or a .toml file beside it{near(name, names)}"
        )
        raise PolicyError(msg)
    return _from_file(policy_folder() / f"{name}.toml", seen)


def _merge(base: Policy, file: PolicyFile, name: str) -> Policy:
    entries = {op: OpEntry(t.op_class, t.why) for op, t in file.ops.items()}
    given = {
        **file.dtypes.model_dump(),
        **file.placement.model_dump(),
        "promotion": file.promotion.system,
        "truncate_complex": file.promotion.truncate_complex,
    }
    return replace(
        base,
        name=name,
        ops={**base.ops, **entries},
        rules=(*(table.rule() for table in file.rules), *base.rules),
        **{key: value for key, value in given.items() if value is not None},
    )


def _from_jmp(text: str) -> Policy:
    parts: dict[str, str] = {}
    mistakes: list[str] = []
    for item in text.split(","):
        key, _, dtype = (part.strip() for part in item.partition("="))
        dtype = from_short_name(
            {"half": "float16", "full": "float32"}.get(dtype, dtype)
        )
        if key not in JMP_KEYS:
            mistakes.append(f"{key}: unknown key; want params, compute or output")
        elif dtype not in (*JMP_BASES, "float64"):
            mistakes.append(
                f"{key}: unknown dtype {dtype!r}; want {', '.join(JMP_BASES)}"
            )
        else:
            parts[JMP_KEYS[key]] = dtype
    compute = parts.get("compute", "float32")
    if not mistakes and compute not in JMP_BASES:
        mistakes.append(f"compute: found {compute!r}; want {', '.join(JMP_BASES)}")
    if not mistakes and parts.get("params", "float32") not in ("float32", compute):
        mistakes.append("params: want float32, or the compute dtype")
    if mistakes:
        msg = f"policy {text!r}: {len(mistakes)} mistake{'s' * (len(mistakes) > 1)}"
        raise PolicyError(msg, mistakes)
    output = parts.get("output", "as-traced")
    return replace(_shipped(JMP_BASES[compute]), name=text, output=output)
