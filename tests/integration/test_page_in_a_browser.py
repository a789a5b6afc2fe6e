"""The HTML page in a headless Chromium: it loads, searches, sorts, opens modules."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("selenium")

from amprewrite.page.model import (
    Chart,
    Column,
    Graph,
    Histogram,
    Line,
    Node,
    Page,
    Table,
)
from amprewrite.page.write import write_page
from benchmarks.page import deep_plan, deep_report
from tools import browser

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

pytestmark = pytest.mark.skipif(
    browser.programs() is None, reason="chromium and chromedriver are not installed"
)

WIDE, NARROW = 1400, 420

SHOWN = "return amp.graph.cy.nodes().map((node) => node.id())"
CENTRE = """
const at = amp.graph.cy.$id(arguments[0]).renderedPosition();
return [at.x - amp.graph.cy.width() / 2, at.y - amp.graph.cy.height() / 2];
"""
"""Position of a node against the middle of the graph, in CSS pixels."""

CHOOSE = """
const choice = document.querySelector("#ops select");
choice.value = arguments[0];
choice.dispatchEvent(new Event("change"));
"""

ROWS = "return [...document.querySelectorAll('#table-ops .tabulator-row')].length"


@pytest.fixture(scope="module")
def chromium() -> Iterator["WebDriver"]:
    with browser.chromium(WIDE) as driver:
        yield driver


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A page with all that one can have: 4 layers, 92 ops."""
    path = tmp_path_factory.mktemp("page") / "small.html"
    kinds = ("weight", "activation", "weight gradient", "activation gradient")
    exponents = [
        Histogram(f"t{i}", kind, "encoder", {-30 - i: 5, -20: 50, -3: 9}, zeros=2)
        for i, kind in enumerate(kinds * 2)
    ]
    report = deep_report(deep_plan(4))
    report.to_html(path, against=deep_plan(3), exponents=exponents)
    return path


@pytest.fixture
def page(chromium: "WebDriver", small: Path) -> "WebDriver":
    browser.load(chromium, small)
    return chromium


def js(driver: "WebDriver", script: str, *arguments: object):
    return driver.execute_script(script, *arguments)


def wait(driver: "WebDriver", script: str, wanted: object) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(driver, 30, 0.05).until(lambda d: js(d, script) == wanted)


def keys(driver: "WebDriver", selector: str, *pressed: str) -> None:
    from selenium.webdriver.common.by import By

    driver.find_element(By.CSS_SELECTOR, selector).send_keys(*pressed)


def is_dark(driver: "WebDriver") -> bool:
    found = js(driver, "return getComputedStyle(document.body).backgroundColor")
    return found == "rgb(15, 19, 24)"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_page_loads_alone_without_an_error_and_fits(
    chromium: "WebDriver", small: Path, width: int, *, dark: bool
) -> None:
    browser.console(chromium)
    browser.resize(chromium, width)
    browser.prefer_dark(chromium, dark=dark)
    try:
        browser.load(chromium, small)
        assert browser.console(chromium) == []
        assert (
            js(chromium, "return performance.getEntriesByType('resource').length") == 0
        )
        wide = "return document.documentElement.scrollWidth"
        assert js(chromium, wide) == width, "no bar to scroll to the side"
        assert is_dark(chromium) == dark
        sections = js(chromium, "return amp.sections.map(([, title]) => title)")
        assert sections == [
            *("Summary", "Worst ops", "Two plans", "Differences", "Program", "Ops"),
            *("Casts", "Error by depth", "Exponents"),
        ]
        assert "2^13" in js(
            chromium, "return document.querySelector('#loss-scale').textContent"
        )
        canvases = "return document.querySelectorAll('.u-wrap canvas').length"
        assert js(chromium, canvases) == 5
    finally:
        browser.resize(chromium, WIDE)
        browser.prefer_dark(chromium, dark=False)


def test_tables_are_searched_filtered_and_sorted(page: "WebDriver") -> None:
    count = "return document.querySelector('#ops .count').textContent"
    cell = "#table-ops .tabulator-row .tabulator-cell"
    first = f"return document.querySelector('{cell}').textContent"
    wait(page, count, "92 rows")
    keys(page, "#ops input", "layer.2 SOFTMAX")
    wait(page, count, "1 of 92 rows")
    assert js(page, first) == "l2.p"
    keys(page, "#ops input", "\ue003" * 20)  # backspace
    wait(page, count, "92 rows")
    js(page, CHOOSE, "bfloat16")
    low = sum(d.precision == "bfloat16" for d in deep_plan(4).decisions)
    wait(page, count, f"{low} of 92 rows")
    js(page, CHOOSE, "")
    wait(page, count, "92 rows")
    head = (
        '#table-ops .tabulator-col[tabulator-field="2"]'  # the share, by the keyboard
    )
    keys(page, head, "\ue007")
    wait(page, first, "l3.y")
    keys(page, head, "\ue007")
    wait(page, first, "l0.q")


def test_modules_open_and_close_by_mouse_and_by_keyboard(page: "WebDriver") -> None:
    before = js(page, SHOWN)
    one = js(page, "return amp.graph.cy.$('.group')[0].data('at')")
    assert len(before) < 40

    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    canvas = page.find_element(By.ID, "graph")
    js(page, "arguments[0].scrollIntoView({block: 'center'})", canvas)
    at = js(page, CENTRE, f"g{one}")
    ActionChains(page).move_to_element_with_offset(
        canvas, *map(round, at)
    ).click().perform()
    wait(page, f"return amp.graph.open.has({one})", True)
    opened = js(page, SHOWN)
    assert len(opened) > len(before)
    inside = js(page, f"return amp.graph.cy.$id('g{one}').children().length")
    assert inside >= 3
    live = "return document.querySelector('#live').textContent"
    told = js(page, live)
    assert "open" in told
    keys(page, "#graph", "\ue007")  # enter closes it, and opens it again
    wait(page, f"return amp.graph.open.has({one})", False)
    assert len(js(page, SHOWN)) == len(before)
    keys(page, "#graph", "\ue007")
    wait(page, f"return amp.graph.open.has({one})", True)
    keys(page, "#graph", "\ue015")  # the arrow goes on to the next box,
    assert js(page, live) != told
    keys(page, "#graph", "\ue00c")  # and escape closes the module around it
    wait(page, f"return amp.graph.open.has({one})", False)
    page.find_element(By.XPATH, "//button[text()='Close all']").click()
    assert len(js(page, SHOWN)) < len(before)
    page.find_element(By.XPATH, "//button[text()='Open a level']").click()
    assert len(js(page, SHOWN)) > 3
    assert browser.console(page) == []


def test_a_row_a_name_and_a_point_select_the_op_everywhere(page: "WebDriver") -> None:
    from selenium.webdriver.common.by import By

    details = "return document.querySelector('#details').textContent"
    page.find_element(By.CSS_SELECTOR, "#table-worst .tabulator-row").click()
    worst = js(page, "return amp.data.before[0].rows[0][0]")
    assert worst in js(page, details)
    assert "layer_norm" in js(page, details)
    picked = (
        "return amp.graph.cy.$('.picked').map((n) => amp.graph.names[n.data('at')])"
    )
    assert js(page, picked) == [worst]
    keys(page, "#graph-section input", "softmax", "\ue007")
    assert js(page, picked) == ["l0.p"]
    keys(page, "#graph-section input", "\ue007")
    assert js(page, picked) == ["l1.p"]
    assert "l1.masked" in js(page, details)
    page.find_element(By.XPATH, "//button[text()='l1.pd']").click()
    assert js(page, picked) == ["l1.pd"]
    page.find_element(By.XPATH, "//button[text()='l1.c']").click()
    assert "Casts of its operands" in js(page, details)
    rows = "return [...document.querySelectorAll('#table-ops .picked')].length"
    wait(page, rows, 1)


@pytest.mark.slow
def test_five_thousand_ops_are_usable(chromium: "WebDriver", tmp_path: Path) -> None:
    path = tmp_path / "deep.html"
    plan = deep_plan(218)
    assert len(plan.decisions) >= 5000
    deep_report(plan).to_html(path)
    browser.load(chromium, path)
    assert len(js(chromium, SHOWN)) < 60, "what is closed is not built"
    assert 5 < js(chromium, ROWS) < 120, "rows out of sight are not built"
    last = plan.decisions[-1].op
    js(chromium, "amp.select(arguments[0], 'test')", last)
    picked = (
        "return amp.graph.cy.$('.picked').map((n) => amp.graph.names[n.data('at')])"
    )
    assert js(chromium, picked) == [last]
    assert browser.console(chromium) == []


def test_hostile_texts_are_texts(chromium: "WebDriver", tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)><script>window.broken=1</script>"
    table = Table(hostile, (Column(hostile, "code"),), ((hostile,),), hostile, "ops")
    node = Node(hostile, hostile, hostile, hostile)
    chart = Chart(hostile, (hostile,), (Line(hostile, (0.1,)),), hostile, hostile)
    page = Page(
        *(hostile, hostile, hostile),
        notes=(hostile,),
        graph=Graph((node, Node("b", "b", "float32", hostile)), lead=hostile),
        tables=(table,),
        charts=(chart,),
        histograms=(Histogram(hostile, "weight", hostile, {0: 1}),),
    )
    path = tmp_path / "hostile.html"
    write_page(page, path)
    browser.load(chromium, path)
    js(chromium, "amp.select(arguments[0], 'test')", hostile)
    assert browser.console(chromium) == []
    assert js(chromium, "return document.querySelectorAll('img').length") == 0
    assert js(chromium, "return window.broken === undefined")
    assert js(chromium, "return document.querySelector('h1').textContent") == hostile
    cell = "return document.querySelector('#table-ops .tabulator-cell').textContent"
    assert js(chromium, cell) == hostile
