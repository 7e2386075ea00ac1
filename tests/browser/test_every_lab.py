"""Every lab as a student first meets it: opened in JupyterLab, and run without an answer."""

import re

import pytest

from labkit.build.prose import elements
from tests.browser.driver import NOTEBOOK, failures, open_notebook, prompt, run_all, until
from tests.labs.test_labs import each_lab, lab_of

TO_DO = re.compile("Your turn|still waits for your answer")
pytestmark = [pytest.mark.cluster, pytest.mark.stress, pytest.mark.timeout(300)]


@each_lab  # make test opens lab 03 (test_lab.py) and runs the cells of all (labs/test_run.py)
def test_a_released_lab_is_whole_and_stops_at_its_first_question(path, common_page, course_jupyter,
                                                                 common_traffic, screenshot):
    page = common_page
    open_notebook(page, course_jupyter, f"notebooks/{path.stem}.ipynb", reload=False)
    texts = [cell.source for cell in lab_of(path).cells if cell.kind == "markdown"]
    figures = [part for text in texts for part in elements(text) if part.kind == "image"]
    pictures = page.locator(f"{NOTEBOOK} .jp-MarkdownCell img")
    until(page, lambda: pictures.count() == len(figures), f"{len(figures)} figures")
    until(page, lambda: all(pictures.evaluate_all("all => all.map(one => one.naturalWidth > 0)")),
          "whole pictures")
    assert all(pictures.evaluate_all("all => all.map(one => one.alt.length > 0)"))
    run_all(page)
    said = page.locator(f"{NOTEBOOK} .jp-OutputArea-output", has_text=TO_DO)
    until(page, said.count, "what is to be done at the first question")
    said.first.scroll_into_view_if_needed()
    screenshot(page, f"released-{path.stem}")
    last = page.locator(f"{NOTEBOOK} .jp-CodeCell").count() - 1
    until(page, lambda: prompt(page, last) == "[ ]:", "that nothing below it runs")
    assert said.count() == failures(page).count() == 1
    assert page.locator(".jp-Dialog").count() == 0
    assert common_traffic.outside == [] and common_traffic.errors == []
