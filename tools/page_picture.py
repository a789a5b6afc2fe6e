"""Draw docs/page.png: the HTML page of MiniLM in bfloat16, as a browser shows it.

    python -m tools.page_picture

Needs the extra ``demo`` and Chromium with its driver, see tools/browser.py. A new
picture differs from run to run where errors do; it is kept below 200 kB by a palette.
"""

import tempfile
from pathlib import Path

from PIL import Image

import amprewrite
from amprewrite.demo.run import SENTENCES
from amprewrite.demo.run import load as load_model
from tools.browser import chromium, load, picture

PAGE = Path(__file__).parents[1] / "docs" / "page.png"
WIDTH, HEIGHT = 1240, 1270
"""The part of the page that is drawn, in CSS pixels: from the title to the graph."""

COLOURS = 224
"""Colours of the palette."""

SHOW_WORST = """
document.querySelector('#table-worst .tabulator-row').click();
window.scrollTo(0, 0);
"""


def main() -> None:
    """Convert and verify the model, write its page, draw it."""
    model, args = load_model(SENTENCES)
    converted = amprewrite.convert(model, policy="bf16", args=args)
    report = amprewrite.verify(model, converted, args)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        report.to_html(page, title="all-MiniLM-L6-v2 in bfloat16")
        with chromium(WIDTH, HEIGHT) as driver:
            load(driver, page)
            driver.execute_script(SHOW_WORST)
            picture(driver, PAGE, (0, 0, WIDTH, HEIGHT))
    with Image.open(PAGE) as drawn:
        few = drawn.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(PAGE, optimize=True)


if __name__ == "__main__":
    main()
