"""The slider's page: whole without a script, one file, and its data says what the figure says.
(tests/browser/test_steps.py moves it.)"""

import html
import json
import re
from html.parser import HTMLParser

import pytest

from pipeline_schedules import (
    ScheduleError,
    draw_steps,
    gpipe,
    one_f_one_b,
    simulate,
    zb_h1,
)


def data(steps):
    return json.loads(html.unescape(re.search(r'data-steps="([^"]*)"', steps.html())[1]))


def test_every_start_and_end_is_a_step():
    result = data(draw_steps(one_f_one_b(2, 2), unit="ms"))
    assert result["times"] == sorted({
        time for spans in simulate(one_f_one_b(2, 2)).spans.values()
        for span in spans for time in (span.start, span.end)})
    assert result["unit"] == " ms" and 0 < result["left"] < result["right"] < 1


def test_a_stage_s_spans_say_what_they_need_elsewhere():
    first, last = data(draw_steps(one_f_one_b(2, 2)))["stages"]
    assert [span[0] for span in first["spans"]] == ["F0", "F1", "B0", "B1"]
    assert [span[3] for span in first["spans"]] == ["", "", "B0 of stage 1", "B1 of stage 1"]
    assert [span[3] for span in last["spans"]] == ["F0 of stage 0", "", "F1 of stage 0", ""]


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(3, 4), zb_h1(3, 4)])
def test_live_activations_rise_to_the_peak_and_fall_to_none(schedule):
    peaks = simulate(schedule).peak_live
    for stage, peak in zip(data(draw_steps(schedule))["stages"], peaks, strict=True):
        assert max(count for _, count in stage["live"]) == peak
        assert stage["live"][-1][1] == 0


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links, self.alt, self.rows = [], [], "", 0

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.links += [given[name] for name in ("src", "href") if name in given]
        self.alt = given.get("alt", self.alt)
        self.rows += tag == "tr" and "data-stage" in given
        if tag not in ("img", "input", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(tmp_path):
    steps = draw_steps(one_f_one_b(2, 2), 'a "title" <b>')
    steps.save(tmp_path / "steps.html")
    tags = Tags()
    tags.feed((tmp_path / "steps.html").read_text())
    assert tags.open == [] and tags.rows == 2
    assert all(link.startswith("data:image/png;base64,") for link in tags.links)
    assert tags.alt == steps.drawing.alt == repr(steps) and "F0 F1 B0 B1" in tags.alt
    assert steps._repr_html_() == steps.html() == draw_steps(one_f_one_b(2, 2),
                                                             'a "title" <b>').html()
    with pytest.raises(ScheduleError, match=r"saved as \.html"):
        steps.save(tmp_path / "steps.svg")


def test_without_a_script_the_end_stands_there():
    page = draw_steps(one_f_one_b(2, 2), unit="ms").html()
    assert "<th>0</th><td>done</td><td>0</td><td>3 ms</td>" in page
    assert 'data-curtain style="display:none' in page


def test_too_many_steps_are_refused():
    with pytest.raises(ScheduleError, match="too many for a slider"):
        draw_steps({0: [("F", k, 0, k, k + 1) for k in range(5_000)]})
