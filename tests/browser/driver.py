"""A user's actions in JupyterLab and TensorBoard, for tests that drive a browser.

Cells are counted among the code cells of the open notebook, from 0.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from playwright.sync_api import Frame, Locator, Page

from lab.jupyter import Jupyter

NOTEBOOK = ".jp-NotebookPanel:not(.lm-mod-hidden)"
PATIENCE = 240  # seconds: only ends a test whose page is stuck, however slow the machine is
# The notebook's own indicator says idle before there is a kernel; the status bar does not.
IDLE = re.compile(r"^(?!No Kernel).* \| Idle$")


def until(page: Page, done: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait while the browser keeps working. Raises AssertionError that names `what`.

    Args:
        page: the page that must keep working.
        done: returns whether the wait is over.
        what: completes "not within 240 s: ...".
        seconds: the safeguard, for a wait that may take even longer.
    """
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{shown(page)}"
        page.wait_for_timeout(100)  # not time.sleep: the page must go on


def shown(page: Page) -> str:
    """Return the end of the text of each frame, to tell a stuck page from a slow one."""
    return "\n".join(f"{frame.url}: ...{frame.locator('body').inner_text()[-1000:]}"
                     for frame in page.frames)


def open_lab(page: Page, jupyter: Jupyter, path: str = "", seconds: float = PATIENCE) -> None:
    """JupyterLab, at a file of its folder where `path` is given."""
    page.goto(f"{jupyter.root}/lab{'/tree/' if path else ''}{path}?reset&token={jupyter.token}")
    page.locator("#jp-main-dock-panel").wait_for(timeout=seconds * 1000)


def open_path(page: Page, path: str, seconds: float = PATIENCE) -> None:
    """Open a file in the JupyterLab that the page shows, with File > Open from Path."""
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^File$")).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Open from Path…$")).click()
    page.locator(".jp-Dialog input").fill(path)
    page.locator(".jp-Dialog input").press("Enter")
    page.locator(f"#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current[title*='Path: {path}']"
                 ).wait_for(timeout=seconds * 1000)


def open_notebook(page: Page, jupyter: Jupyter, path: str, seconds: float = PATIENCE,
                  reload: bool = True) -> None:
    """Open a notebook, and wait until its kernel is idle.

    Args:
        page: shows JupyterLab afterward.
        jupyter: the server.
        path: the notebook, relative to the server's folder.
        seconds: how long each step may take.
        reload: load JupyterLab even if the page already shows this server's. Loading takes
            several seconds of CPU time.
    """
    loaded = page.url.startswith(f"{jupyter.root}/lab") and not page.locator(".jp-Dialog").count()
    if loaded and not reload:
        open_path(page, path, seconds)
    else:
        open_lab(page, jupyter, path, seconds)
    page.locator(NOTEBOOK).wait_for(timeout=seconds * 1000)
    select = page.locator(".jp-Dialog button:has-text('Select')")

    def ready() -> bool:
        if select.count():  # a notebook that does not say which kernel it wants
            select.first.click()
        return page.locator("#jp-main-statusbar").get_by_text(IDLE).count() > 0

    until(page, ready, f"an idle kernel for {path}", seconds)


def code_cell(page: Page, n: int) -> Locator:
    return page.locator(f"{NOTEBOOK} .jp-CodeCell").nth(n)


def number_of(page: Page, text: str) -> int:
    """The one code cell which holds `text`."""
    sources = page.locator(f"{NOTEBOOK} .jp-CodeCell").evaluate_all(
        "all => all.map(one => one.textContent)")  # innerText would lay out the whole notebook
    (results,) = [n for n, source in enumerate(sources) if text in source]
    return results


def prompt(page: Page, n: int) -> str:
    """Return a code cell's prompt: "[ ]:" before it ran, "[*]:" while it runs, "[3]:" after."""
    # One query without layout: a locator's takes 30 ms of CPU time, and run_cell asks often.
    return page.evaluate("([cells, n]) => document.querySelectorAll(cells)[n]"
                         ".querySelector('.jp-InputPrompt').textContent.trim()",
                         [f"{NOTEBOOK} .jp-CodeCell", n])


def run_cell(page: Page, n: int) -> Locator:
    """Run a code cell, wait for its end, return its output area."""
    cell, before = code_cell(page, n), prompt(page, n)
    cell.scroll_into_view_if_needed()
    cell.locator(".jp-InputArea-editor").click(position={"x": 5, "y": 5})
    page.keyboard.press("Control+Enter")
    until(page, lambda: prompt(page, n) != before and re.search(r"\d", prompt(page, n)),
          f"the end of code cell {n}")
    return cell.locator(".jp-OutputArea")


def run_all(page: Page) -> None:
    """Run > Run All Cells; what waits for their end looks at failures() too."""
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()


def failures(page: Page) -> Locator:
    """Outputs of cells that failed. JupyterLab shows them as it shows stderr."""
    return page.locator(f"{NOTEBOOK} [data-mime-type='application/vnd.jupyter.stderr']",
                        has_text=re.compile("Traceback|✗"))


def wait_for_output(page: Page, text: str) -> Locator:
    """The first output of the open notebook that holds `text`."""
    output = page.locator(f"{NOTEBOOK} .jp-OutputArea-output", has_text=text).first
    output.wait_for(timeout=PATIENCE * 1000)
    return output


def profiler(page: Page) -> Frame:
    """The frame of TensorBoard's profiler tab, once a run is shown in it."""
    def frames() -> list[Frame]:
        return [one for one in page.frames if "plugin/pytorch_profiler" in one.url]

    until(page, lambda: frames() and frames()[0].locator("text=Configuration").count(),
          "a run in the profiler's tab")
    return frames()[0]


def choose(page: Page, frame: Frame, which: int, option: str) -> None:
    """Choose in one of the profiler's lists: 0 runs, 1 views, 2 workers."""
    frame.locator(".MuiSelect-root").nth(which).click()
    frame.locator("li[role=option]", has_text=re.compile(f"^{re.escape(option)}$")).click()
    page.wait_for_timeout(300)  # its animation
