"""A grid costed in one process equals the grid of ranks."""

import re
import shlex
from dataclasses import replace
from unittest.mock import patch

import pytest

from layout_estimator.estimate import Estimator
from minimegatron.arguments import parse_arguments
from minimegatron.device.device import CpuDevice
from minimegatron.formulas import bubble_fraction
from pretrain_gpt import main
from virtualgpu.core import memory, stacks
from virtualgpu.core.cards import find
from virtualgpu.core.segments import Pool
from virtualgpu.net.nodes import NODES

V100, A100 = find("v100"), find("a100")
NO_DATA = "--data-path x --vocab-file x --merge-file x --lr 1e-4 --train-iters 3 "
MODEL = ("--num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 256 "
         "--max-position-embeddings 256 --micro-batch-size 4 --global-batch-size 32 ")
# For runs on ranks.
SHORT = "--global-batch-size 16 --lr 1e-4 --train-iters 2 --log-interval 1 --eval-iters 0 "


def configure(flags, world_size):
    return parse_arguments(shlex.split(NO_DATA + MODEL + flags),
                           {"RANK": "0", "WORLD_SIZE": str(world_size)})


def estimate(flags, world_size=1, card=V100, vocab_size=1024, **cluster):
    return Estimator(card, **cluster).estimate(configure(flags, world_size), vocab_size)


def train_with_split_blocks():
    """Run the trainer with an allocator that splits every block, as the estimate assumes."""
    with patch.object(memory, "Pool", lambda _: Pool(memory.ROUND)):
        return main()


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "ranks", "name"), [
    ("--pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 --fp16 "
     "--num-layers-per-virtual-pipeline-stage 2 --sequence-parallel", 4, "v100"),
    ("--overlap-grad-reduce --timing-log-level 0 --recompute-granularity full "
     "--recompute-method uniform", 2, "v100"),
    ("--pipeline-model-parallel-size 2 --fp16 --group-query-attention --num-query-groups 2 "
     "--swiglu --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm "
     "--position-embedding-type rope --use-flash-attn --attention-dropout 0", 2, "v100"),
    ("--tensor-model-parallel-size 2 --sequence-parallel --bf16 --fp8-format hybrid "
     "--fp8-amax-history-len 16 --use-distributed-optimizer --fp8-param-gather", 4, "h100"),
    ("--pipeline-model-parallel-size 2 --bf16 --fp8-format e4m3 --fp8-recipe mxfp8 "
     "--first-last-layers-bf16 --no-fp8-wgrad", 2, "b200"),
])
def test_one_process_says_what_all_ranks_say(train, dataset, flags, ranks, name):
    flags = SHORT + flags
    run = train(f"{flags} --device virtual:{name}", ranks, base=MODEL + dataset.flags,
                program=train_with_split_blocks)
    seconds = run.column("elapsed time per iteration (ms)")[-1] / 1000
    vocab_size = int(re.search(r"\(new size: (\d+)\)", run.out)[1])
    peaks = [float(found) for found in re.findall(r"max allocated: ([\d.]+)", run.out)]
    card = stacks.card_under(find(name).name, stacks.default_megatron(find(name)))
    one = estimate(flags, ranks, card, vocab_size, per_node=ranks)
    assert one.seconds == pytest.approx(seconds, rel=0.01)
    mine = [size / 2**20 for size in one.peak]
    assert [min(mine), max(mine)] == pytest.approx([min(peaks), max(peaks)], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "ranks", "name"), [
    ("--pipeline-model-parallel-size 2 --fp16 ", 2, "v100"),
    ("--bf16 ", 1, "h100"),
])
def test_the_estimate_reserves_what_the_ranks_reserve(train, dataset, flags, ranks, name):
    flags += SHORT + "--hidden-size 512 --recompute-granularity full --recompute-method uniform"
    run = train(f"{flags} --device virtual:{name}", ranks, base=MODEL + dataset.flags)
    allocated, reserved = (
        [float(found) for found in re.findall(rf"max {kind}: ([\d.]+)", run.out)]
        for kind in ("allocated", "reserved"))
    vocab_size = int(re.search(r"\(new size: (\d+)\)", run.out)[1])
    model = Estimator(stacks.card_under(name, stacks.default_megatron(find(name))), per_node=ranks)
    config = configure(flags, ranks)
    peak, stages = model.estimate(config, vocab_size).peak, config.pipeline_model_parallel_size
    mine = [(peak[stage] + model.unallocated_bytes(config, vocab_size, stage)) / 2**20
            for stage in range(stages)]
    assert sorted(mine) == pytest.approx(sorted(reserved), rel=0.02)  # messages differ
    assert min(reserved) > 1.03 * min(allocated)  # or it would prove nothing


def test_layers_that_are_not_run_cost_what_they_would(monkeypatch):
    extrapolated = estimate("--fp16 --recompute-activations")
    monkeypatch.setattr("layout_estimator.measurement.MEASURED_LAYERS", 100)
    whole = estimate("--fp16 --recompute-activations")
    assert extrapolated.seconds == pytest.approx(whole.seconds, rel=1e-6)
    assert extrapolated.peak == pytest.approx(whole.peak, rel=1e-3)


def test_the_same_estimate_has_the_same_digits_and_leaves_no_device_behind():
    flags = "--pipeline-model-parallel-size 4 --fp16"
    assert estimate(flags, 8) == estimate(flags, 8)
    assert CpuDevice().has_values and not __import__("torch").zeros(1).is_meta


def test_large_equal_stages_have_the_bubble_of_theory():
    big = ("--num-layers 16 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
           "--max-position-embeddings 2048 --global-batch-size 32 --fp16 "
           "--pipeline-model-parallel-size 4 ")
    card = replace(A100, nvlink=1e15)
    for more, chunks in (("", 1), ("--num-layers-per-virtual-pipeline-stage 2", 2)):
        result = estimate(big + more, 4, card, vocab_size=128, per_node=4).bubble
        assert result == pytest.approx(bubble_fraction(4, 8, chunks), rel=0.1)


def test_a_stage_that_does_not_fit_is_named_so():
    assert estimate("--micro-batch-size 2").fits
    large = estimate("--hidden-size 2048 --num-layers 48 --micro-batch-size 16")
    assert not large.fits and max(large.peak) > V100.memory


def test_faster_links_and_more_of_them_never_slow_a_grid():
    flags = "--tensor-model-parallel-size 2 --fp16"
    times = [estimate(flags, 8, link=link, per_node=4).seconds
             for link in ("ethernet:10gbit", "ethernet:25gbit", "infiniband:2x200gbit")]
    assert times == sorted(times, reverse=True) and times[0] > times[-1]


@pytest.mark.parametrize("flags", ["--tensor-model-parallel-size 4 ", "",
                                   "--tensor-model-parallel-size 2 "])
def test_it_does_not_matter_which_ranks_have_the_slow_links(flags, monkeypatch):
    """In a DGX-1, GPUs 0 and 4 share two NVLinks, GPUs 3 and 7 one; here it is the other way
    around. TP 2 makes two unlike replicas, which trade places."""
    dgx, order = NODES["dgx-1"], (3, 2, 1, 0, 7, 6, 5, 4)
    mesh = {tuple(sorted((order[one], order[other]))): links
            for (one, other), links in dgx.mesh.items()}
    monkeypatch.setitem(NODES, "reversed", replace(dgx, mesh=mesh))
    times = [estimate(f"{flags}--pipeline-model-parallel-size 2 --num-layers 4", 8, card).seconds
             for card in (V100, replace(V100, node="reversed"))]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_parts_of_a_message_travel_faster_between_nodes_than_the_whole():
    flags = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --fp16 "
    whole, parts = (estimate(flags + scatters, 8, A100, link="ethernet:10gbit", per_node=4)
                    for scatters in ("", "--scatter-gather-tensors-in-pipeline"))
    # The second stage's forward pass gathers the parts that it received.
    assert parts.seconds < whole.seconds
    assert parts.forward[0] == pytest.approx(whole.forward[0])
    assert parts.forward[1] > whole.forward[1]
