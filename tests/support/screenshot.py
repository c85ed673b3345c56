"""Take a picture of a report: ``python tests/support/screenshot.py report.html picture.png [width height [dark]]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import browser, set_view

if __name__ == "__main__":
    page, picture, *rest = sys.argv[1:]
    width, height = (int(size) for size in rest[:2] or ("1280", "1000"))
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as driver:
        # A page that scrolls shows a bar, which says nothing in a picture.
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        set_view(driver, width, height, scheme="dark" if "dark" in rest else "light")
        file, hash_, section = page.partition("#")
        driver.get(Path(file).resolve().as_uri() + hash_ + section)
        driver.save_screenshot(picture)
