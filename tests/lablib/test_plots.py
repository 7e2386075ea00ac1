"""A run's pipeline from the notebook, in one line."""

import pytest

from labcore.errors import LabError
from lablib import plots
from pipeline_schedules import Durations, export, gpipe, one_f_one_b, simulate


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The files that a run with `--timeline megatron/timeline/mine` leaves in the workspace."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    folder = tmp_path / "megatron" / "timeline" / "mine"
    folder.mkdir(parents=True)
    export(simulate(one_f_one_b(2, 4), Durations(1.0, 1.0, 1.0, link=0.25)),
           folder / "timeline.json")
    return "megatron/timeline/mine"


def test_a_run_is_drawn_from_its_folder_in_the_workspace(run):
    said = repr(plots.pipeline(run, "Mine"))
    assert said.startswith("Mine: 2 stages over time. total 16 ms; bubble 25.0%")
    assert "Stage 0: F0 F1 B0 F2 B1 F3 B2 B3." in said


def test_its_simulation_stands_beside_it_on_the_same_scale(run):
    both = plots.pipeline(run, "Mine", simulated=True)
    assert both.alt.startswith("Mine, as it ran: ") and "Mine, simulated: 2 stages over time. " \
        "total 15 ms; bubble 20.0%" in both.alt
    one, other = both.figure.axes
    assert one.get_xlim() == other.get_xlim() == pytest.approx((0, 16))


def test_a_run_and_a_student_s_schedule_have_a_slider(run):
    assert "ms" in plots.pipeline(run, steps=True).html()
    assert "F0 of stage 0" in plots.pipeline(["F0 B0", "F0 B0"], steps=True).html()
    with pytest.raises(LabError, match="steps and simulated exclude each other"):
        plots.pipeline(run, steps=True, simulated=True)


def test_several_are_drawn_by_their_names(run):
    drawn = plots.pipelines(my_run=run, again=plots.timeline(run))
    assert drawn.alt.startswith("my run: ") and "again: 2 stages over time. total 16 ms" in \
        drawn.alt
    assert drawn.figure.axes[0].get_xlabel() == "time (ms)"
    assert plots.pipelines(a=gpipe(2, 2)).figure.axes[0].get_xlabel() == "time"


def test_what_cannot_be_drawn_is_said(run):
    with pytest.raises(LabError, match="--timeline FOLDER writes"):
        plots.pipeline("megatron/timeline/none")
    with pytest.raises(LabError, match="no timeline of dp 3, tp 0"):
        plots.pipeline(run, dp=3)
    with pytest.raises(LabError, match="deadlock"):
        plots.pipeline(["F0 B0 F1 B1", "F1 F0 B0 B1"])
    with pytest.raises(LabError, match="drawn next to a run"):
        plots.pipelines(run=run, mine=gpipe(2, 2))
    with pytest.raises(LabError, match="at least one"):
        plots.pipelines()


def test_a_line_for_each_number_of_stages():
    picture = plots.bubbles(lambda p, m: (p - 1) / (m + p - 1), (2, 4), micro_batches=(1, 3))
    (axes,) = picture.figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert lines == {"p = 2": [50.0, 25.0], "p = 4": [75.0, 50.0]}
    assert repr(picture) == ("Bubble fraction over 1 to 3 micro-batches: p = 2 from 50% to 25%; "
                             "p = 4 from 75% to 50%.")


def test_an_answer_that_is_not_written_yet_is_named():
    with pytest.raises(LabError, match=r"bubble\(2, 1\) is None.*write the function first"):
        plots.bubbles(lambda p, m: None)
