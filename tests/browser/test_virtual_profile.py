"""The profile of virtual GPUs in the tab of the profiler, view by view."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.driver import choose, profiler, until
from tests.browser.fixtures import new_context
from tests.browser.test_tensorboard import drawn
from tests.virtualgpu.export.traced import run

PWNED = "<img src=x onerror='top.pwned = window.pwned = 1'>"
LAB = Path(sys.executable).with_name("lab")
VIEWS = {  # what is drawn in each of them, at least
    "Overview": {"text=Tesla V100-SXM2-16GB (virtual)": 1, "text=GPU Utilization": 1,
                 ".pielayer .slice": 2, ".barlayer .point": 4, "text=Communication": 1,
                 "text=Automatic Mixed Precision": 1, "text=Gradient Accumulation": 1},
    "Operator": {".pielayer .slice": 10, "text=aten::mm": 1, "text=Tensor Cores Eligible": 1},
    "GPU Kernel": {".pielayer .slice": 6, "text=volta_sgemm": 1, "text=Not Using Tensor Cores": 1},
    "Distributed": {".barlayer .point": 8, "text=nccl:all_reduce": 1, "text=run_gpt2_gpu3": 1,
                    "text=Tesla V100-SXM2-16GB (virtual)": 1},
    "Memory": {".scatterlayer .trace": 1, "text=Peak Memory Usage": 1, "text=aten::": 1},
    "Module": {"canvas": 1, "text=Stage_0": 1, "text=TransformerLayer_1": 1},
}

# Text of each box of the overview that is wider inside than outside.
CLIPPED = """() => [...document.querySelectorAll(".MuiCard-root, .MuiCard-root div")]
    .filter(box => box.clientWidth && box.scrollWidth > box.clientWidth).map(box => box.innerText)
"""


@pytest.fixture(scope="module")
def tensorboard(chromium, dataset, tmp_path_factory):
    """Its address behind a prefix, started as from a terminal."""
    # All layers are drawn alike, and fewer of them are read and drawn sooner.
    traced = run(dataset, tmp_path_factory.mktemp("traced"), "--num-layers 4")
    for path in traced.rglob("*.pt.trace.json"):
        trace = json.loads(path.read_text())
        for properties in trace["deviceProperties"]:
            properties["name"] += PWNED
        for event in trace["traceEvents"]:
            if event.get("cat") in ("kernel", "cpu_op") and "gemm" in event["name"]:
                event["name"] += PWNED
        path.write_text(json.dumps(trace))
    process = subprocess.Popen(
        [LAB, "tensorboard", "--logdir", traced, "--path-prefix", "/user/x/tensorboard"],
        text=True, stdout=subprocess.PIPE, env=os.environ)
    address = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)))
    yield address.group(0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.fixture(scope="module")
def tab(browser, tensorboard):
    """The tab of one page for all views: each reads the same traces."""
    page = new_context(browser, 1300).new_page()
    page.goto(f"{tensorboard}#pytorch_profiler")
    yield page, profiler(page)
    page.context.close()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_of_virtual_gpus_is_filled(view, tab, screenshot):
    page, frame = tab
    choose(page, frame, 1, view)
    for selector, least in VIEWS[view].items():
        until(page, lambda s=selector, n=least: drawn(frame, s) >= n, f"{least} {selector}")
    # The texts of a trace stay text.
    assert not frame.locator("img[src=x]").count() and not page.evaluate("window.pwned")
    screenshot(page, f"virtual-{view.replace(' ', '-')}")


@pytest.mark.browser
@pytest.mark.slow
def test_nothing_in_the_overview_is_clipped_in_a_narrow_window(tab, screenshot):
    page, frame = tab
    usual = page.viewport_size
    page.set_viewport_size({**usual, "width": 1280})
    choose(page, frame, 1, "Overview")
    for selector, least in VIEWS["Overview"].items():
        until(page, lambda s=selector, n=least: drawn(frame, s) >= n, f"{least} {selector}")
    until(page, lambda: not frame.evaluate(CLIPPED), "boxes that fit their texts")
    screenshot(page, "virtual-narrow-Overview")
    page.set_viewport_size(usual)


@pytest.mark.browser
@pytest.mark.slow
def test_the_trace_view_shows_streams_and_the_card_s_name(tab, screenshot):
    page, frame = tab
    choose(page, frame, 1, "Trace")
    until(page, lambda: any("trace_embedding" in one.url for one in page.frames), "the viewer")
    viewer = next(one for one in page.frames if "trace_embedding" in one.url)
    for text in ("stream 7: compute", "autograd (backward)", "rank 0: virtual v100-sxm2-16gb"):
        viewer.locator(f"text={text}").first.wait_for(state="attached")
    until(page, lambda: drawn(viewer, "canvas") > 0, "the tracks")
    screenshot(page, "virtual-Trace")
