"""A checkpoint loads in another layout to the last bit: TP, PP, interleaving, and strategy."""

import pytest

from warmranks import run_ranks

from . import resume_steps
from .test_layouts import CHUNK, HYBRID, LAYOUT, OVERLAPS, PP2, PP4, SP, TP, Z2, Z3, ZERO

pytestmark = pytest.mark.slow

DEEP = "--num-layers 4"
TP2, TP4 = f"{TP} 2", f"{TP} 4"
BLOCK = ("--group-query-attention --num-query-groups 2 --position-embedding-type rope "
         "--normalization RMSNorm --untie-embeddings-and-output-weights --swiglu")
FP8 = ("--bf16 --fp8-format hybrid --fp8-amax-history-len 4 --hidden-size 64 "
       "--fp8-amax-compute-algo max --micro-batch-size 1")
# (model, layout that saves, layouts that load). test_resume_pipeline.py has more, on 4 ranks.
CASES = [
    (f"{DEEP} {BLOCK}", f"{PP2} --balance 1-3", [f"{TP2} {SP} {Z2}", Z3]),
    (f"{DEEP} --bf16", TP2, [f"{PP2} {CHUNK} 1", ZERO]),
]
MANY = [
    (DEEP, PP2, [PP4, f"{PP2} {CHUNK} 1", f"{PP2} --balance 1-3 --schedule zb-h1"]),
    (f"{DEEP} {BLOCK}", f"{TP2} {PP2} {CHUNK} 1 {SP}", [
        "", PP4, f"{TP2} {Z3} {OVERLAPS}", f"{PP2} {LAYOUT} Ettt|tL"]),
    (f"{DEEP} --fp16 --initial-loss-scale 262144", f"{TP2} {ZERO}", [
        PP4, f"{TP4} {SP}", f"{PP2} {Z3} {OVERLAPS} {HYBRID}"]),
    (f"{DEEP} {FP8}", f"{PP2} --balance 1-3", [
        PP4, TP2, f"{TP2} {PP2} {CHUNK} 1", Z2, f"{TP2} {ZERO} --fp8-param-gather"]),
]
GRIDS = ["", TP2, TP4, PP2, PP4, f"{TP2} {PP2}"]
STRATEGIES = ["", ZERO, Z2, Z3]


def run(ranks, cases, folder):
    """[(what the saving run saw, {loaded: what that run saw})], on the last rank."""
    flags = [(f"{model} {saved}", [f"{model} {one}" for one in loaded])
             for model, saved, loaded in cases]
    results = run_ranks(resume_steps.run, ranks, str(folder), flags, timeout=900)
    return [(whole, dict(zip(loaded, resumed, strict=True)))
            for (_, _, loaded), (whole, resumed) in zip(cases, results[-1], strict=True)]


def check(model, whole, resumed):
    """Every element of every state; then two more steps as in the layout that saved."""
    close = 2e-2 if "fp8" in model else 4e-3 if "16" in model else 1e-5
    for loaded, one in resumed.items():
        assert one.get("whole") == whole["whole"], (loaded, one.get("error"))
        assert len(one["whole"]) == 4 + ("16" in model) + 2 * ("fp8" in model), one["whole"]
        assert one["iteration"] == whole["iteration"] == 4
        assert one["loss and norm"] == pytest.approx(whole["loss and norm"], rel=close), loaded
        assert whole["loss and norm"][0] > 0


@pytest.mark.parametrize("ranks, cases", [
    (2, CASES), pytest.param(4, MANY, marks=[pytest.mark.stress, pytest.mark.timeout(900)])])
def test_a_checkpoint_loads_in_another_layout_to_the_last_bit(ranks, cases, tmp_path):
    for (model, _, _), (whole, resumed) in zip(cases, run(ranks, cases, tmp_path), strict=True):
        check(model, whole, resumed)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("turn", range(4))
def test_every_layout_loads_in_every_other(turn, tmp_path):
    """TP 1, 2, 4 x PP 1, 2, 4 on 4 ranks; in four turns, strategies meet in every combination."""
    def flags(grid, number):
        return f"{grid} {STRATEGIES[number % 4]}" if grid in ("", TP2, PP2) else grid

    model = f"{DEEP} {BLOCK} --num-query-groups 4" if turn % 2 else DEEP
    cases = [(model, flags(saved, turn),
              [flags(loaded, turn + at + number) for number, loaded in enumerate(GRIDS)])
             for at, saved in enumerate(GRIDS)]
    for whole, resumed in run(4, cases, tmp_path):
        check(model, whole, resumed)
