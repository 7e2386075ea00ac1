"""The memory movie of lab 06: its curves are those of the trainer's steps."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from lablib import memory_movie
from layout_estimator import costs
from layout_estimator.requests import EstimateError

SMALL = ("--device virtual:v100 --world-size 1 --gpus-per-node 1 --num-layers 4 --hidden-size 256 "
         "--num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 ")
FULL = "--recompute-granularity full --recompute-method uniform "


@pytest.mark.parametrize("flags", ["", "--fp16 ", FULL])
def test_the_peak_is_the_estimators(flags):
    flags = SMALL + flags + "--micro-batch-size 8 --global-batch-size 8"
    one, (cost,) = memory_movie.record(flags), costs.of({"": ""}, flags)
    assert one.allocated + one.outside == pytest.approx(2**30 * cost.total, rel=0.01)
    assert max(one.totals) == one.allocated >= one.requested and one.reserved >= one.allocated
    assert one.seconds[-1] == pytest.approx(cost.milliseconds / 1000, rel=0.05)
    assert one.fits


def test_micro_batches_are_humps_and_recomputation_flattens_them():
    whole, humps, flat = (
        memory_movie.record(f"{SMALL} --global-batch-size 8 --micro-batch-size {flags}")
        for flags in ("8", "2", "8 " + FULL))
    high = [size > 0.9 * max(humps.categories["activations"])
            for size in humps.categories["activations"]]
    tops = sum(now and not before for before, now in pairwise(high))
    assert tops >= 4 and humps.allocated < whole.allocated and flat.allocated < whole.allocated
    assert whole.seconds[-1] < flat.seconds[-1] and whole.seconds[-1] < humps.seconds[-1]


def test_the_fp32_copy_of_the_gradients_is_a_gradient():
    """It is freed when a step begins, and made anew when the optimizer runs."""
    one = memory_movie.record(SMALL + "--fp16 --micro-batch-size 8 --global-batch-size 8")
    gradients, states = one.categories["gradients"], one.categories["optimizer state"]
    assert gradients[0] == gradients[-1] == pytest.approx(3 * min(gradients), rel=0.01)
    assert {*states} == {states[0]} and states[0] == pytest.approx(6 * min(gradients), rel=0.01)
    assert one.categories["activations"][0] < 0.1 * max(one.categories["activations"])


def test_a_caption_says_what_does_not_fit_which_gpu():
    one = memory_movie.record(SMALL + "--micro-batch-size 8 --global-batch-size 8")
    full = replace(one, outside=one.card.memory)
    captions = memory_movie.Movie({"outside": ["usual", "full"]}, [one, full]).captions()
    assert captions[0].endswith(" ms")
    assert captions[1].endswith(" ms; does not fit the 16.9 GB of the virtual V100-SXM2-16GB")


def test_a_layer_saves_what_korthikanti_et_al_count():
    one = memory_movie.layer("v100", "--hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
                             "--micro-batch-size 2 --fp16")
    sbh, squares = 512 * 2 * 1024, 16 * 512**2 * 2
    assert one.saved == pytest.approx(34 * sbh + 5 * squares, rel=1e-3)
    assert one.input_bytes == 2 * sbh and 0 < one.forward < 0.1
    with pytest.raises(EstimateError, match="--hidden-sizes"):
        memory_movie.layer("v100", "--hidden-sizes 1024")


def test_a_pipeline_is_refused():
    with pytest.raises(EstimateError, match=r"--pipeline-model-parallel-size 2: .* nearest: "
                                            "--pipeline-model-parallel-size 1"):
        memory_movie.record(SMALL.replace("--world-size 1", "--world-size 2")
                            + "--pipeline-model-parallel-size 2 --micro-batch-size 1 "
                            "--global-batch-size 2")


def test_the_page_has_a_slider_for_each_setting_and_a_curve_for_each_combination(monkeypatch):
    monkeypatch.setattr(memory_movie, "MODEL", SMALL)
    movie = memory_movie.show(("fp16",), ("none", "full"), (1, 2), (8,), (256,))
    page = movie._repr_html_()
    assert re.findall(r'type="range" min="0" max="(\d)"', page) == ["0", "1", "1", "0", "0"]
    assert page.count("<g data-frame=") == 4
    assert page.count("display:none") == 3 and page.count("<polygon") == 16
    captions = re.search(r'data-captions="([^"]*)"', page)[1].split("|")
    assert captions == movie.captions() == repr(movie).splitlines()
    assert re.fullmatch(r"precision fp16, recomputation none, micro-batches 1, heads 8, sequence "
                        r"length 256: peak \d\.\d\d GB, step \d+ ms", captions[0])
