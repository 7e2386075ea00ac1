"""A job's report in a real browser: it asks for nothing, fits, and is readable in the dark."""

import pytest

from job_monitor import page as report
from job_monitor import timeline
from pipeline_schedules import traces
from tests.job_monitor.samples import VIRTUAL, job, out_of_memory, take, virtual_file
from tests.job_monitor.test_timeline import RANKS


@pytest.fixture
def address(tmp_path):
    files = [virtual_file(number) for number in range(4)]
    taken = take(tmp_path, job("FAILED", command="code/a.sh " + "--lr 1 " * 60),
                 out_of_memory(2), files)
    lanes = timeline.lanes(traces.perfetto(RANKS)["traceEvents"])
    path = tmp_path / "report.html"
    path.write_text(report.render_page(taken, "#!/bin/bash\n" + "x" * 400, [{"JobID": "7"}],
                                       lanes, "", "2026-01-01 00:00"))
    return path.as_uri()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 400)])
def test_a_report_is_whole_by_itself(page, traffic, screenshot, address, scheme, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(address)
    screenshot(page, f"report-{scheme}-{width}")
    assert [one for one in traffic.outside if one != address] == []
    assert (traffic.failed, traffic.errors, said) == ([], [], [])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("svg .line").first.is_visible()
    assert page.get_by_text(f"Modeled: {VIRTUAL}.").count() >= 4
    paper, ink = page.evaluate("""() => {
        const style = getComputedStyle(document.body);
        return [style.backgroundColor, style.color].map(
            one => one.match(/\\d+/g).map(Number).slice(0, 3).reduce((a, b) => a + b))}""")
    assert (paper > 600 > 200 > ink) if scheme == "light" else (ink > 600 > 200 > paper)


def test_a_click_widens_the_timeline_and_shows_one_nodes_ranks(page, address):
    page.goto(address)
    lanes, passes = page.locator(".timeline .lane"), page.locator(".timeline .forward")
    ranks, narrow = lanes.count(), passes.first.bounding_box()["width"]
    page.locator("label", has_text="4x").click()
    assert passes.first.bounding_box()["width"] > 3 * narrow
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("label[for=node2]").click()
    assert 0 < lanes.filter(visible=True).count() < ranks
