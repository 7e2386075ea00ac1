"""How ranks communicate does not change what they compute: tensor-parallel communication that
overlaps GEMMs, and activations that are sent in parts, give one process's losses and norms."""

import pytest

from .test_layouts import MODELS, OVERLAP, PP2, SP, TP, ZERO, assert_equal, run
from .test_precision_layouts import BF16, assert_close
from .test_precision_layouts import STEPS as PRECISION_STEPS

pytestmark = pytest.mark.slow

UB = f"{SP} --tp-comm-overlap"
SCATTER = "--scatter-gather-tensors-in-pipeline"
SELECTIVE = "--recompute-activations"
FULL = "--recompute-granularity full --recompute-method uniform"
CHUNK = "--num-layers-per-virtual-pipeline-stage 1"
DEEP = "--num-layers 4"
# (ranks, layout, model)
CASES = [
    (2, f"{TP} 2 {UB}", MODELS["other widths"]),
    (2, f"{TP} 2 {UB} {SELECTIVE} --schedule zb-h1", ""),
    (4, f"{TP} 4 {UB} {FULL}", ""), (4, f"{PP2} {TP} 2 {UB} {FULL}", ""),
    (4, f"{TP} 2 {UB} {ZERO} {OVERLAP}", ""),
    (4, f"{PP2} {TP} 2 {SCATTER}", ""), (4, f"{PP2} {TP} 2 {SCATTER} {SP}", ""),
    (4, f"{PP2} {TP} 2 {SCATTER} {CHUNK} {FULL}", DEEP),
    (8, f"{PP2} {TP} 4 {SCATTER} --schedule zb-h1", ""),
]


@pytest.fixture(scope="module")
def results():
    """{(ranks, case): results}"""
    cases = {1: list(dict.fromkeys(model for *_, model in CASES))}
    for ranks, layout, model in CASES:
        cases.setdefault(ranks, []).append(f"{layout} {model}".strip())
    return {(ranks, case): result for ranks, wanted in cases.items()
            for case, result in run(ranks, wanted).items()}


@pytest.mark.parametrize("ranks, layout, model", CASES)
def test_loss_and_gradient_norm_are_those_of_one_process(results, ranks, layout, model):
    (alone,) = results[1, model]
    assert_equal(results[ranks, f"{layout} {model}".strip()], alone)


def test_in_bf16_they_agree_within_rounding():
    ((alone,),) = run(1, [BF16], PRECISION_STEPS).values()
    cases = [f"{PP2} {TP} 2 {SCATTER} {BF16}", f"{TP} 4 {UB} {BF16}"]
    for ranks in run(4, cases, PRECISION_STEPS).values():
        assert_close(ranks, alone, BF16)
