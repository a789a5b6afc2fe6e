"""Rows of modules, one level inside the blocks of a stack."""

from amprewrite.plan.lines import layer_rows, row_names
from tests.plan_text import plan_of

TEXT = """
%x: f32[4] input
{ops}
return %x
"""


def plan_at(*paths: str):
    lines = (
        f'op{i} = relu(%x) -> %v{i}: f32[4]\n  | path="{path}"'
        for i, path in enumerate(paths)
    )
    return plan_of(TEXT.format(ops="\n".join(lines)))


PATHS = ("emb.word", *(f"h.{n}.attn.{part}" for n in (0, 1) for part in ("q", "k")))


def test_numbers_become_stars_and_blocks_roll_up() -> None:
    plan = plan_at(*PATHS)
    assert row_names(plan)["h.1.attn.k"] == "h.*.attn.k"
    assert layer_rows(plan)["h.1.attn.k"] == ("h.*", "h.1")


def test_a_level_below_the_blocks_has_rows_of_its_own() -> None:
    rows = layer_rows(plan_at(*PATHS, "head"), below=1)
    assert rows["h.1.attn.k"] == ("h.*.attn", "h.1.attn")
    assert rows["emb.word"] == ("emb", "emb")
    assert rows["head"] == ("head", "head")
