"""An author opens a lab's source in JupyterLab as a notebook."""

import re
import shutil

import pytest

from labcore import workspace
from tests.browser.driver import NOTEBOOK, open_lab, until

SOURCE = "solutions/03_multi_node.py"


@pytest.mark.stress  # a repeat of test_lab.py's notebook, from a file that lab build reads, too
def test_a_source_opens_as_a_notebook(common_page, home, proxied, common_traffic, screenshot):
    page = common_page
    (home / "solutions").mkdir()
    shutil.copy(workspace.CHECKOUT / SOURCE, home / SOURCE)
    open_lab(page, proxied, "solutions")
    page.locator(".jp-DirListing-item", has_text="03_multi_node.py").click(button="right")
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Open With$")).hover()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Notebook$")).first.click()
    page.locator(NOTEBOOK).wait_for()
    cells = page.locator(f"{NOTEBOOK} .jp-CodeCell")
    until(page, lambda: cells.count() > 10, "cells")
    sources = "\n".join(cells.evaluate_all("all => all.map(one => one.innerText)"))
    screenshot(page, "author")
    assert "!sbatch code/dp_two_nodes.sh" in sources and "%%writefile code/my_" in sources
    assert page.locator(f"{NOTEBOOK} .jp-RawCell").count() > 10  # the mutants
    assert common_traffic.outside == [] and common_traffic.errors == []
