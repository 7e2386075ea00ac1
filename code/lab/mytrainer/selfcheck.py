"""Test each piece on two ranks in seconds. The checks of the labs are more thorough."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lab.mytrainer import pieces
from labcore.errors import LabError
from warmranks import RankError, RanksTimeout, record_ranks

RANKS = 2
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


def test_collectives(module) -> None:
    """All-reduce tensors of several lengths, some of them not divisible by the number of ranks."""
    rank = dist.get_rank()
    for length in (1, 2, 5, 1000):
        tensor = (rank + 1.0) * torch.arange(1, length + 1)
        expected = torch.arange(1.0, length + 1) * RANKS * (RANKS + 1) / 2
        module.all_reduce(tensor)
        if not torch.equal(tensor, expected):
            raise LabError(f"mytrainer/collectives.py: after all_reduce of a tensor of length "
                           f"{length} on {RANKS} ranks, rank {rank} has {short(tensor)} instead "
                           f"of {short(expected)}")


class TinyGPT(nn.Module):
    """A toy GPT: tied embeddings of 9 tokens, a width of 4, a layer norm, and a loss."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.norm = nn.Embedding(9, 4), nn.LayerNorm(4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.norm(self.words(tokens)) @ self.words.weight.t()
        return nn.functional.cross_entropy(logits, tokens.roll(1))


def test_ddp(module) -> None:
    """Compare the averaged gradients with those of a single process that has all the data."""
    rank, single = dist.get_rank(), TinyGPT(seed=0)
    micro_batches = torch.randint(9, (2, RANKS, 12), generator=torch.Generator().manual_seed(1))
    for batches in micro_batches:
        for batch in batches:
            (single(batch) / RANKS).backward()
    parallel = module.DataParallel(TinyGPT(seed=rank), bucket_mb=1e-5)
    compare("after the constructor, parameter {} differs from rank 0's", parallel, single,
            lambda parameter: parameter.data)
    with parallel.no_sync():
        parallel(micro_batches[0, rank]).backward()
    parallel(micro_batches[1, rank]).backward()
    parallel.finish()
    compare("after finish(), the gradient of {} is not the mean over the ranks", parallel, single,
            lambda parameter: parameter.grad)
    if hasattr(parallel, "begin"):
        _test_begin(parallel, micro_batches)


def _test_begin(parallel: nn.Module, batches: torch.Tensor) -> None:
    """Take a step with two samples on rank 0 and one on rank 1.

    Args:
        parallel: the model in DataParallel, on this rank.
        batches: samples, [at least 2, ranks, length].
    """
    rank, single = dist.get_rank(), TinyGPT(seed=0)
    for batch in (batches[0, 0], batches[1, 0], batches[0, 1]):
        (single(batch) / 3).backward()
    parallel.zero_grad()
    parallel.begin(2 - rank)
    if rank == 0:
        with parallel.no_sync():
            (parallel(batches[1, 0]) / 2).backward()
    (parallel(batches[0, rank]) / (2 - rank)).backward()
    parallel.finish()
    compare("after begin() with two samples on rank 0 and one on rank 1, the gradient of {} is not "
            "the mean over all samples", parallel, single, lambda parameter: parameter.grad)


def test_launch(module) -> None:
    """Join again, and divide the samples of two steps."""
    dist.destroy_process_group()
    device = module.connect()
    if device != torch.device("cpu") or not dist.is_initialized():
        joined = "joins the other rank" if dist.is_initialized() else "joins no other rank"
        raise LabError(f"mytrainer/launch.py: on a CPU, connect() returns {device!r} and {joined}")
    rank = dist.get_rank()
    for consumed, batch in ((0, 4), (12, 6)):
        counts = torch.zeros(consumed + batch)
        own = list(module.own_samples(consumed, batch, rank, RANKS))
        counts[own] = 1
        dist.all_reduce(counts)
        if len(own) != batch // RANKS or counts.tolist() != [0] * consumed + [1] * batch:
            raise LabError(f"mytrainer/launch.py: own_samples({consumed}, {batch}, {rank}, {RANKS})"
                           f" returns {own}; the ranks must share the samples from {consumed} to "
                           f"{consumed + batch - 1} equally")


class Averaged(nn.Module):
    """A replica with DataParallel's interface, which averages gradients as they were computed.

    finish() replaces .grad by the mean of what the last backward pass left there, as if the
    gradients had been sent during that pass. So what a loop does to .grad before is lost.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.sent = module, {}
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda one: self.sent.update({one: one.grad.clone()}))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.module(tokens)

    def no_sync(self) -> AbstractContextManager:
        return nullcontext()

    def finish(self) -> None:
        for parameter, gradient in self.sent.items():
            dist.all_reduce(gradient)
            parameter.grad = gradient / RANKS


def test_train(module, name: str = "train") -> None:
    """Compare what two steps log with what one process that has all the data would.

    Args:
        module: the piece.
        name: its name.
    """
    rank, clip, rates = dist.get_rank(), 0.3, (0.5, 0.25)
    data = torch.randint(9, (2, RANKS, 2, 12), generator=torch.Generator().manual_seed(1))
    model, lines = Averaged(TinyGPT(seed=0)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
    module.train(model, optimizer, lambda consumed: list(data[consumed // 4, rank]),
                 lambda consumed: rates[consumed // 4],
                 lambda iteration, loss, norm, skipped=False: lines.append(
                     [iteration, float(loss), float(norm)]),
                 SimpleNamespace(train_iters=2, global_batch_size=4, clip_grad=clip))
    single, expected = TinyGPT(seed=0), []
    for step, rate in enumerate(rates):
        single.zero_grad()
        loss = torch.stack([single(one) for one in data[step].flatten(0, 1)]).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(single.parameters(), clip)
        torch.optim.SGD(single.parameters(), lr=rate).step()
        expected.append([step + 1, loss.item(), norm.item()])
    if not (len(lines) == 2 and torch.allclose(torch.tensor(lines), torch.tensor(expected),
                                               rtol=1e-4)):
        raise LabError(f"mytrainer/{name}.py: two steps log {rounded(lines)} (iteration, loss, and "
                       f"gradient norm) instead of {rounded(expected)}")


def rounded(lines: list[list[float]]) -> str:
    return "; ".join(", ".join(f"{number:.6g}" for number in line) for line in lines) or "nothing"


def test_histogram(module) -> None:
    """Count the exponents of five numbers."""
    zeros, counts = module.log2_histogram(torch.tensor([0.0, 1.0, -1.5, 3.0, 1e-9]), -2, 2)
    if (int(zeros), counts.tolist()) != (1, [1, 0, 2, 1, 0]):
        raise LabError("mytrainer/histogram.py: log2_histogram of 0, 1, -1.5, 3, and 1e-9 from -2 "
                       f"to 2 returns {int(zeros)} zeros and the counts {counts.tolist()} instead "
                       "of 1 and [1, 0, 2, 1, 0]")


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
        raise LabError(f"mytrainer/precision.py: a parameter is in {parameter.dtype} and its "
                       f"gradient in {parameter.grad.dtype} instead of torch.bfloat16 and "
                       "torch.float32")
    if parameter.item() != 0.99609375:
        raise LabError("mytrainer/precision.py: after 40 steps of 0.0001, a bf16 parameter has "
                       f"gone from 1 to {parameter.item():g} instead of 0.996094")


def test_unscale(module) -> None:
    """Unscale gradients that are finite, and some that are not on rank 1."""
    for value, overflow in ((1.0, False), (math.inf, True), (math.nan, True)):
        parameter = nn.Parameter(torch.zeros(2))
        parameter.grad = torch.tensor([4.0, value if dist.get_rank() == 1 else 1.0])
        found = module.unscale([parameter], 2.0)
        if found != overflow:
            raise LabError(f"mytrainer/unscale.py: with a gradient of {value} on rank 1, unscale "
                           f"returns {found} on rank {dist.get_rank()} instead of {overflow}")
        if parameter.grad[0] != 2:
            raise LabError("mytrainer/unscale.py: a gradient of 4 becomes "
                           f"{parameter.grad[0].item():g} with a scale of 2 instead of 2")


def test_scaler(module) -> None:
    """Follow the scale over overflows, good steps, and a doubling."""
    scaler, scales = module.LossScaler(8.0, 2.0, 2, 2), []
    for overflow in (True, True, False, False, True, True, True, True):
        scaler.update(overflow)
        scales.append(float(scaler.scale))
    if scales != [8.0, 4.0, 4.0, 8.0, 8.0, 4.0, 2.0, 2.0]:
        raise LabError("mytrainer/scaler.py: with an initial scale of 8, a minimum of 2, a window "
                       "of 2, and a hysteresis of 2, two overflows, two good steps, and four "
                       f"overflows give the scales {scales} instead of [8, 4, 4, 8, 8, 4, 2, 2]")


class OverflowsOnce:
    """A loss scaler whose first step overflows."""

    def __init__(self) -> None:
        self.scale, self.told = 4.0, []

    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        for parameter in parameters:
            parameter.grad /= math.inf if self.told == [] else self.scale
        return self.told == []

    def update(self, overflow: bool) -> None:
        self.told.append(bool(overflow))


def test_new_train(module) -> None:
    """Test the version of train.py with loss scaling: a skipped step, and one that is made."""
    if "scaler" not in inspect.signature(module.train).parameters:
        raise LabError("mytrainer/new/train.py: train has no parameter scaler")
    test_train(module, "new/train")
    rank, data = dist.get_rank(), torch.randint(9, (2, RANKS, 1, 12),
                                                generator=torch.Generator().manual_seed(1))
    model, lines, scaler = Averaged(TinyGPT(seed=0)), [], OverflowsOnce()
    module.train(model, torch.optim.SGD(model.parameters(), lr=9.0),
                 lambda consumed: list(data[consumed // 2, rank]), lambda samples: 0.5 + samples,
                 lambda iteration, loss, norm, skipped: lines.append(
                     [iteration, float(loss), float(norm), skipped]),
                 SimpleNamespace(train_iters=2, global_batch_size=2, clip_grad=0.3), scaler)
    single = TinyGPT(seed=0)
    loss = torch.stack([single(one) for one in data[1].flatten(0, 1)]).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(single.parameters(), 0.3)
    torch.optim.SGD(single.parameters(), lr=0.5).step()
    if scaler.told != [True, False] or [bool(line[3]) for line in lines] != [True, False]:
        raise LabError("mytrainer/new/train.py: of two steps, the first overflows, but the scaler "
                       f"and the log learn {scaler.told} and {[line[3] for line in lines]}")
    if not torch.allclose(torch.tensor(lines[1][1:3]), torch.stack([loss.detach(), norm]),
                          rtol=1e-4):
        raise LabError(f"mytrainer/new/train.py: the step after an overflow logs a loss of "
                       f"{lines[1][1]:.6g} and a gradient norm of {lines[1][2]:.6g} instead of "
                       f"{loss.item():.6g} and {norm.item():.6g}")
    compare("after a skipped step and another one, {} differs", model, single,
            lambda parameter: parameter.data, "new/train")


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
            raise LabError(f"mytrainer/autocast.py: in Autocast(torch.bfloat16), {name} is in "
                           f"{tensor.dtype} instead of {right}")


def test_saved(module) -> None:
    """Count what an MLP saves: its input, the GELU's input, and the second layer's input."""
    layers = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))
    with module.SavedBytes(layers.parameters()) as saved:
        out = layers(torch.ones(8, 4))  # its graph holds what is saved
    size = saved.bytes
    del out
    if size != 8 * (4 + 16 + 16) * 4:
        raise LabError(f"mytrainer/saved.py: two linear layers with a GELU between them save "
                       f"{size} bytes for an input [8, 4] instead of {8 * 36 * 4}")


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
        raise LabError(f"mytrainer/states.py: after {short(first)}, a replay draws {short(again)}, "
                       f"and the next number after it is {last.item():.6g}")
    with torch.autocast("cpu", torch.bfloat16):
        states = module.States("cpu")
    with states.replay():
        on = torch.is_autocast_enabled("cpu")
    if not on or torch.is_autocast_enabled("cpu"):
        raise LabError("mytrainer/states.py: autocast was on when States was made, and it is "
                       f"{'on' if on else 'off'} in a replay, and "
                       f"{'on' if torch.is_autocast_enabled('cpu') else 'off'} after it")


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
            raise LabError(f"mytrainer/checkpointing.py: in a checkpoint of two linear layers with "
                           f"dropout between them, the gradient of parameter {number} is {shown} "
                           f"instead of {short(right)}")
    if len(passes) != 3:
        raise LabError("mytrainer/checkpointing.py: with one run without a checkpoint and one with "
                       f"it, the function runs {len(passes)} times instead of 3")


def test_placement(module) -> None:
    """Place checkpoints in four equal layers."""
    for budget, least in ((40, 0), (32, 1), (22, 2), (16, 3)):
        plan = module.place([1] * 4, [10] * 4, [2] * 4, budget)
        groups = [range(start, stop) for start, stop in plan]
        layers = [layer for group in groups for layer in group]
        if not set(layers) <= set(range(4)) or layers != sorted(set(layers)):
            raise LabError(f"mytrainer/placement.py: place returns {plan} for layers 0 to 3; "
                           "groups are in order, and a layer is in one group at most")
        held = peak = 0
        for layer in range(4):
            group = next((group for group in groups if layer in group), None)
            if group is None:
                held += 10
            elif layer == group[0]:
                peak = max(peak, held + 10 * len(group))
                held += 2
        if max(held, peak) > budget:
            raise LabError(f"mytrainer/placement.py: place returns {plan}, which needs "
                           f"{max(held, peak)} bytes instead of at most {budget}")
        time = len(layers)
        if time != least:
            raise LabError(f"mytrainer/placement.py: for four layers that save 10 bytes, 2 of them "
                           f"for the input, and {budget} bytes, place returns {plan}, which "
                           f"recomputes {time} layers instead of {least}")


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
            raise LabError(f"mytrainer/attention.py: with 7 keys in blocks of 3, {name} is {shown} "
                           f"instead of {short(right)}")
    if largest >= 2 * 7 * 7:
        raise LabError("mytrainer/attention.py: with 7 queries and keys in blocks of 3, an "
                       "operation returns all scores at once")


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
        raise LabError("mytrainer/offload.py: the tensor that autograd saves stays on the device, "
                       "as without Offload")
    if gradients[1] is None or not torch.equal(*gradients):
        shown = "None" if gradients[1] is None else short(gradients[1])
        raise LabError(f"mytrainer/offload.py: the gradient of sum((weight * x)**2) is {shown} "
                       f"instead of {short(gradients[0])}")


def test_delayed(module) -> None:
    """Take the scale through four blocks, one of which does not use the tensor."""
    state, scales = module.DelayedScale(448.0, 2, 1), []
    for values in ([1.0, -2.0], [0.0], [7.0], [0.5]):
        state.record(torch.tensor(values))
        state.end_autocast()
        scales.append(float(state.scale))
    if scales != [112.0, 112.0, 32.0, 32.0]:
        raise LabError("mytrainer/delayed.py: after amaxes of 2, 0, 7, and 0.5, "
                       f"DelayedScale(448.0, 2, 1) has had the scales {scales} instead of "
                       "[112, 112, 32, 32]")


def test_amaxes(module) -> None:
    """Share two amaxes, each of which is larger on another rank."""
    own = ([2.0, 0.5], [1.0, 8.0])[dist.get_rank()]
    shared = module.share_amaxes([torch.tensor(amax) for amax in own])
    if [float(amax) for amax in shared] != [2.0, 8.0]:
        raise LabError(f"mytrainer/amaxes.py: with amaxes of 2 and 0.5 on rank 0, and 1 and 8 on "
                       f"rank 1, share_amaxes returns {short(torch.stack(list(shared)))} on rank "
                       f"{dist.get_rank()} instead of [2, 8]")


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
            raise LabError(f"mytrainer/fp8.py: {name} is None")
        error = ((actual - expected).norm() / expected.norm()).item()
        if not 0.001 < error < 0.15:
            raise LabError(f"mytrainer/fp8.py: {name} of Linear(64, 32) differs from nn.Linear's "
                           f"by {error:.1%}; rounding to FP8 causes 1% to 10%")


def test_blocks(module) -> None:
    test_recipe("blocks", module.Blocks())


def test_mx(module) -> None:
    test_recipe("mx", module.MX())


def test_recipe(name: str, recipe) -> None:
    """Multiply two matrices whose outliers lie in different blocks, in both directions.

    Args:
        name: the piece's name.
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
            raise LabError(f"mytrainer/{name}.py: a product of {text} has the shape "
                           f"{list(product.shape)} instead of {list(exact.shape)}")
        usual = torch.arange(len(exact)) != (3 if text == "rows" else 5)
        error = ((product - exact)[usual].norm() / exact[usual].norm()).item()
        if not 0.001 < error < 0.06:
            raise LabError(f"mytrainer/{name}.py: a product of {text} without an outlier is off by "
                           f"{error:.1%}; rounding in blocks causes 3% to 5%")


def compare(text: str, parallel: nn.Module, single: nn.Module,
            select: Callable[[nn.Parameter], torch.Tensor | None], name: str = "ddp") -> None:
    """Raise LabError unless this rank's parameters or gradients match a single process's.

    Args:
        text: the error message, with {} in place of the parameter's name.
        parallel: the model on this rank.
        single: the model of the single process.
        select: returns the tensor to compare, such as the gradient, given a parameter.
        name: the piece's name.
    """
    expected = dict(single.named_parameters())
    parameters = list(parallel.parameters())
    if len(parameters) != len(expected):
        raise LabError(f"mytrainer/ddp.py: DataParallel has {len(parameters)} parameters, but the "
                       f"module that it wraps has {len(expected)}")
    for parameter, (of, other) in zip(parameters, expected.items(), strict=True):
        actual, right = select(parameter), select(other)
        if actual is None or not torch.allclose(actual, right, rtol=1e-4, atol=1e-7):
            shown = "None" if actual is None else short(actual)
            raise LabError(f"mytrainer/{name}.py: {text.format(of)}: rank {dist.get_rank()} has "
                           f"{shown} instead of {short(right)}")


def short(tensor: torch.Tensor) -> str:
    """Return the first three elements of a tensor as text."""
    values = tensor.detach().flatten()
    more = ", ..." if values.numel() > 3 else ""
    return "[" + ", ".join(f"{value:.6g}" for value in values[:3].tolist()) + more + "]"


def test_new_ddp(module) -> None:
    """Test the version of ddp.py that takes unequal numbers of samples."""
    if not hasattr(module.DataParallel, "begin"):
        raise LabError("mytrainer/new/ddp.py: DataParallel has no begin()")
    test_ddp(module)


TESTS = {"collectives": test_collectives, "ddp": test_ddp, "launch": test_launch,
         "train": test_train, "histogram": test_histogram, "precision": test_precision,
         "unscale": test_unscale, "scaler": test_scaler,
         "autocast": test_autocast, "saved": test_saved,
         "states": test_states, "checkpointing": test_checkpointing, "placement": test_placement,
         "attention": test_attention, "offload": test_offload, "delayed": test_delayed,
         "amaxes": test_amaxes, "fp8": test_fp8, "blocks": test_blocks, "mx": test_mx,
         "new/train": test_new_train, "new/ddp": test_new_ddp}
