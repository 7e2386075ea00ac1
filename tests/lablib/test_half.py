"""The figures of lab 05: what they draw, and the descriptions that a screen reader reads."""

import math

import pytest

from lablib import half


def test_a_line_of_losses_ends_where_they_are_no_longer_finite():
    drawn = half.draw_losses({"fp32": [5.0, 4.0, 3.5], "fp16": [5.0, 4.5, math.nan, math.nan],
                              "lost": [math.inf]})
    assert drawn.alt == ("Training loss over steps: fp32, from 5.00 to 3.50; fp16: NaN from step "
                         "3, from 5.00 to 4.50; lost: inf from step 1.")
    (axes,) = drawn.figure.axes
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[1, 2, 3], [1, 2], []]
    assert [line.get_marker() for line in axes.get_lines()] == ["", "x", "x"]
    assert len({line.get_linestyle() for line in axes.get_lines()}) == 3  # not only the color
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "fp32", "fp16: NaN from step 3", "lost: inf from step 1"]


def test_a_histogram_has_the_share_of_each_layer_that_fp16_rounds_to_zero():
    drawn = half.draw_histograms({"layer 1": [3, 1, 0, 0], "layer 2": [0, 0, 10, 30]}, -26, -24)
    assert drawn.alt.endswith("Below 2**-24, where fp16 rounds to 0: layer 1 100%, layer 2 0%.")
    axes = drawn.figure.axes[0]
    (image,) = axes.get_images()
    assert image.get_array().tolist() == [[0.75, 0.25, 0, 0], [0, 0, 0.25, 0.75]]
    assert image.get_extent()[:2] == [-26, -22]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer 1", "layer 2"]
    assert axes.get_lines()[0].get_xdata() == [-24, -24]


def test_errors_are_described_by_the_first_and_the_last():
    drawn = half.draw_errors({"bf16": [1e-3, 2e-2], "fp32": [1e-8, 3e-8]})
    assert drawn.alt == ("Relative error of the accumulated gradient: in bf16 1.0e-03 after the "
                         "first micro-batch and 2.0e-02 after the last; in fp32 1.0e-08 after the "
                         "first micro-batch and 3.0e-08 after the last.")
    (axes,) = drawn.figure.axes
    assert axes.get_yscale() == "log"
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx([1e-3, 2e-2])
