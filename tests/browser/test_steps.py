"""The slider under a schedule's figure: in JupyterLab, and in a notebook exported as HTML."""

import subprocess
import sys

import nbformat
import pytest
from nbformat import v4

from tests.browser.driver import open_notebook, run_cell, until

CELL = ("from pipeline_schedules import draw_steps, one_f_one_b\n"
        "draw_steps(one_f_one_b(2, 2), '1F1B', 'ms')")
NAME = "steps.ipynb"
# What stage 0 does, keeps and has waited for. Forwards take 1 ms, backwards 2.
ROWS = {0: ["runs F0", "1", "0 ms"], 2: ["idle before B0, which needs B0 of stage 1", "2", "0 ms"],
        7: ["done", "0", "3 ms"]}


@pytest.fixture(scope="module")
def jupyter(home, proxied):
    notebook = v4.new_notebook(cells=[v4.new_code_cell(CELL)], metadata={"kernelspec": {
        "name": "python3", "display_name": "Python 3", "language": "python"}})
    nbformat.write(notebook, home / NAME)
    return proxied


def look(figure, page):
    """Move the slider by its value, by a button, and by the player; look at what is said."""
    slider, first = figure.locator("input"), figure.locator("[data-stage='0'] td")
    curtain = figure.locator("[data-curtain]")
    assert slider.get_attribute("max") == "7" and not curtain.is_visible()
    for at, said in ROWS.items():
        slider.fill(str(at))
        assert first.all_inner_texts() == said, at
        assert curtain.is_visible() == (at != 7)
        assert figure.locator("output").inner_text().startswith(f"step {at} of 7, time ")
    slider.fill("2")
    box, picture = curtain.bounding_box(), figure.locator("img").bounding_box()
    left, right = (float(figure.evaluate(f"one => JSON.parse(one.dataset.steps).{side}"))
                   for side in ("left", "right"))
    assert (box["x"] - picture["x"]) / picture["width"] == pytest.approx(
        left + (right - left) * 2 / 9, abs=0.01)  # of 9 ms, 2 have passed
    figure.get_by_label("one step on").click()
    assert figure.locator("output").inner_text() == "step 3 of 7, time 4 ms"
    figure.get_by_text("play").click()
    until(page, lambda: slider.input_value() == "7", "the player at the end")
    assert figure.get_by_text("play").is_visible()


@pytest.mark.stress  # the exported notebook has the same script
def test_the_slider_moves_in_jupyterlab(common_page, jupyter, common_traffic, screenshot):
    page = common_page
    open_notebook(page, jupyter, NAME, reload=False)
    figure = run_cell(page, 0).locator("figure[data-steps]")
    look(figure, page)
    figure.locator("input").fill("3")
    screenshot(page, "steps")
    assert common_traffic.outside == [] and common_traffic.errors == []


def test_the_slider_moves_in_an_exported_notebook(page, jupyter, home, traffic, screenshot):
    done = subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", "--template", "basic",
         str(home / NAME)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    page.goto((home / "steps.html").as_uri())
    look(page.locator("figure[data-steps]"), page)
    screenshot(page, "steps-exported")
    assert traffic.errors == [] and [one for one in traffic.outside if "file:" not in one] == []
