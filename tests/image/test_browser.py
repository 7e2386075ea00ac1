"""A student's path: a browser at the published port, lab 03, a job, its loss, TensorBoard."""

import re

import pytest

from tests.browser.driver import code_cell, number_of, run_cell
from tests.browser.test_lab import ends
from tests.image import lab_03

pytestmark = [pytest.mark.image, pytest.mark.browser, pytest.mark.timeout(900)]


def test_a_student_submits_lab_03s_job_and_sees_its_loss(container, page, traffic,
                                                         screenshot):
    server = lab_03.Server(f"http://{container.outside()}", container.token())
    lab_03.train(page, server, container.run)
    log = container.run("cat $LAB_HOME/megatron/logs/dp_two_nodes_*.txt").stdout
    losses = [float(word) for word in re.findall(r"lm loss: ([\d.E+-]+)", log)]
    assert len(losses) == 15 and losses[-1] < losses[0] - 1
    run_cell(page, number_of(page, '!grep "world size"'))
    run_cell(page, number_of(page, "!sbatch code/dp_single_node.sh"))
    ends(page, "single = jobs.wait()")
    run_cell(page, number_of(page, "plots.loss("))
    page.locator("img[alt^='Training loss over samples']").wait_for()
    code_cell(page, number_of(page, "plots.loss(")).scroll_into_view_if_needed()
    screenshot(page, "image-lab-03")
    address = lab_03.tensorboard(page, screenshot)
    assert address.startswith(f"{server.root}/tensorboard") or (
        "/proxy/" in address and address.startswith(server.root))
    assert traffic.outside == [] and traffic.errors == []
