"""How ranks communicate does not change what they compute: tensor-parallel communication that
overlaps GEMMs, and activations that are sent in parts, give one process's losses and norms."""

import pytest

from .test_layouts import MODELS, PP2, SP, TP, assert_equal, run
from .test_precision_layouts import BF16, assert_close

pytestmark = pytest.mark.slow

UB = f"{SP} --tp-comm-overlap"
SCATTER = "--scatter-gather-tensors-in-pipeline"
FULL = "--recompute-granularity full --recompute-method uniform"
CHUNK = "--num-layers-per-virtual-pipeline-stage 1"
FEW = "--global-batch-size 4"  # two micro-batches: gradients add up, stages alternate
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
    cases = {}
    for ranks, layout, model in CASES:
        steps = 4 if model == BF16 else 3  # the first has a learning rate of 0
        for count, case in ((1, model), (ranks, f"{layout} {model}".strip())):
            cases.setdefault((count, steps), {})[case] = f"{case} {FEW}"
    collected = {}
    for (ranks, steps), wanted in cases.items():
        ran = run(ranks, list(wanted.values()), steps)
        collected |= {(ranks, case): ran[flags] for case, flags in wanted.items()}
    return collected


@pytest.mark.parametrize("ranks, layout, model", CASES)
def test_loss_and_gradient_norm_are_those_of_one_process(results, ranks, layout, model):
    (alone,), result = results[1, model], results[ranks, f"{layout} {model}".strip()]
    if model == BF16:
        assert_close(result, alone, BF16)
    else:
        assert_equal(result, alone)
