"""The libraries in a page: whole as fetched, with their licences."""

import json
from hashlib import sha256
from importlib.resources import files

from amprewrite.page.model import Page
from amprewrite.page.write import libraries, page_html, vendored
from tools.page_libraries import FOLDER, LIBRARIES, VERSIONS, differing


def test_the_files_are_those_that_were_fetched() -> None:
    hashes = {name: h for lib in libraries() for name, h in lib.files.items()}
    folder = files("amprewrite.page") / "assets" / "vendor"
    there = {
        path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
    }
    assert there.pop(VERSIONS)
    assert there == hashes


def test_versions_are_those_that_the_tool_pins() -> None:
    pinned = [(lib.name, lib.version, lib.licence) for lib in LIBRARIES]
    assert [(lib.name, lib.version, lib.licence) for lib in libraries()] == pinned


def test_licences_are_in_the_page() -> None:
    text = page_html(Page("x"))
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    shown = {row["name"]: row["text"] for row in data["licences"]}
    assert shown.keys() == {lib.name for lib in LIBRARIES}
    assert all("Permission is hereby granted" in text for text in shown.values())


def test_a_changed_or_additional_file_is_seen(tmp_path) -> None:
    found = {"a.js": b"1", VERSIONS: b"[]"}
    for name, data in found.items():
        (tmp_path / name).write_bytes(data)
    assert differing(found, tmp_path) == []
    (tmp_path / "b.js").write_bytes(b"2")
    assert differing({**found, "a.js": b"3"}, tmp_path) == ["a.js", "b.js"]
    assert FOLDER.is_dir()
    assert vendored(VERSIONS).startswith("[")
