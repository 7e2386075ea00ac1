"""Lab 03 in a container, as a student does it in a browser: job, loss, TensorBoard."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import NamedTuple

from playwright.sync_api import Page

from tests.browser.driver import number_of, open_notebook, run_cell, until
from tests.browser.test_lab import curves, write

NAME = "03_multi_node"
# All cells are in the page, not only those in view.
WHOLE = json.dumps({"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}})
SETTINGS = "$LAB_HOME/.cluster/jupyter/labconfig/default_setting_overrides.json"


class Server(NamedTuple):
    """JupyterLab, as `tests.browser.driver` opens it."""

    root: str
    token: str = ""  # behind a hub its cookie lets in


def train(page: Page, server: Server,
          run: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
    """Up to the end of the first job. `run` is a shell in the container."""
    assert run(f"echo '{WHOLE}' > {SETTINGS}").returncode == 0
    open_notebook(page, server, f"notebooks/{NAME}.ipynb")
    for text in ("os.chdir", "from labkit import check"):
        run_cell(page, number_of(page, text))
    assert "slurmnode[1-2]" in run_cell(page, number_of(page, "jobs.connect()")).inner_text()
    write(page, number_of(page, "define guess_milliseconds"), "guess_milliseconds = 300")
    run_cell(page, number_of(page, "guess_milliseconds = 300"))
    said = run_cell(page, number_of(page, "!sbatch code/dp_two_nodes.sh")).inner_text()
    assert re.search(r"Submitted batch job \d+", said)
    waiting = number_of(page, "job = jobs.wait()")
    until(page, lambda: "COMPLETED" in run_cell(page, waiting).inner_text(), "its end")


def tensorboard(page: Page, screenshot: Callable[[Page, str], None]) -> str:
    """By the lab's link; returns the address it led to."""
    run_cell(page, number_of(page, "tensorboard.link()"))
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open TensorBoard").first.click()
    curves(opened.value, screenshot)
    return opened.value.url
