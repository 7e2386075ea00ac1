"""A student works through the lab in a real browser: reads, submits a job, follows the links."""

import re

import pytest

from labcore import shipping, workspace
from tests.browser.driver import (
    NOTEBOOK,
    choose,
    code_cell,
    failures,
    number_of,
    open_notebook,
    profiler,
    run_all,
    run_cell,
    until,
)
from tests.jobs import small

LAB = "notebooks/03_multi_node.ipynb"
WORKED = "notebooks/worked/03_multi_node.ipynb"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def broken_pictures(page):
    return page.locator(f"{NOTEBOOK} img").evaluate_all(
        "all => all.filter(one => !one.complete || !one.naturalWidth).map(one => one.src)")


def test_a_student_reads_the_lab_answers_and_looks_at_the_worked_notebook(
        common_page, course_jupyter, common_traffic, screenshot):
    page = common_page
    open_notebook(page, course_jupyter, LAB, reload=False)
    figures = (workspace.CHECKOUT / LAB).read_text().count("](../images/")
    until(page, lambda: page.locator(f"{NOTEBOOK} img").count() == figures, "the figures")
    until(page, lambda: not broken_pictures(page), "whole pictures")
    screenshot(page, "lab-top")
    for text in ("os.chdir", "from labkit import check", "jobs.connect()"):
        run_cell(page, number_of(page, text))
    assert "slurmnode" in code_cell(page, number_of(page, "jobs.connect()")).inner_text()
    run_cell(page, number_of(page, "def stragglers"))
    said = run_cell(page, number_of(page, 'check("stragglers")')).inner_text()
    assert "still waits for your answer" in said
    code_cell(page, number_of(page, "def stragglers")).scroll_into_view_if_needed()
    screenshot(page, "lab-first-exercise")
    gets_a_hint_then_passes(page, screenshot)
    page.locator(f"{NOTEBOOK} a", has_text="worked notebook").first.click()
    page.locator(NOTEBOOK, has_text="return slow, max(usual) - min(usual) if").first.wait_for()
    screenshot(page, "lab-worked")
    assert common_traffic.outside == [] and common_traffic.errors == []


def write(page, n, text):
    """Replace a code cell's source, as a student who types."""
    code_cell(page, n).locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def gets_a_hint_then_passes(page, screenshot):
    """A wrong answer gets its hint, and the right one passes."""
    answer, check = number_of(page, "def stragglers"), number_of(page, 'check("stragglers")')
    late = ("def stragglers(compute, communication):\n"
            "    usual, times = ([sorted(steps)[len(steps) // 2] for steps in each]\n"
            "                    for each in (compute, {0}))\n"
            "    slow = [rank for rank, time in enumerate(times) if time > 1.1 * min(times)]\n"
            "    return slow, max(usual) - min(usual) if slow else 0.0")
    write(page, answer, late.format("communication"))
    run_cell(page, answer)
    said = run_cell(page, check).inner_text()
    assert "these ranks are the victims" in said
    page.locator(f"{NOTEBOOK} h3", has_text="Exercise 2:").scroll_into_view_if_needed()
    screenshot(page, "lab-hint")
    write(page, answer, late.format("compute"))
    run_cell(page, answer)
    assert "stragglers: right in 4 cases" in run_cell(page, check).inner_text()


@pytest.fixture
def small_jobs(course):
    """The lab's first jobs with less to do: what is tested is how a notebook shows them."""
    less = small.MODEL | {"--train-iters 100": "--train-iters 20"}
    with small.scripts(course.home, "dp_two_nodes", "dp_single_node", replaced=less):
        yield


@pytest.mark.stress  # tests/labs runs these cells, tests/browser/test_tensorboard.py the link
def test_a_student_submits_a_job_and_sees_its_curves(
        common_page, course_jupyter, course, small_jobs, warm, common_traffic, screenshot):
    page = common_page
    open_notebook(page, course_jupyter, WORKED, reload=False)
    for text in ("os.chdir", "from labkit import check", "jobs.connect()", "guess_milliseconds =",
                 "!sbatch code/dp_two_nodes.sh"):
        submitted = run_cell(page, number_of(page, text)).inner_text()
    job = re.search(r"Submitted batch job (\d+)", submitted).group(1)
    ends(page, "job = jobs.wait()")
    assert "world size: 4" in run_cell(page, number_of(page, "!grep \"world size\"")).inner_text()
    run_cell(page, number_of(page, "!sbatch code/dp_single_node.sh"))
    ends(page, "single = jobs.wait()")
    run_cell(page, number_of(page, "plots.loss("))
    page.locator("img[alt^='Training loss over samples']").wait_for()
    screenshot(page, "lab-loss")
    run_cell(page, number_of(page, "tensorboard.link()"))
    with page.context.expect_page() as opened:
        page.locator(f"{NOTEBOOK} a", has_text="Open TensorBoard").click()
    curves(opened.value, screenshot)
    assert common_traffic.outside == [] and common_traffic.errors == []
    assert (course.home / f"megatron/logs/dp_two_nodes_{job}.txt").is_file()


def ends(page, text):
    """Wait until the job of the cell that holds `text` is over."""
    waiting = number_of(page, text)
    until(page, lambda: "COMPLETED" in run_cell(page, waiting).inner_text(), "its end")


def curves(page, screenshot):
    """TensorBoard shows this run's loss."""
    page.locator("text=lm loss").first.wait_for()
    page.locator("text=dp_two_nodes").first.wait_for()
    screenshot(page, "lab-scalars")


@pytest.mark.stress  # tests/browser/test_virtual_profile.py reads the views, lab 03 profiles
def test_a_student_profiles_virtual_gpus_and_reads_the_views(
        common_page, course_jupyter, common_traffic, screenshot):
    page = common_page
    open_notebook(page, course_jupyter, WORKED)
    for text in ("os.chdir", "from labkit import check", "jobs.connect()",
                 "#SBATCH --job-name=my_two_nodes", "--profile-name four"):
        run_cell(page, number_of(page, text))
    ends(page, "four = jobs.wait()")
    said = run_cell(page, number_of(page, "!grep -h \"NCCL INFO Channel 00\"")).inner_text()
    assert "via P2P/IPC" in said and "[send] via NET/Socket/0" in said
    assert "(1, 2, 'NET')" in said
    run_cell(page, number_of(page, "tensorboard.link(\"profiler\")"))
    with page.context.expect_page() as opened:
        page.locator(f"{NOTEBOOK} a", has_text="Open the profiler").click()
    views(opened.value, screenshot)
    assert common_traffic.outside == [] and common_traffic.errors == []


def views(page, screenshot):
    """The profiler's tab shows all four ranks of this run, in every view that the lab names, and
    in the overview what the lab compares. (Its figures are other ones: this course's vocabulary
    is a small one.)"""
    frame = profiler(page)
    for text in ("Tesla V100-SXM2-16GB (virtual)", "GPU Utilization", "0.0 %", "Execution Summary",
                 "Communication", "Performance Recommendation"):
        frame.locator(f"text={text}").first.wait_for()
    for view, selector in (("Overview", ".pielayer .slice"), ("Distributed", ".barlayer .point"),
                           ("Memory", ".scatterlayer .trace"), ("GPU Kernel", "text=volta_sgemm")):
        if view != "Overview":
            choose(page, frame, 1, view)
        until(page, lambda s=selector: frame.locator(s).count(), f"the view {view}")
        screenshot(page, f"lab-{view.lower().replace(' ', '-')}")
        if view == "Distributed":
            for rank in range(4):
                label = frame.locator(f"text=run_four_gpu{rank}").first
                label.wait_for(state="attached")
    choose(page, frame, 1, "Trace")
    until(page, lambda: any("trace_embedding" in one.url for one in page.frames), "the trace")
    viewer = next(one for one in page.frames if "trace_embedding" in one.url)
    viewer.locator("canvas").first.wait_for()
    screenshot(page, "lab-trace")


@pytest.mark.stress
def test_the_worked_notebook_runs_from_the_first_to_the_last_cell(
        common_page, course_jupyter, course, screenshot):
    page = common_page
    shipping.make_workspace(course.home)
    open_notebook(page, course_jupyter, WORKED)
    run_all(page)
    last = number_of(page, "!rm -rf megatron/checkpoints/dp_two_nodes")
    until(page, lambda: re.search(r"\[\d+\]", code_cell(page, last).inner_text())
          or failures(page).count(), "the end", 400)
    assert not failures(page).count(), failures(page).first.inner_text()
    assert page.locator(".jp-Dialog").count() == 0
    screenshot(page, "lab-end")
