"""Test each piece on two ranks in seconds. The checks of the labs are more thorough."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lab.mytrainer import (
    pieces,
    pipeline_check,
    sharding_check,
    single_process,
    tensor_check,
)
from lab.mytrainer.single_process import RANKS, Wrong, short
from labcore.errors import LabError
from warmranks import RankError, RanksTimeout, record_ranks

TIMEOUT = 40  # seconds
FRAME = re.compile(rf'File ".*/({pieces.FOLDER}/(?:{pieces.NEW})?\w+\.py)", line (\d+)')


def problem(piece: pieces.Piece) -> str | None:
    """Test a piece on two ranks, and return its error, or None if it works."""
    try:
        record_ranks(test_on_rank, RANKS, piece.name, timeout=TIMEOUT)
    except RanksTimeout as error:
        return describe_hang(piece, error)
    except RankError as error:
        return error.error.partition(": ")[2] or error.error
    return None


def test_on_rank(name: str) -> None:
    """Load and test a piece. Raises LabError."""
    module = pieces.load(name)
    try:
        TESTS[name](module)
    except Wrong as error:
        raise LabError(f"{(pieces.PIECES | pieces.EXTENDED)[name].shown}: {error}") from None
    except LabError:
        raise
    except Exception as error:  # the student's code can raise anything
        raise LabError(pieces.blame(error)) from error


def describe_hang(piece: pieces.Piece, error: RanksTimeout) -> str:
    """Return an error that names the line in which each rank still waits.

    Args:
        piece: the piece that was tested.
        error: the timeout or deadlock, with the stack of each rank.
    """
    frames = {rank: FRAME.findall(stack) for rank, stack in error.stacks.items()}
    waits = [f"rank {rank} waits in {lines[-1][0]}, line {lines[-1][1]}"
             for rank, lines in frames.items() if lines]
    return "; ".join([f"{piece.shown}: two ranks never finish", *waits])


def test_histogram(module) -> None:
    """Count the exponents of five numbers."""
    zeros, counts = module.log2_histogram(torch.tensor([0.0, 1.0, -1.5, 3.0, 1e-9]), -2, 2)
    if (int(zeros), counts.tolist()) != (1, [1, 0, 2, 1, 0]):
        raise Wrong(f"log2_histogram of 0, 1, -1.5, 3, and 1e-9 from -2 to 2 returns {int(zeros)} "
                    f"zeros and the counts {counts.tolist()} instead of 1 and [1, 0, 2, 1, 0]")


def test_precision(module) -> None:
    """Take 40 steps that are too small for bf16, each with two micro-batches."""
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = module.MixedPrecision([parameter], lambda masters: torch.optim.SGD(masters, 1.0))
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    for _ in range(40):
        optimizer.zero_grad()
        for gradient in (1.0, 0.001953125):
            (parameter * gradient).sum().backward()
        optimizer.step()
    if parameter.dtype != torch.bfloat16 or parameter.grad.dtype != torch.float32:
        raise Wrong(f"a parameter is in {parameter.dtype} and its gradient in "
                    f"{parameter.grad.dtype} instead of torch.bfloat16 and torch.float32")
    if parameter.item() != 0.99609375:
        raise Wrong("after 40 steps of 0.0001, a bf16 parameter has gone from 1 to "
                    f"{parameter.item():g} instead of 0.996094")


def test_unscale(module) -> None:
    """Unscale gradients that are finite, and some that are not on rank 1."""
    for value, overflow in ((1.0, False), (math.inf, True), (math.nan, True)):
        parameter = nn.Parameter(torch.zeros(2))
        parameter.grad = torch.tensor([4.0, value if dist.get_rank() == 1 else 1.0])
        found = module.unscale([parameter], 2.0)
        if found != overflow:
            raise Wrong(f"with a gradient of {value} on rank 1, unscale returns {found} on rank "
                        f"{dist.get_rank()} instead of {overflow}")
        if parameter.grad[0] != 2:
            raise Wrong(f"a gradient of 4 becomes {parameter.grad[0].item():g} with a scale of 2 "
                        "instead of 2")


def test_scaler(module) -> None:
    """Follow the scale over overflows, good steps, and a doubling."""
    scaler, scales = module.LossScaler(8.0, 2.0, 2, 2), []
    for overflow in (True, True, False, False, True, True, True, True):
        scaler.update(overflow)
        scales.append(float(scaler.scale))
    if scales != [8.0, 4.0, 4.0, 8.0, 8.0, 4.0, 2.0, 2.0]:
        raise Wrong("with an initial scale of 8, a minimum of 2, a window of 2, and a hysteresis "
                    "of 2, two overflows, two good steps, and four overflows give the scales "
                    f"{scales} instead of [8, 4, 4, 8, 8, 4, 2, 2]")


def test_autocast(module) -> None:
    """Run a GEMM, an operation that takes what it gets, and a softmax."""
    weight, x = nn.Parameter(torch.ones(4, 4)), torch.ones(2, 4)
    with module.Autocast(torch.bfloat16):
        hidden = nn.functional.linear(x, weight)
        relu = hidden.relu()
        out = relu.softmax(-1)
    out.sum().backward()
    for name, tensor, right in (("a linear layer", hidden, torch.bfloat16),
                                ("relu of a bf16 tensor", relu, torch.bfloat16),
                                ("softmax of a bf16 tensor", out, torch.float32),
                                ("the weight's gradient", weight.grad, torch.float32)):
        if tensor.dtype != right:
            raise Wrong(f"in Autocast(torch.bfloat16), {name} is in {tensor.dtype} instead of "
                        f"{right}")


def test_rounding(module) -> None:
    """Take 64 steps of a quarter of the gap between two bf16 numbers, with other default seeds."""
    torch.manual_seed(dist.get_rank())
    parameter = nn.Parameter(torch.full((4096,), 2.0, dtype=torch.bfloat16))
    optimizer = module.StochasticRounding([parameter], lambda copies: torch.optim.SGD(copies, 1.0))
    for group in optimizer.param_groups:
        group["lr"] = 2.0**-9
    for _ in range(64):
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
    mean, others = parameter.detach().double().mean(), parameter.detach().float().clone()
    if abs(128 * (2 - mean) - 16) > 0.4:
        raise Wrong(f"64 steps by a quarter of the gap between two bf16 numbers move a parameter "
                    f"by {128 * (2 - mean):.2f} gaps on average instead of 16")
    dist.broadcast(others, 0)
    if not others.equal(parameter.detach().float()):
        raise Wrong(f"ranks 0 and {dist.get_rank()} have the same gradients, but "
                    "different parameters after rounding")


def test_saved(module) -> None:
    """Count what an MLP saves: its input, the GELU's input, and the second layer's input."""
    layers = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))
    with module.SavedBytes(layers.parameters()) as saved:
        out = layers(torch.ones(8, 4))  # its graph holds what is saved
    size = saved.bytes
    del out
    if size != 8 * (4 + 16 + 16) * 4:
        raise Wrong(f"two linear layers with a GELU between them save {size} bytes for an input "
                    f"[8, 4] instead of {8 * 36 * 4}")


def test_states(module) -> None:
    """Draw numbers twice, and then the one that follows; replay autocast."""
    torch.manual_seed(1)
    states = module.States("cpu")
    first, more = torch.rand(3), torch.rand(2)
    with states.replay():
        again = torch.rand(3)
    last = torch.rand(1)
    torch.manual_seed(1)
    drawn = torch.cat([first, more, last])
    if not torch.equal(first, again) or not torch.equal(drawn, torch.rand(6)):
        raise Wrong(f"after {short(first)}, a replay draws {short(again)}, and the next number "
                    f"after it is {last.item():.6g}")
    with torch.autocast("cpu", torch.bfloat16):
        states = module.States("cpu")
    with states.replay():
        on = torch.is_autocast_enabled("cpu")
    if not on or torch.is_autocast_enabled("cpu"):
        raise Wrong(f"autocast was on when States was made, and it is {'on' if on else 'off'} in "
                    f"a replay, and {'on' if torch.is_autocast_enabled('cpu') else 'off'} after it")


def test_checkpointing(module) -> None:
    """Compare gradients through dropout with and without a checkpoint."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)), torch.ones(4, 8)
    gradients, passes = [], []
    model.register_forward_hook(lambda *_: passes.append(1))
    for run in (model, lambda x: module.checkpoint(model, x)):
        torch.manual_seed(1)
        model.zero_grad()
        run(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for number, (right, found) in enumerate(zip(*gradients, strict=True)):
        if found is None or not torch.equal(right, found):
            shown = "None" if found is None else short(found)
            raise Wrong("in a checkpoint of two linear layers with dropout between them, the "
                        f"gradient of parameter {number} is {shown} instead of {short(right)}")
    if len(passes) != 3:
        raise Wrong("with one run without a checkpoint and one with it, the function runs "
                    f"{len(passes)} times instead of 3")


def test_placement(module) -> None:
    """Place checkpoints in four equal layers."""
    for budget, least in ((40, 0), (32, 1), (22, 2), (16, 3)):
        plan = module.place([1] * 4, [10] * 4, [2] * 4, budget)
        groups = [range(start, stop) for start, stop in plan]
        layers = [layer for group in groups for layer in group]
        if not set(layers) <= set(range(4)) or layers != sorted(set(layers)):
            raise Wrong(f"place returns {plan} for layers 0 to 3; groups are in order, and a "
                        "layer is in one group at most")
        held = peak = 0
        for layer in range(4):
            group = next((group for group in groups if layer in group), None)
            if group is None:
                held += 10
            elif layer == group[0]:
                peak = max(peak, held + 10 * len(group))
                held += 2
        if max(held, peak) > budget:
            raise Wrong(f"place returns {plan}, which needs {max(held, peak)} bytes instead of at "
                        f"most {budget}")
        time = len(layers)
        if time != least:
            raise Wrong("for four layers that save 10 bytes, 2 of them for the input, and "
                        f"{budget} bytes, place returns {plan}, which recomputes {time} layers "
                        f"instead of {least}")


def test_attention(module) -> None:
    """Compare with PyTorch's attention, forward and backward, with a last block that is smaller."""
    results, largest = [], 0
    for run in (lambda *heads: module.attention(*heads, 3),
                lambda *heads: nn.functional.scaled_dot_product_attention(*heads, is_causal=True)):
        torch.manual_seed(1)
        heads = [torch.randn(2, 7, 2, requires_grad=True) for _ in range(3)]
        with LargestResult() as made:
            out = run(*heads)
            out.square().sum().backward()
        results.append([out, *(one.grad for one in heads)])
        largest = largest or made.numel
    names = ("the output", *(f"the gradient of the {one}" for one in ("query", "key", "value")))
    for name, found, right in zip(names, *results, strict=True):
        if found is None or not torch.allclose(found, right, rtol=1e-4, atol=1e-5):
            shown = "None" if found is None else short(found)
            raise Wrong(f"with 7 keys in blocks of 3, {name} is {shown} instead of {short(right)}")
    if largest >= 2 * 7 * 7:
        raise Wrong("with 7 queries and keys in blocks of 3, an operation returns all scores at "
                    "once")


class LargestResult(TorchDispatchMode):
    """Records the size of the largest tensor that an operation returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for one in tree_leaves(results):
            if isinstance(one, torch.Tensor):
                self.numel = max(self.numel, one.numel())
        return results


def test_offload(module) -> None:
    """Compare gradients with and without offloading."""
    weight, gradients = nn.Parameter(torch.ones(4)), []
    for context in (nullcontext(), module.Offload([weight], least=0)):
        weight.grad = None
        with context:
            product = weight * torch.arange(4.0)
            loss = product.square().sum()  # saves the product
        if gradients:
            product.data.zero_()  # which a copy of it does not notice
        loss.backward()
        gradients.append(weight.grad)
    if gradients[1] is not None and not gradients[1].any():
        raise Wrong("the tensor that autograd saves stays on the device, as without Offload")
    if gradients[1] is None or not torch.equal(*gradients):
        shown = "None" if gradients[1] is None else short(gradients[1])
        raise Wrong(f"the gradient of sum((weight * x)**2) is {shown} instead of "
                    f"{short(gradients[0])}")


def test_delayed(module) -> None:
    """Take the scale through four blocks, one of which does not use the tensor."""
    state, scales = module.DelayedScale(448.0, 2, 1), []
    for values in ([1.0, -2.0], [0.0], [7.0], [0.5]):
        state.record(torch.tensor(values))
        state.end_autocast()
        scales.append(float(state.scale))
    if scales != [112.0, 112.0, 32.0, 32.0]:
        raise Wrong("after amaxes of 2, 0, 7, and 0.5, DelayedScale(448.0, 2, 1) has had the "
                    f"scales {scales} instead of [112, 112, 32, 32]")


def test_amaxes(module) -> None:
    """Share two amaxes, each of which is larger on another rank."""
    own = ([2.0, 0.5], [1.0, 8.0])[dist.get_rank()]
    shared = module.share_amaxes([torch.tensor(amax) for amax in own])
    if [float(amax) for amax in shared] != [2.0, 8.0]:
        raise Wrong("with amaxes of 2 and 0.5 on rank 0, and 1 and 8 on rank 1, share_amaxes "
                    f"returns {short(torch.stack(list(shared)))} on rank {dist.get_rank()} "
                    "instead of [2, 8]")


def test_fp8(module) -> None:
    """Compare an FP8 layer with nn.Linear: close, but rounded, in all three GEMMs."""
    torch.manual_seed(0)
    exact, rounded = nn.Linear(64, 32), module.Linear(64, 32)
    rounded.load_state_dict(exact.state_dict())
    grad, results = torch.randn(16, 32), []
    for layer in (exact, rounded):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = layer(x)
        y.backward(grad)
        results.append((y.detach(), x.grad, layer.weight.grad))
    names = ("the output", "the gradient of the input", "the gradient of the weight")
    for name, expected, actual in zip(names, *results, strict=True):
        if actual is None:
            raise Wrong(f"{name} is None")
        error = ((actual - expected).norm() / expected.norm()).item()
        if not 0.001 < error < 0.15:
            raise Wrong(f"{name} of Linear(64, 32) differs from nn.Linear's by {error:.1%}; "
                        "rounding to FP8 causes 1% to 10%")


def test_blocks(module) -> None:
    test_recipe(module.Blocks())


def test_mx(module) -> None:
    test_recipe(module.MX())


def test_recipe(recipe) -> None:
    """Multiply two matrices whose outliers lie in different blocks, in both directions.

    Args:
        recipe: with `pair` and `multiply`, as fp8.Linear calls them.
    """
    torch.manual_seed(0)
    x, weight = torch.randn(128, 256), torch.randn(128, 256)
    x[3, 5] = 3e4
    (rows, columns), (others, transposed) = (
        recipe.pair(tensor, torch.float8_e4m3fn, role)
        for tensor, role in ((x, "input"), (weight, "weight")))
    for text, product, exact in (
            ("rows", recipe.multiply(rows, others, torch.float32), x @ weight.t()),
            ("columns", recipe.multiply(columns, transposed, torch.float32), x.t() @ weight)):
        if product.shape != exact.shape:
            raise Wrong(f"a product of {text} has the shape {list(product.shape)} instead of "
                        f"{list(exact.shape)}")
        usual = torch.arange(len(exact)) != (3 if text == "rows" else 5)
        error = ((product - exact)[usual].norm() / exact[usual].norm()).item()
        if not 0.001 < error < 0.06:
            raise Wrong(f"a product of {text} without an outlier is off by {error:.1%}; rounding "
                        "in blocks causes 3% to 5%")


TESTS = {"collectives": single_process.test_collectives, "ddp": single_process.test_ddp,
         "launch": single_process.test_launch, "train": single_process.test_train,
         "histogram": test_histogram, "precision": test_precision, "unscale": test_unscale,
         "scaler": test_scaler, "autocast": test_autocast,
         "rounding": test_rounding, "saved": test_saved,
         "states": test_states, "checkpointing": test_checkpointing, "placement": test_placement,
         "attention": test_attention, "offload": test_offload,
         "shards": sharding_check.test_shards, "zero": sharding_check.test_zero,
         "zero2": sharding_check.test_zero2, "zero3": sharding_check.test_zero3,
         "prefetch": sharding_check.test_prefetch, "clipping": sharding_check.test_clipping,
         "reshard": sharding_check.test_reshard,
         "tensor_parallel": tensor_check.test_tensor_parallel, "heads": tensor_check.test_heads,
         "vocabulary": tensor_check.test_vocabulary, "randomness": tensor_check.test_randomness,
         "llama": tensor_check.test_llama,
         "sequence_parallel": tensor_check.test_sequence_parallel,
         "tp_overlap": tensor_check.test_tp_overlap, "grad_norm": tensor_check.test_grad_norm,
         "layer_memory": tensor_check.test_layer_memory,
         **{name: getattr(pipeline_check, f"test_{name}") for name in (
             "stage", "micro_batches", "gpipe", "llama_stage", "pipeline", "program", "p2p",
             "tied", "one_f_one_b", "interleaved", "grid", "split", "break_even",
             "pipeline_memory", "weight_stash", "synced_stash", "stash_recompute", "zero_bubble",
             "zero_bubble_2", "split_backward", "deferred_wgrad")},
         "delayed": test_delayed,
         "amaxes": test_amaxes, "fp8": test_fp8, "blocks": test_blocks, "mx": test_mx,
         "new/train": single_process.test_new_train, "new/ddp": single_process.test_new_ddp}
