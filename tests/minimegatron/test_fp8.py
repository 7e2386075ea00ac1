"""FP8 GEMMs equal an oracle that knows no float8 type; every layout has one process's scales."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from minimegatron.arguments.checks import MULTIPLES, stays_in_bf16
from minimegatron.model.fp8 import Fp8, recipe_of
from minimegatron.model.fp8_linear import Current
from minimegatron.model.gpt import Stage
from minimegatron.model.parameters import initialize_parameters
from minimegatron.model.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from minimegatron.parallel.ddp import DistributedDataParallel
from tests.minite import oracle
from warmranks import run_ranks

from . import resume_steps
from .test_layouts import PP2, SP, TP, ZERO, run
from .test_recompute import FULL, LAYERS, VOCABULARY, batch
from .thread_group import on_ranks

ON = "--bf16 --fp8-format hybrid --fp8-recipe "
LINEAR = "--hidden-size 256 --num-attention-heads 2 "
RECIPES = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
S, B, H, OUT = 32, 8, 256, 512


class Layer(nn.Module):
    """A column-parallel layer and a row-parallel one, in fp32 so that only FP8 rounds."""

    def __init__(self, ctx):
        super().__init__()
        self.fp8 = Fp8(ctx, [1], linears=2)
        self.column = ColumnParallelLinear(ctx, H, OUT, 0.05, fp8=self.fp8)
        self.row = RowParallelLinear(ctx, OUT, H, self.fp8)
        initialize_parameters(self, 1, ctx.grid.tp)
        with torch.no_grad():
            self.column.bias.fill_(0.5)
        self.float()


def operands():
    generator = torch.Generator().manual_seed(7)
    # The shards' amaxes differ.
    scale = torch.logspace(-2, 1, H)[torch.randperm(H, generator=generator)]
    return [torch.randn(S, B, H, generator=generator) * scale,
            torch.randn(S, B, H, generator=generator) * 1e-3]


def passes(ctx):
    """y, dx and dW of both layers in the third of equal steps, which repeats the second."""
    layer, (x, dy) = Layer(ctx), operands()
    state = layer.fp8
    if ctx.config.sequence_parallel:
        x, dy = (each.chunk(ctx.grid.tp.size)[ctx.grid.tp.index] for each in (x, dy))
    for _ in range(3):
        layer.zero_grad()
        inside = layer.column(x.requires_grad_())
        inside.retain_grad()
        y = layer.row(inside)
        x.grad = None
        y.backward(dy)
        state.end_step()
    return {"y": y.detach(), "dx": x.grad, "column": layer.column.weight.grad,
            "row": layer.row.weight.grad, "inside": inside.detach(), "inside_grad": inside.grad,
            "weight": layer.column.weight.detach()}


def context(make_context, recipe, flags=""):
    return make_context(f"{LINEAR} --bf16 --seq-length {S} --micro-batch-size {B} --fp8-format "
                        f"{RECIPES[recipe]} --fp8-recipe {recipe} {flags}")


@pytest.mark.parametrize("recipe", RECIPES)
def test_output_and_both_gradients_equal_the_oracle(make_context, recipe):
    found, (x, _) = passes(context(make_context, recipe)), operands()
    formats = ("e4m3", "e5m2" if RECIPES[recipe] == "hybrid" else "e4m3")
    x, w, dy = (found[name].flatten(0, -2).numpy() if name else x.flatten(0, 1).numpy()
                for name in ("", "weight", "inside_grad"))
    # An amax history of one equal step gives delayed scaling the tensor's own scale.
    named = "tensorwise" if recipe == "delayed" else recipe
    theirs = oracle.linear(x, w, dy, named, formats)
    ours = found["inside"].flatten(0, 1) - 0.5, found["dx"].flatten(0, 1), found["column"]
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5,
                                   atol=3e-6 * np.abs(expected).max())


def test_without_fp8_wgrad_the_weight_s_gradient_is_exact(make_context):
    found, (x, _) = passes(context(make_context, "delayed", "--no-fp8-wgrad")), operands()
    expected = found["inside_grad"].flatten(0, 1).t() @ x.flatten(0, 1)
    torch.testing.assert_close(found["column"], expected)


@pytest.mark.parametrize("recipe, sequence, overlap, wgrad", [
    *((recipe, sequence, overlap, "") for recipe in RECIPES
      for sequence, overlap in ((False, False), (True, False), (True, True))),
    *((recipe, True, overlap, "--no-fp8-wgrad") for recipe in ("delayed", "blockwise")
      for overlap in (False, True))])
def test_tensor_parallel_ranks_round_as_one_process_does(make_context, recipe, sequence, overlap,
                                                         wgrad):
    """Down to the order of sums in fp32: with scales of their own they would differ by percents."""
    ctx = context(make_context, recipe, wgrad)
    alone = passes(ctx)
    ranks = on_ranks(replace(ctx, config=replace(ctx.config, sequence_parallel=sequence,
                                                 tp_comm_overlap=overlap)), 2, passes)
    for name, dim in (("y", 0), ("dx", 0), ("column", 0), ("row", 1)):
        parts = [rank[name] for rank in ranks]
        whole = torch.cat(parts, dim) if sequence or name in ("column", "row") else parts[0]
        error = (whole - alone[name]).norm() / alone[name].norm()
        assert error < 2e-4, name


def test_the_comparison_sees_ranks_with_scales_of_their_own(make_context, monkeypatch):
    ctx, make = context(make_context, "tensorwise"), Current.__init__
    alone = passes(ctx)
    monkeypatch.setattr(Current, "__init__",
                        lambda self, recipe, role, group: make(self, recipe, role, None))
    found = on_ranks(ctx, 2, passes)[0]["y"]
    assert (found - alone["y"]).norm() / alone["y"].norm() > 1e-2


def two_steps(ctx):
    """Gradients, histories, and scales after each of two steps of two micro-batches."""
    stage = Stage(ctx, VOCABULARY, range(LAYERS))
    ddp, seen = DistributedDataParallel(ctx, stage), []
    for _ in range(2):
        ddp.zero_grad()
        for _ in range(2):
            stage(None, batch()).backward()
        stage.end_step()
        seen += [ddp.grad_buffer.clone(), *(buffer.clone() for buffer in stage.fp8.buffers())]
    return seen


def test_recomputation_changes_no_bit_and_counts_no_amax_twice(make_context):
    flags = (f"{ON} delayed --num-layers {LAYERS} --seq-length 64 --max-position-embeddings 64 "
             "--fp8-amax-history-len 3 ")
    plain = two_steps(make_context(flags))
    for mode in (f"{FULL} uniform --recompute-num-layers 2", "--recompute-activations"):
        assert all(map(torch.equal, plain, two_steps(make_context(flags + mode))))


def test_a_weight_is_rounded_once_per_step_and_evaluation_leaves_scales_alone(make_context):
    ctx = make_context(f"{ON} delayed --seq-length 64 --max-position-embeddings 64")
    stage, rounded = Stage(ctx, VOCABULARY, range(2)), []
    linear = stage.fp8.linears[0].tp
    quantize = linear.weight.pair
    linear.weight.pair = lambda weight: rounded.append(1) or quantize(weight)
    for _ in range(3):
        stage(None, batch()).backward()
    assert len(rounded) == 1
    stage.end_step()
    before = [buffer.clone() for buffer in stage.fp8.buffers()]
    stage.eval()
    with torch.no_grad():
        stage(None, batch())
    assert len(rounded) == 2 and linear.weights is None
    assert all(map(torch.equal, before, stage.fp8.buffers()))


def test_an_overflow_is_no_amax(make_context):
    state = Layer(context(make_context, "delayed")).fp8
    history = state.histories["bwd"]
    history.amax[0] = torch.tensor([2.0, float("inf")])
    state.end_step()
    assert history.scale.tolist() == [57344 / 2, 1.0]


# Losses and norms of a few steps against one process: at least twice the largest relative
# difference that was measured. Tensor-parallel ranks round partial sums to bf16, and FP8 then
# rounds some of these to another neighbor. Two stages add the embedding's gradients in another
# order, and shards the squares of the norm, which may do the same to a weight.
MODEL = "--hidden-size 64 --global-batch-size 8"
EXACT, TENSOR = {"loss": 1e-6, "norm": 1e-6}, {"loss": 4e-4, "norm": 1.2e-2}
ORDER = {"loss": 3e-4, "norm": 3e-3}
LAYOUTS = {  # (ranks, layout): bounds
    (1, "--schedule zb-h1"): EXACT, (1, f"{FULL} uniform"): EXACT,
    (2, PP2): ORDER, (2, ""): EXACT, (2, ZERO): ORDER,
    (2, f"{TP} 2"): TENSOR, (2, f"{TP} 2 {SP}"): TENSOR,
    (2, f"{TP} 2 {SP} --tp-comm-overlap"): TENSOR}
MORE = {(4, f"{PP2} {TP} 2 {SP}"): TENSOR, (4, f"{TP} 2 {SP}"): TENSOR,
        (4, f"{TP} 4 {SP} --tp-comm-overlap"): TENSOR | {"loss": 6e-4}}
STEPS = 3


def losses(recipe, layouts):
    flags = f"{MODEL} {ON} {recipe} "
    if recipe == "delayed":
        flags += "--fp8-amax-history-len 2 --fp8-amax-compute-algo max "
    found = {(1, ""): None}
    for ranks in sorted({1} | {ranks for ranks, _ in layouts}):
        wanted = [layout for number, layout in ((1, ""), *layouts) if number == ranks]
        results = run(ranks, [flags + layout for layout in wanted], STEPS)
        found |= {(ranks, layout): results[flags + layout] for layout in wanted}
    return found


def assert_layouts_agree(recipe, layouts):
    found = losses(recipe, layouts)
    (alone,) = found[1, ""]
    for key, bounds in layouts.items():
        by_stage = {}
        for rank in found[key]:
            for name in ("loss", "norm") if rank["last"] else ("norm",):
                assert rank[name] == pytest.approx(alone[name], rel=bounds[name], abs=0), key
            assert by_stage.setdefault(rank["stage"], rank["scales"]) == rank["scales"]


@pytest.mark.slow
def test_a_layout_equals_one_process():
    """On all ranks of a stage, the scales of delayed scaling are the same to the last bit."""
    assert_layouts_agree("delayed", LAYOUTS)


@pytest.mark.slow
@pytest.mark.parametrize("recipe, ranks, more", [
    ("delayed", 2, ""), pytest.param("tensorwise", 2, "", marks=pytest.mark.stress),
    ("tensorwise", 4, "--num-distributed-optimizer-instances 2")])
def test_weights_gathered_in_fp8_are_those_that_every_replica_would_round(recipe, ranks, more):
    flags = f"{MODEL} {ON} {recipe} --use-distributed-optimizer --ddp-bucket-size 1000 {more}"
    plain, gathered = run(ranks, [flags, f"{flags} --fp8-param-gather"], STEPS).values()
    for one, other in zip(gathered, plain, strict=True):
        assert one["scales"] == other["scales"] and one["loss"] == other["loss"]
        for name in ("norm", "params"):  # of other buckets, so summed in another order
            assert one[name] == pytest.approx(other[name], rel=1e-6)


# Blocks need a wider model. Its weights are about 0.02, so Adam's first updates, each the sign of a
# gradient, would be half as large at LR 1e-2, and multiply what rounds differently: the norms of
# two tensor-parallel ranks differ by 0.1% before them and by 1.6% after (0.02% and 0.09% in bf16).
WIDE = ("--hidden-size 256 --kv-channels 128 --micro-batch-size 8 --global-batch-size 16 --lr 1e-3 "
        "--min-lr 1e-4")


@pytest.mark.stress
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_on_up_to_four_ranks_equals_one_process(recipe, monkeypatch):
    if recipe in ("blockwise", "mxfp8"):
        monkeypatch.setitem(globals(), "MODEL", WIDE)
    assert_layouts_agree(recipe, LAYOUTS | MORE)


HISTORY = "--fp16 --loss-scale 64 --fp8-format hybrid --fp8-amax-compute-algo max "
SAVED, PLAIN = f"{HISTORY} --fp8-amax-history-len 4", "--fp16 --loss-scale 64"
SAME = (SAVED, f"{SAVED}0")  # a longer history of the same steps
GATHERED = f"{SAVED} --use-distributed-optimizer --fp8-param-gather"
RESUMED = [(SAVED, [*SAME, f"{HISTORY} --fp8-amax-history-len 1", PLAIN]), (PLAIN, [SAVED]),
           (GATHERED, [GATHERED])]


@pytest.mark.slow
def test_histories_survive_a_resume_and_fp8_can_be_turned_on_and_off(tmp_path):
    for rank in run_ranks(resume_steps.run, 2, str(tmp_path), RESUMED, timeout=200):
        (whole, resumed), (_, turned_on), (gathered, (again,)) = rank
        for one in (whole, *resumed):
            del one["whole"]  # it has the histories, of any length
        assert [one == whole for one in resumed] == [True, True, False, False]
        assert all(one["iteration"] == 4 for one in [*resumed, *turned_on])
        assert gathered["loss and norm"] == again["loss and norm"]


def test_sizes_are_those_of_minite_s_recipes(make_context):
    for recipe, multiple in MULTIPLES.items():
        assert multiple == recipe_of(context(make_context, recipe).config).COLUMNS


def test_the_first_and_the_last_layers_stay_in_bf16(make_context):
    ctx = make_context(f"{ON} tensorwise --num-layers 6 --first-last-layers-bf16 "
                       "--num-layers-at-end-in-bf16 2")
    assert [stays_in_bf16(ctx.config, number) for number in range(1, 7)] == [
        True, False, False, False, True, True]
    assert len(Stage(ctx, VOCABULARY, range(6)).fp8.linears) == 3 * 4
