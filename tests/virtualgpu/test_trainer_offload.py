"""Optimizer state and activations in host memory on virtual GPUs: memory by the formula, time by
PCIe and the host's memory, and estimates that predict both."""

import re
import subprocess
import sys

import pytest

from labcore.workspace import CHECKOUT
from layout_estimator.requests import estimate
from minimegatron.formulas import state_bytes
from virtualgpu.core.cards import find
from virtualgpu.net.nodes import ADAM_BYTES, ADAM_SHARE, NODES, adam_seconds

from ..minimegatron.conftest import dataset  # noqa: F401  fixture
from . import trainer_steps
from .test_trainer_sharding import EXPOSED, HIDDEN, LARGE, RANKS, assert_predicted, run

OFFLOAD = "--optimizer-cpu-offload"
HALF = f"{OFFLOAD} --optimizer-offload-fraction 0.5"
OVERLAP = "--overlap-cpu-optimizer-d2h-h2d"
Z1, Z3 = EXPOSED[1], HIDDEN[-1]
ACTIVATIONS = "--cpu-offloading-num-layers 3"
# A layer computes for longer than PCIe copies what it saves, because attention is quadratic.
LONG = (f"{EXPOSED[0]} --seq-length 131072 --max-position-embeddings 131072 --micro-batch-size 1 "
        "--global-batch-size 2 --num-layers 5")
H100 = find("h100")


@pytest.fixture(scope="module")
def steps():
    """{case: the ranks' results, in order}"""
    return run([Z1, f"{Z1} {OFFLOAD}", f"{Z1} {HALF} {OVERLAP}", Z3, f"{Z3} {HALF}",
                f"{Z3} {ACTIVATIONS}", LONG, f"{LONG} {ACTIVATIONS}"])


@pytest.mark.slow
@pytest.mark.parametrize("stage, plain, flags, fraction", [
    (1, Z1, OFFLOAD, 1), (1, Z1, f"{HALF} {OVERLAP}", 0.5), (3, Z3, HALF, 0.5)])
def test_memory_falls_by_what_is_in_host_memory(steps, stage, plain, flags, fraction):
    for before, after in zip(steps[plain], steps[f"{plain} {flags}"], strict=True):
        each = (state_bytes("bf16", RANKS, stage).resident
                - state_bytes("bf16", RANKS, stage, fraction).resident)
        assert each == pytest.approx(fraction * 12 / RANKS)
        saved = before["live"][-1] - after["live"][-1]
        assert saved == pytest.approx(each * before["parameters"], rel=0.03)


@pytest.mark.slow
def test_an_estimate_predicts_the_ranks(steps):
    for case in steps:
        if OFFLOAD in case or ACTIVATIONS in case:
            assert_predicted(case, steps[case])


@pytest.mark.slow
def test_a_step_waits_for_the_copies_and_the_host(steps):
    """Without overlap: gradients in fp32 down, AdamW, and weights in bf16 up, one after another."""
    elements = steps[Z1][0]["parameters"] / RANKS
    added = steps[f"{Z1} {OFFLOAD}"][0]["seconds"][-1] - steps[Z1][0]["seconds"][-1]
    on_gpu = elements * 28 / H100.bandwidth  # which the GPU no longer spends
    expected = elements * (4 + 2) / H100.pcie + adam_seconds(H100, elements)
    assert expected - 3 * on_gpu < added < 1.02 * expected


@pytest.mark.slow
def test_activations_of_most_layers_leave_the_gpu_while_it_computes(steps):
    plain, offloaded = (steps[case][0] for case in (LONG, f"{LONG} {ACTIVATIONS}"))
    each = 32 * 131072 * 2048  # norms 8, queries to projection 8, MLP 16 bytes
    assert plain["peak"][-1] - offloaded["peak"][-1] == pytest.approx(3 * each, rel=0.03)
    copies = 3 * 2 * each / H100.pcie
    added = offloaded["seconds"][-1] - plain["seconds"][-1]
    assert 0 <= added < 0.01 * copies
    # In short sequences, the copies take longer than the layers.
    slow = seconds(f"{ACTIVATIONS}") - seconds("")
    copies = 2 * 2 * 3 * 32 * 2 * 2048 * 2048 / H100.pcie  # two micro-batches of two sequences
    assert 0.5 * copies < slow < copies


def seconds(flags):
    return estimate([*trainer_steps.MODEL.split(), *LARGE.split(), *flags.split(),
                     "--world-size", str(RANKS), "--vocab-size", str(trainer_steps.VOCABULARY)]
                    ).plan.seconds_per_iteration


def test_overlap_hides_the_copies_behind_the_host_s_update():
    plain, offloaded, overlapped, half = map(
        seconds, ("", OFFLOAD, f"{OFFLOAD} {OVERLAP}", f"{HALF} {OVERLAP}"))
    assert plain < half < overlapped < offloaded
    parameters = 4 * 12 * 2048**2 + (trainer_steps.VOCABULARY + 2048) * 2048
    copies = parameters * 6 / H100.pcie
    assert offloaded - overlapped > 0.8 * copies


@pytest.mark.stress
def test_the_cuda_path_runs_under_virtualrun(dataset):  # noqa: F811
    """With pinned memory and streams: 12 bytes of state per parameter leave the GPU."""
    peaks = []
    for more in ("", f"{OFFLOAD} {OVERLAP}"):
        words = (f"{trainer_steps.MODEL} {LARGE} {dataset.flags} --bf16 --micro-batch-size 1 "
                 f"--global-batch-size 1 --train-iters 2 --lr 1e-4 --log-interval 1 --eval-iters 0 "
                 f"--device cuda {more}").split()
        done = subprocess.run([sys.executable, "-m", "virtualgpu.run", "--gpus", "h100:1",
                               "code/pretrain_gpt.py", *words], capture_output=True, text=True,
                              cwd=CHECKOUT, check=True)
        peaks.append(float(re.search(r"peak memory +([\d.]+) GiB", done.stdout + done.stderr)[1]))
    parameters = 4 * 12 * 2048**2 + 2048 * 2048
    assert 2**30 * (peaks[0] - peaks[1]) == pytest.approx(12 * parameters, rel=0.1)


def test_the_gpus_of_a_node_share_the_host_s_memory():
    node = NODES["dgx-h100"]
    assert adam_seconds(H100, 10**9) == pytest.approx(
        8 * 10**9 * ADAM_BYTES / (ADAM_SHARE * node.memory_bandwidth))
    assert adam_seconds(find("v100"), 10**9) > 3 * adam_seconds(H100, 10**9)
