"""Write docs/reference/command_line.md from the commands and their help.

python -m tools.command_page
"""

from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from amprewrite import cli

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "command_line.md"
COLUMNS = 88
PROGRAM = "amprewrite"

HEAD = f"""# Command line

<!-- Written by `python -m tools.command_page`; a test compares. -->

`{PROGRAM} COMMAND --help` prints the same. A model is named as `FILE.py:name`
or `package.module:name`, a function without arguments that returns `(model, args)` or
`(model, args, kwargs)`; as a `.pt2` file of `torch.export.save`; or as a folder of
transformers' `save_pretrained`, which is called with small inputs of its kind. With
`--json` a command is for programs: errors are JSON, too. Progress and messages go to
stderr. `{PROGRAM} --install-completion` completes commands, options and names of
policies in your shell.

"""


def page() -> str:
    """Return the text of the page."""
    group = get_command(cli.app)
    assert isinstance(group, TyperGroup)
    parts = [_block(help_of())]
    for name, command in sorted(group.commands.items()):
        parts.append(f"\n## {name}\n\n{_block(help_of(name))}")
        inside = command.commands if isinstance(command, TyperGroup) else {}
        parts += [
            f"\n### {name} {below}\n\n{_block(help_of(name, below))}"
            for below in inside
        ]
    return HEAD + "".join(parts)


def help_of(*command: str) -> str:
    """Return the help of a command, or of the program."""
    runner = CliRunner(env={"COLUMNS": str(COLUMNS), "TERMINAL_WIDTH": str(COLUMNS)})
    result = runner.invoke(cli.app, [*command, "--help"], prog_name=PROGRAM)
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


def _block(text: str) -> str:
    return f"```text\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
