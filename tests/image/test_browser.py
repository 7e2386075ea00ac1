"""As a student would: a browser at the published port, lab 03, a job, its loss, TensorBoard."""

import json
import re
from typing import NamedTuple

import pytest

from tests.browser.driver import code_cell, open_notebook, run_cell, until
from tests.browser.test_lab import curves, number_of, write

pytestmark = [pytest.mark.image, pytest.mark.browser, pytest.mark.timeout(900)]

LAB = "notebooks/03_multi_node.ipynb"
# All cells are in the page, not only those in view.
WHOLE = json.dumps({"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}})


class Server(NamedTuple):
    root: str
    token: str


def test_a_student_submits_lab_03s_job_and_sees_its_loss(container, page, traffic,
                                                         screenshot):
    server = Server(f"http://{container.outside()}", container.token())
    settings = ".cluster/jupyter/labconfig/default_setting_overrides.json"
    assert container.run(f"echo '{WHOLE}' > {settings}").returncode == 0
    open_notebook(page, server, LAB)
    for text in ("os.chdir", "from lab import check"):
        run_cell(page, number_of(page, text))
    assert "slurmnode[1-2]" in run_cell(page, number_of(page, "jobs.connect()")).inner_text()
    write(page, number_of(page, "define guess_milliseconds"), "guess_milliseconds = 300")
    run_cell(page, number_of(page, "guess_milliseconds = 300"))
    said = run_cell(page, number_of(page, "!sbatch code/dp_two_nodes.sh")).inner_text()
    assert re.search(r"Submitted batch job \d+", said)
    waiting = number_of(page, "job = jobs.wait()")
    until(page, lambda: "COMPLETED" in run_cell(page, waiting, 90).inner_text(), 240, "its end")
    said = run_cell(page, number_of(page, '!grep "elapsed time"')).inner_text()
    losses = [float(word) for word in re.findall(r"lm loss: ([\d.E+-]+)", said)]
    assert len(losses) == 15 and losses[-1] < losses[0] - 1
    run_cell(page, number_of(page, "times = [line.milliseconds for line in log"))
    run_cell(page, number_of(page, "plots.loss(first=log)"))
    page.locator("img[alt^='Training loss over samples']").wait_for(timeout=20_000)
    code_cell(page, number_of(page, "plots.loss(first=log)")).scroll_into_view_if_needed()
    screenshot(page, "image-lab-03")
    run_cell(page, number_of(page, "tensorboard.link()"))
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open TensorBoard").first.click()
    curves(opened.value, screenshot)
    assert opened.value.url.startswith(f"{server.root}/tensorboard") or (
        "/proxy/" in opened.value.url and opened.value.url.startswith(server.root))
    assert traffic.outside == [] and traffic.errors == []
