"""Every layout of the ranks trains the same model: loss and gradient norm of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("layout_steps.py")
STEPS = 5
MODELS = {
    "": "",
    "one micro-batch": "--micro-batch-size 8 --global-batch-size 8",
    "other widths": "--kv-channels 6 --ffn-hidden-size 48 --weight-decay 0.5 --clip-grad 0.1",
    "flash": "--use-flash-attn --attention-dropout 0",
}
TP, SP = "--tensor-model-parallel-size", "--sequence-parallel"
# (ranks, layout, model)
EQUAL = [
    *((2, f"{TP} 2", model) for model in MODELS),
    *((2, f"{TP} 2 {SP}", model) for model in MODELS),
    (2, f"{TP} 2 {SP} defer", ""),
    *((4, f"{TP} {size}{mode}", model) for size in (2, 4) for mode in ("", f" {SP}")
      for model in ("", "other widths")),
    (4, "", ""),
    (2, f"{TP} 2 {SP} --recompute-activations defer", ""),
    (2, f"{TP} 2 --activations-checkpoint-method uniform --activations-checkpoint-num-layers 2 "
        "--distribute-saved-activations", ""),
]
WRONG = {
    f"{TP} 2 {SP} unsummed": "norm",
    f"{TP} 2 counted_by_all": "norm",
    f"{TP} 2 {SP} first_mask_for_all": "loss",
}


def run(ranks, cases):
    """{case: the ranks' results, in order} of cases run one after another by `ranks` processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks),
               "--master_port", str(20010 + os.getpid() % 10000), str(PROGRAM), str(STEPS), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == ranks * len(cases)
    lines.sort(key=lambda line: line["rank"])
    return {case: [line for line in lines if line["case"] == case] for case in cases}


@pytest.fixture(scope="module")
def results():
    """{(ranks, case): results}; the processes of each number of ranks are started once."""
    cases = {1: list(MODELS.values()), 2: list(WRONG), 4: []}
    for ranks, layout, model in EQUAL:
        cases[ranks].append(f"{layout} {MODELS[model]}".strip())
    return {(ranks, case): result for ranks, wanted in cases.items()
            for case, result in run(ranks, wanted).items()}


@pytest.mark.parametrize("ranks, layout, model", EQUAL,
                         ids=[f"{ranks} ranks {' '.join(rest)}" for ranks, *rest in EQUAL])
def test_a_layout_equals_one_process(results, ranks, layout, model):
    """Five steps, dropout on, fp32: loss, gradient norm and weights' norm within 1e-5."""
    (alone,) = results[1, MODELS[model]]
    for rank in results[ranks, f"{layout} {MODELS[model]}".strip()]:
        for name in ("loss", "norm", "params"):
            assert rank[name] == pytest.approx(alone[name], rel=1e-5, abs=0), name
        # 8 unused positions x 32; the keys' biases have a gradient of 0 up to rounding.
        assert all(256 <= zeros <= 256 + 2 * 32 for zeros in rank["zeros"])


@pytest.mark.parametrize("case", [f"{layout} {MODELS[model]}".strip()
                                  for ranks, layout, model in EQUAL if ranks == 4])
def test_copies_stay_the_same_to_the_last_bit(results, case):
    assert len({rank["copied"] for rank in results[4, case]}) == 1


@pytest.mark.parametrize("case", WRONG)
def test_the_comparison_sees_a_wrong_form(results, case):
    (alone,), rank = results[1, ""], results[2, case][0]
    name = WRONG[case]
    assert rank[name] != pytest.approx(alone[name], rel=1e-3)
