"""All combinations of layout, schedule, recomputation and optimizer train as one process does.

tests/minimegatron/test_layouts.py has a choice of them; MORE are models and splits that the
combinations lack. DRAWS=N draws more at random.
"""

import os
from itertools import product

import pytest

from ..minimegatron.draws import draw, write
from ..minimegatron.test_layouts import (
    CHUNK,
    FULL,
    HYBRID,
    KEEP,
    MODELS,
    OVERLAPS,
    PP2,
    PP4,
    SP,
    TP,
    Z1,
    Z2,
    Z3,
    ZERO,
    assert_equal,
    run,
)

DRAWS = [draw(seed) for seed in range(100, 100 + int(os.environ.get("DRAWS", "120")))]
STEPS, SHALLOW, DEEP = 3, "--num-layers 4", "--num-layers 8"  # 4 stages of 2 chunks need 8 layers
GRIDS = [(ranks, tp, pp) for ranks in (2, 4) for tp in (1, 2, 4) for pp in (1, 2, 4)
         if ranks % (tp * pp) == 0]
MORE = [
    *((2, f"{TP} 2", MODELS[model]) for model in ("one micro-batch", "flash")),
    (2, f"{PP2} {CHUNK} 1", MODELS["deep"]),
    (2, f"{PP2} --schedule zb-h1", MODELS["other widths"]),
    (4, f"{TP} 2", MODELS["other widths"]),
    (4, f"{PP4} --balance 1-4-1-2 --schedule gpipe", MODELS["deep"]),
    (4, f"{PP4} --balance 0-5-3-0", MODELS["deep"]),
    *((4, f"{PP2} {how}", MODELS["8 micro-batches"]) for how in ("--schedule zb-h1",
                                                                 "--balance 0-4")),
    *((4, f"{PP2} {TP} 2 {how}", MODELS["few, shallow"]) for how in (
        "", f"{SP} --schedule gpipe")),
    *((2, f"{how} {KEEP} {more}", MODELS[model]) for how in (Z3, f"{Z3} {OVERLAPS}")
      for model in ("", "frozen", "deep") for more in (
          "", "--recompute-activations", f"{FULL} uniform --recompute-num-layers 2")),
    *((2, f"{how} {more}", MODELS[model]) for how in (Z2, f"{Z3} {OVERLAPS}")
      for model in ("other widths", "masked", "frozen", "flash") for more in (
          "", "--schedule zb-h1", f"{FULL} block --recompute-num-layers 1")),
    *((2, f"{Z3} {OVERLAPS} {FULL} uniform --recompute-num-layers {count}", MODELS["deep"])
      for count in (3, 8)),
    *((4, f"{PP2} {how}", MODELS["frozen"]) for how in (Z2, f"{Z3} {OVERLAPS}")),
    (4, f"{TP} 2 {SP} --tp-comm-overlap {Z3} {OVERLAPS}", MODELS["frozen"]),
    *((4, f"{how} {HYBRID}", MODELS[model]) for how in (
        ZERO, f"{Z1} {OVERLAPS}", Z2, f"{Z2} {OVERLAPS}", f"{Z3} {OVERLAPS}")
      for model in ("", "other widths"))]
SHARDED = ("", "--use-distributed-optimizer", f"{Z1} {OVERLAPS}", Z2, f"{Z2} {OVERLAPS}", Z3,
           f"{Z3} {OVERLAPS}")
RECOMPUTE = ("", "--recompute-activations",
             "--recompute-granularity full --recompute-method uniform")

pytestmark = [pytest.mark.stress, pytest.mark.timeout(3600)]


def combinations():
    """(ranks, layout, model)"""
    for ranks, tp, pp in GRIDS:
        model = DEEP if pp == 4 else SHALLOW
        schedules = ["--schedule gpipe", "--schedule 1f1b", "--schedule zb-h1"]
        if pp > 1:
            schedules.append(f"{CHUNK} 1")  # interleaved
        replicas = ranks // (tp * pp)
        optimizers = SHARDED if replicas > 1 else ("",)
        divided = (f"{TP} {tp}", f"{TP} {tp} {SP}") if tp > 1 else ("",)
        stages = {1: "", 2: PP2, 4: PP4}[pp]
        for words in product(divided, schedules, RECOMPUTE, optimizers):
            yield ranks, " ".join(filter(None, (stages, *words, model))), model


EXTRA = [*MORE, *((4, drawn.layout, drawn.model) for drawn in DRAWS)]
MATRIX = [*combinations(), *((ranks, f"{layout} {model}", model) for ranks, layout, model in EXTRA)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schedules")
    for drawn in DRAWS:
        write(drawn, folder)
    cases = {1: {SHALLOW, DEEP, *(model for _, _, model in EXTRA)},
             **{ranks: {case for number, case, _ in MATRIX if number == ranks} for ranks in (2, 4)}}
    return {(ranks, case): result for ranks, wanted in cases.items()
            for case, result in run(ranks, sorted(wanted), STEPS, cwd=folder, timeout=3000).items()}


@pytest.mark.parametrize("ranks, case, model", MATRIX)
def test_every_combination_equals_one_process(results, ranks, case, model):
    """Three steps, dropout on: loss, gradient norm, weights' norm and an evaluation within 1e-5."""
    (alone,) = results[1, model]
    result = results[ranks, case]
    assert len(result) == ranks
    assert_equal(result, alone)


def test_the_matrix_is_whole():
    """(grids with pipeline x 4 schedules + without x 3) x what is recomputed, sequence parallel or
    not where tensor-parallel, what is sharded where there are replicas."""
    rows = sum((1 + (tp > 1)) * (3 + (pp > 1)) * (len(SHARDED) if ranks > tp * pp else 1)
               for ranks, tp, pp in GRIDS)
    cases = {(ranks, case) for ranks, case, _ in MATRIX[:-len(EXTRA)]}
    assert len(cases) == rows * len(RECOMPUTE)
