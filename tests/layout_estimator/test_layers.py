"""The time of every layer, modeled or from a run."""

import pytest

from labcore.errors import LabError
from layout_estimator import layers
from pipeline_schedules import Timeline

MODEL = ("--device virtual:v100 --num-layers {} --hidden-size 256 --num-attention-heads 4 "
         "--seq-length 128 --max-position-embeddings 128 --vocab-size {} --fp16 "
         "--micro-batch-size 2")


def test_ends_and_layers_of_a_virtual_card(capsys):
    times = layers.virtual(MODEL.format(4, 50257))
    assert len(times) == 6 and len(set(times[1:5])) == 1
    assert times[0] < times[1] < times[5]
    smaller = layers.virtual(MODEL.format(2, 1000))
    assert smaller[:-1] == pytest.approx(times[:3]) and smaller[-1] < times[5]
    layers.table(times)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("embedding") and lines[-1].endswith("█" * 30)
    layers.table(times, MODEL.format(4, 50257))
    about, *same = capsys.readouterr().out.splitlines()
    assert about.startswith("virtual v100-sxm2-16gb, modeled") and "step time 7% (1 run)" in about
    assert same == lines


def test_a_run_s_stages_are_divided_by_their_layers():
    def stage(forward, backward, slow=0):
        return [("F", 0, 0, 0, forward), ("B", 0, 0, 10, 10 + backward),
                ("F", 1, 0, 20, 20 + forward + slow), ("B", 1, 0, 40, 40 + backward + slow)]

    timeline = Timeline.of({0: stage(1, 1), 1: stage(2, 4, slow=3), 2: stage(2, 2), 3: stage(3, 5)})
    assert layers.measured(timeline, "0-2-4-0") == [2, 3, 3, 1, 1, 1, 1, 8]
    with pytest.raises(LabError, match="balance 1-1 is for 2 stages, but the run has 4"):
        layers.measured(timeline, "1-1")


def test_what_the_trainer_does_not_take_is_named():
    with pytest.raises(LabError, match="--num-attention-heads"):
        layers.virtual(MODEL.format(2, 1000) + " --num-attention-heads 3")
