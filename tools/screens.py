"""Run cells of a notebook in a browser, and save what the page shows: for tools/pictures.py."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Frame, Page

from tests.browser import driver

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
SCREENS = ROOT / "images" / "src"  # whose modules draw arrows on them
MOST_BYTES = 150_000
WIDTH = 1300
COLORS = 96  # of a picture; screens have few, and a small palette makes small files


def save(page: Page, name: str, height: int = 860, width: int = WIDTH) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(500)
    write(FOLDER / f"{name}.png", page.screenshot())


def save_part(page: Page, name: str, left: int, top: int, width: int, height: int) -> None:
    """Save a part of a page whose window stays as it is, for a module in images/src."""
    page.wait_for_timeout(1500)  # charts are drawn in steps
    part = FloatRect(x=left, y=top, width=width, height=height)
    write(SCREENS / f"{name}.png", page.screenshot(clip=part))


def write(path: Path, screen: bytes) -> None:
    """Write a screenshot with few colors. Raises SystemExit if its file is too large."""
    with Image.open(io.BytesIO(screen)) as picture:
        small = picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size / 1000:.0f} kB")
    if size > MOST_BYTES:
        raise SystemExit(f"{path}: {size} bytes are more than {MOST_BYTES}")


def run(page: Page, *texts: str) -> None:
    for text in texts:
        driver.run_cell(page, driver.number_of(page, text))


def put_at_top(page: Page, text: str, more: int = 0) -> None:
    """Scroll the notebook so that what holds `text` is at its top, `more` pixels further down."""
    page.locator(f"{driver.NOTEBOOK} .jp-Cell", has_text=text).first.evaluate(
        "one => one.scrollIntoView({block: 'start'})")
    page.locator(f"{driver.NOTEBOOK} .jp-WindowedPanel-outer").evaluate(
        "(panel, more) => panel.scrollBy(0, more)", more)
    page.wait_for_timeout(500)


def wait(page: Page, text: str) -> None:
    cell = driver.number_of(page, text)
    driver.until(page, lambda: "COMPLETED" in driver.run_cell(page, cell).inner_text(),
                 f"the end of the job of {text}")


def open_profiler(page: Page, name: str) -> tuple[Page, Frame]:
    """Open the profiler's tab at a run; return its page, and the frame with the views."""
    run(page, 'tensorboard.link("profiler")')
    with page.context.expect_page() as opened:
        page.locator(f"{driver.NOTEBOOK} a", has_text="Open the profiler").click()
    frame = driver.profiler(opened.value)
    if frame.locator(".MuiSelect-root").first.inner_text() != name:
        driver.choose(opened.value, frame, 0, name)
    frame.locator(".pielayer .slice").first.wait_for(timeout=60_000)
    opened.value.wait_for_timeout(2000)
    return opened.value, frame
