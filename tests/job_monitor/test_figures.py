"""The figures of a report: points within the frame, extremes kept, outliers marked."""

import xml.etree.ElementTree as ET

import pytest

from job_monitor import figures


@pytest.mark.parametrize("values", [
    [5.0], [5.0, 5.0], [0.0], [1e-9, 2e-9], [1e12, -1e12], [1.0, float("nan"), 3.0],
    [float("inf"), 1.0], [900.0, *[10.0 + n % 3 for n in range(50)]], list(range(5000))])
def test_figures_stay_within_their_frame(values):
    drawn = figures.line([(float(n), value) for n, value in enumerate(values)], "x", "y", "words")
    root = ET.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    points = [tuple(map(float, point.split(","))) for one in root.iter(f"{space}polyline")
              for point in one.get("points").split()]
    points += [(float(one.get("cx")), float(one.get("cy"))) for one in root.iter(f"{space}circle")]
    assert points and len(points) <= 2000
    assert all(figures.LEFT <= x <= figures.WIDTH - figures.RIGHT + 0.1 for x, _ in points)
    assert all(figures.TOP <= y <= figures.HEIGHT - figures.BOTTOM + 0.1 for _, y in points)
    assert root.get("aria-label") == "words"


def test_a_slow_first_step_does_not_flatten_the_others():
    assert figures.axis_top([900.0, *[10.0] * 50]) == 15.0
    assert figures.axis_top([10.0, 12.0, 20.0]) == 20.0
    drawn = figures.line([(n, 900.0 if n == 0 else 10.0) for n in range(50)], "x", "y", "words")
    assert 'class="beyond"' in drawn and "x 0: 900" in drawn


def test_thinning_keeps_the_extremes():
    points = [(float(n), 1.0) for n in range(10_000)]
    points[7777] = (7777.0, 99.0)
    thinned = figures.thin(points)
    assert len(thinned) <= figures.MAX_POINTS and (7777.0, 99.0) in thinned
    assert thinned == sorted(thinned)


def test_no_figure_without_a_point():
    with pytest.raises(ValueError, match="no point"):
        figures.line([(1.0, float("nan"))], "x", "y", "words")


def test_a_second_run_in_a_log_stays_within_the_figure():
    points = [(float(n), 1.0) for n in (*range(1, 21), *range(1, 11))]
    root = ET.fromstring(figures.line(points, "x", "y", "words"))
    drawn = [one.get("points").split() for one in
             root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(one) for one in drawn] == [20, 10]
    across = [float(point.split(",")[0]) for one in drawn for point in one]
    assert min(across) == figures.LEFT and max(across) == figures.WIDTH - figures.RIGHT
