"""The figure says in letters what its colors say, and always with the same bytes."""

import hashlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from pipeline_schedules import (
    Durations,
    ScheduleError,
    draw,
    draw_beside,
    gpipe,
    interleaved,
    one_f_one_b,
    simulate,
    zb_h1,
)


def labels(drawing):
    """The texts in the boxes, row by row."""
    (axes,) = drawing.figure.axes
    rows = {}
    for text in axes.texts:
        rows.setdefault(round(text.get_position()[1] // 0.62), []).append(
            text.get_text().replace("\n", ""))
    return [" ".join(row) for _, row in sorted(rows.items())]


def test_every_box_says_what_it_is():
    assert labels(draw(simulate(one_f_one_b(2, 3)))) == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    assert labels(draw(simulate(zb_h1(1, 2)))) == ["F0 B0 W0 F1 B1 W1"]
    assert labels(draw(simulate(interleaved(1, 1, 2)))) == ["F0.0 F0.1 B0.1 B0.0"]


def test_a_label_stays_in_its_box():
    drawing = draw(simulate(interleaved(4, 8, 2)))
    drawing.png()
    (axes,) = drawing.figure.axes
    boxes = [patch.get_window_extent() for patch in axes.patches]
    for text in axes.texts:
        extent = text.get_window_extent()
        assert any(box.x0 <= extent.x0 and extent.x1 <= box.x1 and box.y0 <= extent.y0
                   and extent.y1 <= box.y1 for box in boxes if box.width < 100), text.get_text()


def test_a_box_too_narrow_for_a_label_has_none():
    drawing = draw(simulate(one_f_one_b(2, 200)))
    assert labels(drawing) == []
    assert "F199" in drawing.alt


def test_forward_backward_and_weight_differ_without_color():
    axes = draw(simulate(zb_h1(1, 1))).figure.axes[0]
    _, forward, backward, _, band = axes.patches  # the first is the idle row behind them
    luminance = [sum(part * share for part, share in
                     zip(to_rgb(patch.get_facecolor()), (0.299, 0.587, 0.114), strict=True))
                 for patch in (forward, backward)]
    assert luminance[0] - luminance[1] > 0.12
    assert [bool(patch.get_hatch()) for patch in (forward, backward, band)] == [False, False, True]


def test_the_alternative_text_has_the_order_and_the_figures():
    alt = draw(simulate(one_f_one_b(2, 2), Durations(1, 1, 1)), "1F1B", "ms").alt
    assert alt == ("1F1B: 2 stages over time. total 9 ms; bubble 33.3% of the time; peak live "
                   "activations per stage 2, 1. Stage 0: F0 F1 B0 B1. Stage 1: F0 B0 F1 B1.")
    assert "5, 3 (of 1/2 stage each)" in draw(simulate(interleaved(2, 4, 2))).alt


def test_a_recorded_run_is_drawn_from_its_own_zero():
    drawing = draw({0: [("F", 0, 0, 1e3, 1e3 + 0.01)], 3: [("F", 0, 0, 1e3 + 0.01, 1e3 + 0.02)]})
    (axes,) = drawing.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0", "stage 3"]
    assert axes.get_xlim() == pytest.approx((0, 0.02))
    boxes = [(patch.get_x(), patch.get_width()) for patch in axes.patches]
    assert boxes[1] == pytest.approx((0, 0.01)) and boxes[3] == pytest.approx((0.01, 0.01))


def test_a_run_of_no_length_is_drawn():
    assert draw({0: [("F", 0, 0, 5.0, 5.0)]}).png()


def test_svg_and_png_are_files_that_open(tmp_path):
    drawing = draw(simulate(one_f_one_b(2, 2)))
    drawing.save(tmp_path / "one.svg")
    drawing.save(tmp_path / "one.png")
    root = ElementTree.fromstring((tmp_path / "one.svg").read_bytes())
    assert root.tag.endswith("svg")
    assert imread(tmp_path / "one.png").shape[2] == 4
    with pytest.raises(ScheduleError, match=r"one\.pdf: a figure is saved as \.svg or \.png"):
        drawing.save(tmp_path / "one.pdf")


@pytest.mark.slow
def test_the_same_schedule_gives_the_same_bytes_in_another_process():
    code = ("import hashlib; from pipeline_schedules import *; "
            "d = draw(simulate(zb_h1(3, 4)), 'ZB-H1'); "
            "print(hashlib.sha256(d.svg() + d.svg() + d.png()).hexdigest())")
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True, env={"PYTHONHASHSEED": "1"}).stdout
    here = draw(simulate(zb_h1(3, 4)), "ZB-H1")
    assert printed == hashlib.sha256(here.svg() + here.svg() + here.png()).hexdigest() + "\n"


def test_a_notebook_shows_the_picture_with_its_text():
    shown = draw(simulate(one_f_one_b(2, 2)), 'a "title"')._repr_html_()
    start = r'<img alt="a &quot;title&quot;: 2 stages.*" src="data:image/png;base64,'
    assert re.match(start, shown)


def test_a_schedule_is_drawn_as_it_is_written():
    written = ["F0 F1 B0 B1", ["F0", "B0", "F1", "B1"]]
    assert labels(draw(written)) == labels(draw(one_f_one_b(2, 2))) == [
        "F0 F1 B0 B1", "F0 B0 F1 B1"]
    with pytest.raises(ScheduleError, match="deadlock"):
        draw(["F0 B0 F1 B1", "F1 F0 B0 B1"])


def strips(drawing):
    """Return the number at the end of every stage's strip, and the strips' heights."""
    drawing.png()
    texts, heights = [], []
    for axes in drawing.figure.axes:
        texts += [text.get_text() for text in axes.texts if text.get_text().startswith("max")]
        heights += [one.get_paths()[0].get_extents().height for one in axes.collections]
    return texts, heights


def test_live_activations_are_a_strip_as_high_as_they_are_many():
    texts, heights = strips(draw(one_f_one_b(4, 8), live=True))
    assert texts == ["max 4", "max 3", "max 2", "max 1"]
    assert heights == pytest.approx([heights[3] * count for count in (4, 3, 2, 1)])
    assert strips(draw(one_f_one_b(4, 8))) == ([], [])


def test_several_are_drawn_on_one_scale_of_time_and_of_memory():
    both = draw_beside({"GPipe": gpipe(2, 4), "1F1B": one_f_one_b(2, 2)}, live=True)
    first, second = both.figure.axes
    assert first.get_xlim() == second.get_xlim() == (0, 15)
    assert first.get_position().width == second.get_position().width
    texts, heights = strips(both)
    assert texts == ["max 4", "max 4", "max 2", "max 1"]
    assert heights[0] == pytest.approx(2 * heights[2])
    # Four halves of a stage's activations are as much as two whole ones.
    _, heights = strips(draw_beside({"1F1B": one_f_one_b(2, 4), "2 chunks": interleaved(2, 2, 2)},
                                    live=True))
    assert heights == pytest.approx([heights[1] * count for count in (2, 1, 2, 2)])
    assert both.alt.startswith("GPipe: 2 stages") and "1F1B: 2 stages" in both.alt
    with pytest.raises(ScheduleError, match="no timelines"):
        draw_beside({})


def test_a_notebook_shows_a_wide_figure_in_its_own_size_and_scrolls():
    """Shrunk to the window, the labels of 64 micro-batches have 5 pixels."""
    wide = draw(simulate(one_f_one_b(4, 64)))
    assert wide.figure.get_figwidth() > 20
    assert re.search(r'<div style="overflow-x: auto"><img .* style="max-width: none; '
                     r'width: 2\d{3}px"></div>$', wide._repr_html_())
    assert "overflow" not in draw(simulate(one_f_one_b(2, 4)))._repr_html_()
