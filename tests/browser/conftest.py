"""One headless Chromium for all tests of pages.

Needs Chromium and its driver (Debian: chromium, chromium-driver). Without them the tests are skipped, but under
CI=true they fail: there, an untested page must not look like success.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # it refuses to start as root otherwise; it only opens our own pages
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--window-size=1100,800",
    "--force-device-scale-factor=1",
)


def _missing(what: str) -> None:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"the browser tests need {what}", pytrace=False)
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A selenium driver of a Chromium with an empty profile, without access to other machines."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if found is None or driver is None:
        _missing("Chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        _missing('selenium (pip install -e ".[dev]")')
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    # Nothing but this machine can be reached, whatever a page or the browser itself asks for.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as chromium:
        chromium.set_page_load_timeout(60)
        yield chromium


@pytest.fixture
def page(browser):
    """The browser as a fresh tab would be, in a window of 1100 x 800; no test may leave a message in its console."""
    browser.get("about:blank")
    browser.get_log("browser")
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.fixture
def screenshot(page, tmp_path):
    """Saves what is shown under a name: in $SCREENSHOTS where that is set (those in docs/images are made so)."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)

    def save(name: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        assert page.save_screenshot(str(folder / name))
        return folder / name

    return save


@pytest.fixture
def phone(page):
    """A window as narrow as a phone's."""
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return page


@pytest.fixture
def dark(page):
    """A system that is set to dark colours."""
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    return page
