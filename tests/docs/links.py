"""Links of Markdown files, and the anchors that GitHub makes of their headings."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
SCHEME = re.compile(r"[a-z]+:")


def pages():
    """Return the Markdown files of the project, those of hidden folders left out."""
    found = (*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md"))
    return sorted(p for p in found if "build" not in p.parts and "venv" not in p.parts)


def links_of(markdown):
    """Return the targets of the links outside of code, without those of other sites."""
    found = LINK.findall(CODE.sub("", markdown))
    return [target for target in found if not SCHEME.match(target)]


def anchors_of(markdown):
    """Return the anchors of the headings; equal ones are numbered from the second."""
    anchors = []
    for heading in HEADING.findall(re.sub(r"(?ms)^```.*?^```$", "", markdown)):
        words = re.sub(r"\]\([^)]*\)", "", heading.lower())
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        seen = sum(re.fullmatch(rf"{anchor}(-\d+)?", a) is not None for a in anchors)
        anchors.append(f"{anchor}-{seen}" if seen else anchor)
    return anchors


def broken_links(path):
    """Return the links of a page to a file or a heading that is not there."""
    text, broken = path.read_text(encoding="utf-8"), []
    for target in links_of(text):
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        there = file.exists()
        if there and anchor:
            there = anchor in anchors_of(file.read_text(encoding="utf-8"))
        if not there:
            broken.append(target)
    return broken
