"""The published figures of lab 07, and the model that counts its own parameters and FLOPs."""

import json

import pytest

from benchmarks.accuracy.rows import FOLDER
from lablib import blocks, published
from minimegatron.formulas import Gpt, parameters, step_flops

GPT = {"layers": 3, "hidden": 64, "heads": 4, "groups": 4, "ffn": 256, "gated": False, "experts": 1,
       "chosen": 1, "vocabulary": 1000, "sequence": 32, "learned": True, "tied": True,
       "biases": True}
LLAMA = {**GPT, "groups": 2, "gated": True, "learned": False, "tied": False, "biases": False}


def rows_of(name):
    return json.loads((FOLDER / f"{name}.json").read_text())["rows"]


def test_table_1_is_that_of_the_comparison_with_modeled_times():
    assert rows_of("narayanan_2021") == [row._asdict() for row in published.TABLE_1]


def test_the_time_of_mt_nlg_is_that_of_the_comparison():
    row = next(row for row in rows_of("mt_nlg_530b") if row["gpus"] == published.MT_NLG["gpus"])
    assert row["seconds"] == published.MT_NLG["seconds"]


def test_the_schedule_of_a_row_follows_from_its_flags():
    interleaved, plain = published.TABLE_1[5], published.TABLE_1[9]
    assert (interleaved.micro_batches, interleaved.chunks) == (28, 3)
    assert (plain.micro_batches, plain.chunks) == (512, 1)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_without_storage_counts_what_the_formulas_say(recompute):
    for model, gpt in ((GPT, Gpt(3, 64, 4, 32, 1000)), (LLAMA, Gpt(
            3, 64, 4, 32, 1000, query_groups=2, positions=0, gated=True, tied=False, biases=False,
            norm_biases=False))):
        found = blocks.measure(model, 2, recompute)
        assert found["parameters"] == found["active"] == parameters(gpt)
        assert found["flops"] == step_flops(gpt, 2, "full" if recompute else None)


def test_a_token_meets_its_own_experts_and_the_router():
    dense = blocks.measure({**LLAMA, "ffn": 512})
    mixture = blocks.measure({**LLAMA, "experts": 8, "chosen": 2})
    routers = 3 * 64 * 8
    assert mixture["active"] == dense["parameters"] + routers
    assert mixture["flops"] == dense["flops"] + 6 * 32 * routers
    assert mixture["parameters"] - mixture["active"] == 3 * 6 * 3 * 64 * 256


def test_the_figure_shows_published_predicted_and_modeled_throughput():
    rows = published.TABLE_1[:2]
    drawing = published.draw(rows, {"1.7B": 160, "3.6B": 0}, {"1.7B": 140.2, "3.6B": 142.0})
    lines = drawing.figure.axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[137, 138], [160], [140.2, 142.0]]
    assert list(lines[1].get_xdata()) == [1.7]  # a prediction of 0 is none
