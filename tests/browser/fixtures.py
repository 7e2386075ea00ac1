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
    from playwright.sync_api import Browser, BrowserContext, Page, Request, Response, WebError

# The first has no user interface of its own, which costs a tenth of these tests' processor time.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome",
            "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--in-process-gpu",
             "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]

VIEWPORT = {"width": 1500, "height": 1000}
SETTLING = 2000  # milliseconds before a screenshot: curves are drawn after the page is complete


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium's path; installed from the distribution where root may, else the test is skipped."""
    result, apt = find_chromium(), shutil.which("apt-get")
    if result:
        return result
    if os.geteuid() != 0 or apt is None:
        pytest.skip(because("chromium"))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "chromium-headless-shell"], ["install", "chromium"]):
        done = subprocess.run([apt, "-y", "--no-install-recommends", *words], capture_output=True,
                              text=True, env=environment)
        if find_chromium():  # Ubuntu has no headless shell
            break
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
    """The requests of a test's pages."""

    outside: list[str] = field(default_factory=list)  # addresses off this machine
    failed: list[str] = field(default_factory=list)  # "404 address", "net::ERR... address"
    errors: list[str] = field(default_factory=list)  # uncaught exceptions in pages

    def watch(self, context: BrowserContext) -> None:
        for event, noted in self.events().items():
            context.on(event, noted)

    def ignore(self, context: BrowserContext) -> None:
        """Stop watching."""
        for event, noted in self.events().items():
            context.remove_listener(event, noted)

    def events(self) -> dict[str, Callable[..., None]]:
        """Return what notes each of a context's events."""
        return {"request": self.request, "response": self.response,
                "requestfailed": self.request_failed, "weberror": self.error}

    def request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname != "127.0.0.1":
            self.outside.append(request.url)

    def response(self, answer: Response) -> None:
        if answer.status >= 400:
            self.failed.append(f"{answer.status} {answer.url}")

    def request_failed(self, request: Request) -> None:
        self.failed.append(f"{request.failure} {request.url}")

    def error(self, error: WebError) -> None:
        self.errors.append(str(error.error))


def new_context(browser: Browser, height: int = VIEWPORT["height"]) -> BrowserContext:
    """Open a fresh browser profile, whose waits are as patient as the driver's.

    Args:
        browser: the running browser.
        height: the height of its pages, in pixels.
    """
    from tests.browser.driver import PATIENCE

    context = browser.new_context(viewport=VIEWPORT | {"height": height})
    context.set_default_timeout(PATIENCE * 1000)
    return context


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
def page(browser: Browser, traffic: Traffic) -> Iterator[Page]:
    """A page of a fresh browser profile. What it asks for is in the fixture `traffic`."""
    context = new_context(browser)
    traffic.watch(context)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def common_context(browser: Browser) -> Iterator[BrowserContext]:
    """One browser profile for many tests, whose cache has the scripts that a page loads again."""
    context = new_context(browser)
    yield context
    context.close()


@pytest.fixture(scope="module")
def common_traffic() -> Traffic:
    return Traffic()


@pytest.fixture(scope="session")
def first_page(common_context: BrowserContext) -> Page:
    """The page that stays open, with the JupyterLab loaded in it."""
    return common_context.new_page()


@pytest.fixture(scope="module")
def common_page(common_context: BrowserContext, first_page: Page, common_traffic: Traffic
                ) -> Iterator[Page]:
    """One page for all tests of a file. What it asks for is in the fixture `common_traffic`."""
    common_traffic.watch(common_context)
    yield first_page
    common_traffic.ignore(common_context)
    for page in common_context.pages:
        if page is not first_page:
            page.close()


@pytest.fixture(scope="session")
def screenshot() -> Callable[[Page, str], None]:
    """Save a page as NAME.png in the folder that $BROWSER_SCREENSHOTS names; without it, do
    nothing."""
    folder = os.environ.get("BROWSER_SCREENSHOTS")

    def save(page: Page, name: str) -> None:
        if folder:
            page.wait_for_timeout(SETTLING)
            page.screenshot(path=Path(folder, f"{name}.png"))

    return save
