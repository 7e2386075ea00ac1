"""Headless Chromium that can reach this machine only: one for all tests of a process, since two
Playwrights in one do not get on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.needs import because

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium's path; installed from the distribution where root may, else the test is skipped."""
    found, apt = find_chromium(), shutil.which("apt-get")
    if found:
        return found
    if os.geteuid() != 0 or apt is None:
        pytest.skip(because("chromium"))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        done = subprocess.run([apt, *words], capture_output=True, text=True, env=environment)
    if not find_chromium():
        pytest.skip(f"{because('chromium')} (which fails here: "
                    f"{(done.stderr.strip().splitlines() or ['no message'])[-1]})")
    return find_chromium()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield running
        running.close()


@dataclass
class Traffic:
    """What the pages of a test asked for."""

    outside: list[str] = field(default_factory=list)  # addresses off this machine
    failed: list[str] = field(default_factory=list)  # "404 address", "net::ERR... address"
    errors: list[str] = field(default_factory=list)  # uncaught exceptions in pages

    def watch(self, context: BrowserContext) -> None:
        context.on("request", self.request)
        context.on("response", lambda answer: answer.status >= 400 and self.failed.append(
            f"{answer.status} {answer.url}"))
        context.on("requestfailed", lambda request: self.failed.append(
            f"{request.failure} {request.url}"))
        context.on("weberror", lambda error: self.errors.append(str(error.error)))

    def request(self, request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname != "127.0.0.1":
            self.outside.append(request.url)


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
def page(browser: Browser, traffic: Traffic) -> Iterator[Page]:
    """A page of a fresh browser profile. What it asks for is in the fixture `traffic`."""
    context = browser.new_context(viewport={"width": 1500, "height": 1000})
    traffic.watch(context)
    yield context.new_page()
    context.close()


@pytest.fixture
def screenshot(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Page, str], Path]:
    """Save a page as NAME.png in $BROWSER_SCREENSHOTS, or in the test's own folder."""
    folder = Path(os.environ.get("BROWSER_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def save(page: Page, name: str) -> Path:
        path = folder / f"{name}.png"
        page.screenshot(path=path)
        return path

    return save
