"""Every layout of the ranks trains the same model: loss and gradient norm of one process."""

from pathlib import Path

import pytest

from warmranks import run_ranks

from . import layout_steps
from .draws import draw, write

pytestmark = pytest.mark.slow

STEPS = 3
MODELS = {
    "": "",
    "one micro-batch": "--micro-batch-size 8 --global-batch-size 8",
    "other widths": "--kv-channels 6 --ffn-hidden-size 48 --weight-decay 0.5 --clip-grad 0.1",
    "flash": "--use-flash-attn --attention-dropout 0",
    "deep": "--num-layers 8",
    "frozen": layout_steps.FROZEN,
    "masked": "--eod-mask-loss",
    "masked, one micro-batch": "--eod-mask-loss --micro-batch-size 8",
    "4 layers": "--num-layers 4",
    "8 micro-batches": "--num-layers 4 --global-batch-size 16",
    "few": "--num-layers 8 --global-batch-size 4",  # 2 micro-batches: fewer than 4 stages
    "few, shallow": "--global-batch-size 4",
}
TP, SP = "--tensor-model-parallel-size", "--sequence-parallel"
PP2, PP4 = (f"--pipeline-model-parallel-size {stages}" for stages in (2, 4))
CHUNK, LAYOUT = "--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout"
OWN = str(Path(__file__).with_name("own_schedule"))  # .py, .json
DRAWS = [draw(seed) for seed in range(3)]
MODELS |= {drawn.file: drawn.model for drawn in DRAWS}
# Few of the buckets' edges are a parameter's; 1001 is odd, the replicas are 2 or 4.
ZERO, OVERLAP = "--use-distributed-optimizer --ddp-bucket-size 1001", "--overlap-grad-reduce"
FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy"
OVERLAPS = f"{OVERLAP} --overlap-param-gather"
Z1, Z2, Z3 = (f"{FSDP} {strategy}" for strategy in ("optim", "optim_grads", "optim_grads_params"))
KEEP, HYBRID = "--torch-fsdp2-no-reshard-after-forward", "--num-distributed-optimizer-instances 2"
FULL = "--recompute-granularity full --recompute-method"
SHARDED = [  # more of them, and all combinations, are in the stress matrix, too
    (2, Z2, ""), (2, f"{Z1} {OVERLAPS}", "other widths"),
    (2, f"{Z3} {OVERLAPS} {FULL} uniform --schedule zb-h1", "frozen"),
    (4, Z3, ""), (4, f"{Z3} {OVERLAPS} {HYBRID}", "masked"),
    (4, f"{TP} 2 {SP} {Z3} {OVERLAPS}", "other widths"), (4, f"{PP2} {Z2} --schedule zb-h1", ""),
    (4, f"{PP2} {CHUNK} 1 {Z3} {OVERLAPS}", "4 layers"),
]
# (ranks, layout, model). More of them, and all combinations: tests/stress/test_layout_matrix.py.
EQUAL = [
    *((2, f"{TP} 2", model) for model in ("", "other widths")),
    *((2, f"{TP} 2 {SP}", model) for model in ("", "one micro-batch", "other widths", "flash")),
    (2, f"{TP} 2 {SP} --schedule zb-h1", ""),
    *((2, layout, "other widths") for layout in (ZERO, OVERLAP, f"{ZERO} {OVERLAP}")),
    (4, f"{TP} 2 {SP} {ZERO} {OVERLAP}", ""),
    *((4, f"{PP2} {ZERO} {OVERLAP} {rest}".strip(), "") for rest in ("", "--schedule zb-h1")),
    (4, f"{TP} 2 {SP}", ""),
    (4, f"{TP} 4", "other widths"), (4, f"{TP} 4 {SP}", "one micro-batch"),
    (4, "", ""),
    *((4, layout, "masked")
      for layout in ("", f"{TP} 2 {SP} {ZERO} {OVERLAP}", f"{PP2} {OVERLAP}")),
    # A whole stage is frozen with PP 2.
    *((2, layout, "frozen") for layout in (
        f"{TP} 2 {SP}", f"{TP} 2 {SP} --tp-comm-overlap --schedule zb-h1", PP2,
        f"{ZERO} {OVERLAP} --recompute-granularity full --recompute-method uniform")),
    (2, f"{TP} 2 {SP} --recompute-activations --schedule zb-h1", ""),
    (2, f"{TP} 2 --activations-checkpoint-method uniform --activations-checkpoint-num-layers 2 "
        "--distribute-saved-activations", ""),
    (2, f"{PP2} --recompute-granularity full --recompute-method block --schedule zb-h1",
     "4 layers"),
    (2, f"{PP2} --recompute-activations {CHUNK} 1", "4 layers"),
    (1, "--schedule zb-h1", ""),
    *((2, f"{PP2} {how}", "4 layers") for how in (
        "", "--schedule gpipe", "--schedule zb-h1", "--schedule zb-h2", f"{CHUNK} 1",
        f"{CHUNK} 1 eager",
        "--balance 0-4", "--balance 4-0 --schedule zb-h1", f"{LAYOUT} E|(t|)*2,ttL",
        f"--schedule {OWN}.py")),
    *((2, f"{PP2} {how}", "8 micro-batches") for how in ("", f"--schedule {OWN}.json")),
    (2, PP2, "one micro-batch"),
    *((4, f"{PP4} {how}", "deep") for how in (
        "", "--schedule zb-h1", "--schedule zb-h2", f"{CHUNK} 1",
        f"{LAYOUT} E|t*5|t*3|L --schedule zb-h1")),
    *((4, f"{PP4} {how}", "few") for how in ("", "--schedule zb-h1", "--balance 0-4-4-0")),
    (4, f"{PP2} {CHUNK} 1", "8 micro-batches"),
    (4, f"{PP2} {TP} 2 --balance 0-2 {SP}", "few, shallow"),
    (4, f"{PP2} {TP} 2 --schedule zb-h1 {SP}", ""),
    (4, f"{PP2} {TP} 2 {CHUNK} 1 {SP}", "4 layers"),
    *((4, drawn.layout, drawn.file) for drawn in DRAWS), *SHARDED,
]
WRONG = {  # layout: (model, what is off)
    f"{TP} 2 {SP} unsummed": ("", "norm"),
    f"{TP} 2 counted_by_all": ("", "norm"),
    f"{TP} 2 {SP} first_mask_for_all": ("", "loss"),
    f"{PP2} untied": ("4 layers", "norm"),
    "own_mean": ("masked", "loss"),
    f"{Z2} last_micro_batch": ("", "norm"), f"{Z3} {KEEP} out_of_date": ("", "norm"),
    f"{Z3} own_norm": ("", "norm"), f"{Z3} own_shard": ("", "norm"),
    # Two stages: the previous and the next rank are one, and only channels tell messages apart.
    # (`eager` alone, with channels, is right: see above.)
    f"{PP2} {CHUNK} 1 eager one_channel": ("4 layers", "norm"),
}


def run(ranks, cases, steps=STEPS, timeout=300, cwd=None):
    """{case: the ranks' results, in order} of cases run one after another by `ranks` processes."""
    result = run_ranks(layout_steps.run, ranks, steps, cases, backend=None, timeout=timeout,
                       cwd=cwd)
    return dict(zip(cases, zip(*result, strict=True), strict=True))


def join(layout, model):
    return f"{layout} {MODELS[model]}".strip()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{(ranks, case): results}; the processes of each number of ranks are started once."""
    folder = tmp_path_factory.mktemp("schedules")
    for drawn in DRAWS:
        write(drawn, folder)
    cases = {1: list(MODELS.values()), 4: [],
             2: [join(layout, model) for layout, (model, _) in WRONG.items()]}
    for ranks, layout, model in EQUAL:
        cases[ranks].append(join(layout, model))
    return {(ranks, case): result for ranks, wanted in cases.items()
            for case, result in run(ranks, wanted, cwd=folder).items()}


def assert_equal(ranks, alone):
    """Losses are known on the last stage; norms are the same on all ranks, to the last bit."""
    for rank in ranks:
        for name in ("loss", "validation") if rank["last"] else ():
            assert rank[name] == pytest.approx(alone[name], rel=1e-5, abs=0), name
        for name in ("norm", "params"):
            assert rank[name] == pytest.approx(alone[name], rel=1e-5, abs=0), name
            assert rank[name] == ranks[-1][name]


@pytest.mark.parametrize("ranks, layout, model", EQUAL,
                         ids=[f"{ranks} ranks {' '.join(rest)}" for ranks, *rest in EQUAL])
def test_a_layout_equals_one_process(results, ranks, layout, model):
    """A few steps, dropout on, fp32: loss, gradient norm and weights' norm within 1e-5; then an
    evaluation."""
    (alone,) = results[1, MODELS[model]]
    result = results[ranks, join(layout, model)]
    assert_equal(result, alone)
    layers = int((MODELS[model] + " --num-layers 2").split("--num-layers ")[1][0])
    for rank in result:
        # 8 unused positions x 32; the keys' biases have a gradient of 0 up to rounding.
        unused = 0 if model == "frozen" else 256
        assert all(unused <= zeros <= unused + layers * 32 for zeros in rank["zeros"])


def test_a_loss_is_a_mean_over_tokens_and_not_over_micro_batches(results):
    """A token counts alike in a micro-batch with few counted tokens, and one may have none."""
    (apart,), (together,) = (results[1, MODELS[model]]
                             for model in ("masked", "masked, one micro-batch"))
    assert_equal([apart | {"last": True}], together)


@pytest.mark.parametrize("case", [join(layout, model) for ranks, layout, model in EQUAL
                                  if ranks == 4])
def test_copies_stay_the_same_to_the_last_bit(results, case):
    """The ranks of a stage hold identical copies of its replicated parameters."""
    ranks = results[4, case]
    assert (len({rank["copied"] for rank in ranks}) ==
            len({rank["stage"] for rank in ranks}))


@pytest.mark.parametrize("case", [join(layout, model) for ranks, layout, model in EQUAL
                                  if ranks == 2 and PP2 in layout])
def test_both_copies_of_the_embedding_stay_equal(results, case):
    first, last = results[2, case]
    assert first["embedding"] == pytest.approx(last["embedding"], rel=1e-6)


def test_only_the_last_stage_has_a_loss(results):
    for rank in results[4, join(f"{PP4} ", "deep")][:3]:
        assert rank["loss"] == [0] * STEPS and rank["validation"] == [0]


@pytest.mark.parametrize("layout", WRONG)
def test_the_comparison_sees_a_wrong_form(results, layout):
    model, name = WRONG[layout]
    (alone,), rank = results[1, MODELS[model]], results[2, join(layout, model)][-1]
    assert rank[name] != pytest.approx(alone[name], rel=1e-3)
