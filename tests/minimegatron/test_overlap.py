"""How ranks communicate does not change what they compute: tensor-parallel communication that
overlaps GEMMs, and activations that are sent in parts, give one process's losses and norms."""

import pytest

from .test_layouts import MODELS, PP2, SP, TP, assert_equal, run
from .test_precision_layouts import BF16, assert_close

pytestmark = pytest.mark.slow

STEPS = 4
UB = f"{SP} --tp-comm-overlap"
SCATTER = "--scatter-gather-tensors-in-pipeline"
FULL = "--recompute-granularity full --recompute-method uniform"
CHUNK = "--num-layers-per-virtual-pipeline-stage 1"
CASES = [  # (ranks, layout, model)
    (2, f"{TP} 2 {UB}", MODELS["other widths"]),
    (2, f"{TP} 2 {UB} --recompute-activations --schedule zb-h1",
     "--swiglu --ffn-hidden-size 48 --disable-bias-linear --untie-embeddings-and-output-weights"),
    (4, f"{TP} 4 {UB} {FULL}", ""), (4, f"{TP} 4 {UB}", BF16),
    (4, f"{PP2} {TP} 2 {SCATTER}", BF16),
    (8, f"{PP2} {TP} 4 {SCATTER} {CHUNK} {FULL}", MODELS["4 layers"]),
]


@pytest.fixture(scope="module")
def results():
    """{(ranks, case): results}"""
    cases = {1: list(dict.fromkeys(model for *_, model in CASES))}
    for ranks, layout, model in CASES:
        cases.setdefault(ranks, []).append(f"{layout} {model}".strip())
    return {(ranks, case): result for ranks, wanted in cases.items()
            for case, result in run(ranks, wanted, STEPS).items()}


@pytest.mark.parametrize("ranks, layout, model", CASES)
def test_loss_and_gradient_norm_are_those_of_one_process(results, ranks, layout, model):
    (alone,), found = results[1, model], results[ranks, f"{layout} {model}".strip()]
    if model == BF16:
        assert_close(found, alone, BF16)
    else:
        assert_equal(found, alone)
