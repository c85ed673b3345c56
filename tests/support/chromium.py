"""A headless Chromium of its own for a test: fresh profile, no background traffic, console and network on record."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)


def missing() -> str | None:
    """What the browser tests lack, None if nothing."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if lacking:
        return f"no {' and no '.join(lacking)} (Debian: apt-get install chromium chromium-driver)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "no selenium (pip install 'geval-local[test]')"
    return None


@contextmanager
def browser(profile: Path, *, width: int = 1280, height: int = 900) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With the driver named, selenium looks for nothing to download.
    service = webdriver.ChromeService(str(shutil.which("chromedriver")), env=dict(os.environ))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def set_view(driver: Any, width: int, height: int = 900, *, scheme: str = "light") -> None:
    """Choose size of the page, in CSS pixels, and colour scheme."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def console(driver: Any) -> list[str]:
    """Take what the page has logged so far: errors, warnings, policy violations."""
    return [f"{entry['level']}: {entry['message']}" for entry in driver.get_log("browser")]


def requests(driver: Any) -> list[str]:
    """Take the addresses of all requests so far, but for those that the page's policy stopped before they left."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    stopped = {
        event["params"]["requestId"]
        for event in events
        if event["method"] == "Network.loadingFailed" and event["params"].get("blockedReason") == "csp"
    }
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent if params["requestId"] not in stopped]
