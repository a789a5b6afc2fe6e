"""Headless Chromium, driven by selenium, for tests, pictures and benchmarks of pages.

Needs the programs ``chromium`` and ``chromedriver`` (on Debian: ``apt-get install
chromium chromium-driver``); no driver is ever downloaded.
"""

import base64
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""Names of the program, by system."""

ARGUMENTS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
    *("hide-scrollbars", "force-device-scale-factor=1", "disable-dev-shm-usage"),
)

SECONDS = 120
"""Longest time to wait for a page; a machine may be busy."""


def programs() -> tuple[str, str] | None:
    """Return the paths of Chromium and of its driver; None if one is not installed."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def chromium(
    width: int = 1400, height: int = 900, *, dark: bool = False
) -> Iterator["WebDriver"]:
    """Yield a driver of a browser with a fresh profile.

    Args:
        width: Width of the window, in CSS pixels.
        height: Its height.
        dark: Whether the reader prefers a dark page.

    Raises:
        RuntimeError: Chromium or its driver is not installed.
    """
    from selenium import webdriver  # noqa: PLC0415  # only where a browser is
    from selenium.webdriver.chrome.options import Options  # noqa: PLC0415
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    found = programs()
    if found is None:
        msg = "no chromium with a chromedriver; install both, from one distribution"
        raise RuntimeError(msg)
    options = Options()
    options.binary_location, driver_path = found
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (*ARGUMENTS, f"user-data-dir={profile}"):
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(driver_path))
        try:
            driver.set_page_load_timeout(SECONDS)
            resize(driver, width, height)
            prefer_dark(driver, dark=dark)
            yield driver
        finally:
            driver.quit()


def resize(driver: "WebDriver", width: int, height: int = 900) -> None:
    """Set the size of the window, in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer_dark(driver: "WebDriver", *, dark: bool) -> None:
    """Set the colour scheme that the reader prefers."""
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def load(driver: "WebDriver", path: Path) -> float:
    """Load a page of amprewrite and return the milliseconds until it was usable."""
    from selenium.webdriver.support.wait import WebDriverWait  # noqa: PLC0415

    driver.get(path.resolve().as_uri())
    script = "return document.body.dataset.ready"
    ready = WebDriverWait(driver, SECONDS, 0.05).until(
        lambda d: d.execute_script(script)
    )
    return float(ready)


def console(driver: "WebDriver") -> list[str]:
    """Return the lines of the console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]


def picture(driver: "WebDriver", path: Path, region: tuple[int, int, int, int]) -> None:
    """Write a PNG of a region of the page: left, top, width, height in CSS pixels."""
    names = ("x", "y", "width", "height")
    clip = {**dict(zip(names, region, strict=True)), "scale": 1}
    arguments = {"captureBeyondViewport": True, "clip": clip}
    found = driver.execute_cdp_cmd("Page.captureScreenshot", arguments)
    path.write_bytes(base64.b64decode(found["data"]))
