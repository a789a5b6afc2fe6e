"""The page of differences is what its command writes; the guide to dtypes is true."""

import re
import shlex
from pathlib import Path

from amprewrite.dtypes import Behaviour
from amprewrite.dtypes.op_rules import rule_of
from amprewrite.report.promotion import COMMAND, differences_page
from tests.command_line import done
from tests.docs.blocks import blocks_of

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "dtypes.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    text = (DOCS / "promotion.md").read_text(encoding="utf-8")
    assert text == differences_page(), f"run: {COMMAND} > docs/promotion.md"


def test_commands_of_the_guide_work():
    (block,) = [x for x in blocks_of(GUIDE) if x.language == "shell"]
    commands = [shlex.split(line)[1:] for line in block.text.splitlines()]
    printed = "".join(done(*command) for command in commands)
    assert block.output is not None
    assert printed.startswith(block.output.partition("...")[0])


def test_the_guide_has_every_rule_with_true_examples():
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", GUIDE, flags=re.MULTILINE)
    assert {name for name, _ in rows} == set(Behaviour)
    for name, examples in rows:
        behaviours = {rule_of(op).behaviour for op in re.findall(r"`(\w+)`", examples)}
        assert behaviours == {name}
