"""The curves and profiles of a run in a real browser, without internet, from a notebook's link."""

import json
from types import SimpleNamespace

import pytest

from tests.browser.driver import choose, open_notebook, profiler, run_cell, until

FLAGS = "--train-iters 5 --log-interval 1 --eval-iters 1 --profile-execution yes "


@pytest.fixture(scope="module")
def runs(home, train):
    """Two runs of two ranks each, with profiles, in the workspace."""
    for name, batch in (("small", 4), ("large", 8)):
        train(FLAGS + f"--profile-name {name} --global-batch-size {batch} "
                 f"--tensorboard-dir {home}/megatron/tensorboard/{name}", 2)
    return home


@pytest.fixture(scope="module")
def opened(common_page, proxied, runs):
    """A page with the profiler's tab of the TensorBoard that JupyterLab starts, and the frame."""
    page = common_page.context.new_page()
    page.goto(f"{proxied.root}/tensorboard/?token={proxied.token}#pytorch_profiler")
    yield page, profiler(page)
    page.close()


@pytest.fixture
def tab(opened, common_traffic):
    """It asks for nothing off this machine, and for nothing that there is not."""
    yield opened
    assert (common_traffic.outside, common_traffic.failed, common_traffic.errors) == ([], [], [])


def drawn(frame, selector):
    return frame.locator(selector).evaluate_all(
        "all => all.filter(one => one.getBoundingClientRect().width > 0).length")


VIEWS = {  # what is drawn in each of them, at least
    "Overview": {".pielayer .slice": 3, ".barlayer .point": 4, "text=Step Time Breakdown": 1},
    "Operator": {".pielayer .slice": 10, "text=aten::mm": 1, "text=View CallStack": 1},
    "Distributed": {".barlayer .point": 8, "text=gloo:all_reduce": 1, "text=run_small_gpu1": 1},
    "Memory": {".scatterlayer .trace": 1, "text=Peak Memory Usage": 1, "text=aten::": 1},
    "Module": {"canvas": 1, "text=Stage_0": 1, "text=TransformerLayer_1": 1},
}


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_drawn_without_internet(view, tab, screenshot):
    page, frame = tab
    choose(page, frame, 0, "small/run_small")
    choose(page, frame, 1, view)
    for selector, least in VIEWS[view].items():
        until(page, lambda s=selector, n=least: drawn(frame, s) >= n, f"{least} {selector}")
    screenshot(page, view)


def test_an_operator_s_call_stack_leads_to_the_trainer(tab):
    page, frame = tab
    choose(page, frame, 1, "Operator")
    frame.locator("text=View CallStack").first.click()
    frame.locator("text=View call frames").first.click()
    frame.locator("text=minimegatron/").first.wait_for()


def test_the_trace_shows_the_threads_of_a_rank(tab, screenshot):
    page, frame = tab
    choose(page, frame, 1, "Trace")
    until(page, lambda: any("trace_embedding" in one.url for one in page.frames), "the viewer")
    viewer = next(one for one in page.frames if "trace_embedding" in one.url)
    viewer.locator("text=pt_gloo_runloop").first.wait_for()
    until(page, lambda: drawn(viewer, "canvas") > 0, "the tracks")
    screenshot(page, "Trace")


def test_two_runs_are_compared(tab, screenshot):
    page, frame = tab
    frame.locator("text=DIFF").first.click()
    lists = frame.locator(".MuiSelect-root")
    until(page, lambda: lists.count() == 6, "six lists")
    for which, option in ((0, "small/run_small"), (1, "run_small_gpu0"), (2, "1"),
                          (3, "large/run_large"), (4, "run_large_gpu0"), (5, "1")):
        until(page, lambda w=which: "Mui-disabled" not in (lists.nth(w).get_attribute("class")),
              f"list {which}")
        choose(page, frame, which, option)
    until(page, lambda: drawn(frame, ".barlayer .point") > 2, "the comparison")
    screenshot(page, "Diff")


def notebook(home, name, *sources):
    """A notebook of code cells, as our labs are."""
    cells = [{"cell_type": "code", "id": f"c{n}", "metadata": {}, "execution_count": None,
              "outputs": [], "source": source} for n, source in enumerate(sources)]
    (home / "notebooks" / name).write_text(json.dumps({
        "nbformat": 4, "nbformat_minor": 5, "cells": cells,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}}))


@pytest.fixture
def direct(make_jupyter, runs):
    jupyter = make_jupyter(runs)
    return SimpleNamespace(root=jupyter.root, token=jupyter.token, refused=[])


LINKS = """\
from lablib import served
from lab import tensorboard
from labcore import workspace
log = workspace.home() / "megatron/logs/a job_1.txt"
log.write_text("the log of a job")
display(tensorboard.link(), tensorboard.link("profiler"), served.file_link(log, "Open the log"))"""


@pytest.mark.parametrize("front", [pytest.param("direct", marks=pytest.mark.stress), "proxied"])
def test_a_notebook_s_links_and_the_launcher_s_card_open_this_workspace_s_runs(
        front, request, common_page, runs, common_traffic, screenshot):
    page, traffic = common_page, common_traffic
    jupyter = request.getfixturevalue(front)
    notebook(runs, "links.ipynb", LINKS)
    open_notebook(page, jupyter, "notebooks/links.ipynb", reload=False)
    links = run_cell(page, 0)
    screenshot(page, f"links-{front}")
    follow(page, links, jupyter, screenshot, front)
    assert traffic.outside == [] and traffic.errors == [] and jupyter.refused == []
    assert [one for one in traffic.failed if "/tensorboard/" in one] == []
    page.locator("#jp-main-dock-panel .lm-TabBar-addButton").first.click()
    card = page.locator(".jp-LauncherCard:visible", has_text="TensorBoard")
    card.wait_for()
    screenshot(page, f"launcher-{front}")
    with page.context.expect_page() as opened:
        card.click()
    opened.value.locator("text=TensorBoard").first.wait_for()
    opened.value.close()


def follow(page, links, jupyter, screenshot, name):
    """Click each of the three; what opens is this workspace's, below the server's root."""
    def opened(text):
        with page.context.expect_page() as new:
            links.locator(f"text={text}").click()
        assert new.value.url.startswith(f"{jupyter.root}/")
        return new.value

    curves = opened("Open TensorBoard")
    curves.locator("text=lm loss").first.wait_for()
    screenshot(curves, f"curves-{name}")
    curves.close()
    profiles = opened("Open the profiler")
    frame = profiler(profiles)
    until(profiles, lambda: drawn(frame, ".pielayer .slice") > 0, "the overview")
    screenshot(profiles, f"profiler-{name}")
    profiles.close()
    log = opened("Open the log")
    log.locator("text=the log of a job").wait_for()
    log.close()


@pytest.mark.stress
def test_the_links_work_in_notebook_7_too(page, runs, proxied, traffic, screenshot):
    notebook(runs, "links.ipynb", LINKS)
    page.goto(f"{proxied.root}/notebooks/notebooks/links.ipynb?token={proxied.token}")
    page.locator(".jp-CodeCell").first.wait_for()
    links = page.locator(".jp-CodeCell .jp-OutputArea")

    def shown():
        page.locator(".jp-CodeCell .jp-InputArea-editor").first.click(position={"x": 5, "y": 5})
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(1000)
        return links.locator("text=Open the log").count()

    until(page, shown, "the links")
    follow(page, links, proxied, screenshot, "notebook7")
    assert traffic.outside == [] and proxied.refused == []


def test_a_request_that_would_leave_this_machine_is_stopped_and_seen(page, traffic):
    page.set_content("<img src='http://example.com/x.png'>")
    until(page, lambda: traffic.failed, "a failed request")
    assert traffic.outside == ["http://example.com/x.png"]
    assert "example.com" in traffic.failed[0]
