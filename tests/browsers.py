"""Drive a real Chromium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.patience import PATIENCE_SECONDS

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@contextmanager
def chromium(*options: str) -> Iterator:
    """Yield a driver of Selenium; skip where it or Debian's packages chromium and chromium-driver are missing."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not BROWSER or not DRIVER:
        pytest.skip("The packages chromium and chromium-driver are not installed.")
    chosen = webdriver.ChromeOptions()
    chosen.binary_location = BROWSER
    for option in ("headless=new", "no-sandbox", "disable-dev-shm-usage", *options):
        chosen.add_argument(f"--{option}")
    driver = webdriver.Chrome(options=chosen, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(PATIENCE_SECONDS)
    try:
        yield driver
    finally:
        driver.quit()
