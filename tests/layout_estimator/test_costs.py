"""Settings side by side on virtual cards."""

from dataclasses import replace

import pytest

from labcore.errors import LabError
from layout_estimator import costs

MODEL = ("--device virtual:v100 --num-layers 2 --hidden-size 256 --num-attention-heads 4 "
         "--seq-length 128 --max-position-embeddings 128 --vocab-size 1000 "
         "--micro-batch-size 2")


@pytest.fixture(scope="module")
def found():
    return costs.of({"fp32": "", "fp16": "--fp16", "too much": "--micro-batch-size 20000"}, MODEL)


def test_every_setting_has_its_figures(found):
    fp32, fp16, large = found
    parameters = 2 * (12 * 256**2 + 13 * 256) + (1024 + 128) * 256 + 2 * 256
    assert fp32.states == pytest.approx(16 * parameters / 2**30)
    assert fp16.states == pytest.approx(16 * parameters / 2**30)
    assert fp16.update == pytest.approx(4 * parameters / 2**30, rel=0.01)  # main gradients
    assert fp16.activations < fp32.activations < fp32.total
    assert fp32.tokens_per_second == pytest.approx(2 * 128 / fp32.milliseconds * 1000)
    assert fp32.fits and not large.fits and large.total > large.capacity
    assert fp32.bubble == 0 and fp32.by_stage == (fp32.activations,)


def test_every_stage_of_a_pipeline_has_its_activations():
    (cost,) = costs.of({"1f1b": "--pipeline-model-parallel-size 2 --world-size 2 "
                        "--global-batch-size 8"}, MODEL)
    assert cost.by_stage[0] > cost.by_stage[1] > 0 and 0 < cost.bubble < 1


def test_the_table_and_the_figure_say_what_does_not_fit(found, capsys):
    costs.show(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("virtual v100-sxm2-16gb, modeled")
    assert lines[1].startswith("software stack megatron-2021") and "mean error on" in lines[1]
    assert ["NO" in line for line in lines[3:]] == [False, False, True]
    picture = costs.plot(found)
    assert repr(picture).count("does not fit") == 1 and picture.png().startswith(b"\x89PNG")


def test_labels_of_neighbors_do_not_lie_over_each_other(found):
    """The left one of two points at one height has its name on its left."""
    near = [replace(found[0], name=name, total=total, milliseconds=ms)
            for name, total, ms in (("a", 5.0, 100.0), ("b", 6.0, 101.0), ("c", 15.0, 200.0))]
    (axes,) = costs.plot(near).figure.axes
    assert [text.get_ha() for text in axes.texts] == ["right", "left", "left"]


def test_what_the_trainer_does_not_take_is_named():
    with pytest.raises(LabError, match=r"odd.*--num-attention-heads"):
        costs.of({"odd": "--num-attention-heads 3"}, MODEL)
