# ---
# jupyter:
#   jupytext:
#     comment_magics: false
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Pipeline parallelism III
#
# **Second sitting, 60 minutes.** The last idle time in a pipeline hides inside the backward pass. You split it in two,
# write schedules that put the second half wherever a GPU would wait, and then compete with them.

# %% tags=["setup"]
import os

import torch

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace
for folder in ("mytrainer", "contest"):
    os.makedirs(folder, exist_ok=True)

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("accelerate", "lab.mytrainer", "layout_estimator", "minimegatron", "transformers", *check.PIPELINE_LIBRARIES)

# %% tags=["explore"]
import virtualgpu
from labcore.colors import result
from lablib import plots, zero_bubble
from pipeline_schedules import Durations, Timeline, load, parse, peak_live, simulate
from pipeline_schedules.drawing import draw_beside
from warmranks import run_ranks

# %% [markdown]
# ## Zero bubble
#
# 1F1B bounds the memory of a pipeline, but its bubble is GPipe's: $p-1$ forward and backward passes. The usual remedy is
# more micro-batches. But a global batch has only so many, and every data-parallel replica takes its share of them. With
# 16 stages and a batch that leaves 64 micro-batches to each pipeline, this is the result:

# %% tags=["explore"]
wide = simulate(load("1f1b", 16, 64))
print(f"16 stages, 64 micro-batches, 1F1B: the GPUs are idle for {result(f'{wide.bubble_fraction:.0%}')} of the time (simulated)")
plots.pipeline(load("1f1b", 4, 8), "1F1B", live=False)

# %% [markdown]
# In the figure, most of the idle time is at the end. Stage 0 waits for gradients that pass through every other stage
# first, and each stage takes twice as long for its backward pass as for its forward pass. What exactly does the
# previous stage wait for?
#
# A linear layer $Y = XW^\top$ receives the gradient $G$ of its output, and computes two things with it:
#
# $$\frac{\partial L}{\partial X} = G\,W, \qquad \frac{\partial L}{\partial W} = G^\top X$$
#
# The first one is the gradient that the layer before needs, and so on to the previous stage. Nothing needs the second
# one until the optimizer's step. Yet autograd computes both before it moves on to the next layer. [Qi et al.,
# 2023](https://arxiv.org/abs/2401.10241) split the pass: **B** computes the gradient of the input and sends it, and
# **W** computes the gradients of the weights at any time between B and the optimizer's step. (The published formulas,
# and ours, use $F$, $B$, and $W$ for the times of these passes, too.)
#
# How long are they? An MLP has nothing but linear layers and element-wise functions. Guess the times of B and W,
# relative to the forward pass, on an H100:

# %% answer="guess-times"
### BEGIN SOLUTION
guess_times = [1.1, 1.0]
### END SOLUTION

# %% tags=["explore"]
def passes(needs_input, needs_weights):
    """Return the modeled times of a forward and a backward pass of four MLPs."""
    blocks = zero_bubble.Blocks(4, 4096).requires_grad_(needs_weights)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    for _ in range(2):  # the first one warms up
        x = torch.zeros(4096, 1, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=needs_input)
        torch.cuda.synchronize()
        marks[0].record()
        y = blocks(x, None)
        marks[1].record()
        y.backward(torch.zeros_like(y))
        marks[2].record()
        torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])


forward, inputs = virtualgpu.run(lambda: passes(True, False), "h100:1")[0].value
_, both = virtualgpu.run(lambda: passes(True, True), "h100:1")[0].value
print(f"F {forward:.1f} ms, B {inputs:.1f} ms, B and W {both:.1f} ms, so W takes {both - inputs:.1f} ms (modeled)")
check.compare("B relative to F (modeled)", guess_times[0], inputs / forward)
check.compare("W relative to F (modeled)", guess_times[1], (both - inputs) / forward)

# %% [markdown]
# The GEMMs of all three passes have the same FLOPs. In this model, W takes longer than the others because it also casts
# each gradient to fp32 and adds it to the accumulated one. With attention, the order changes: its core has no weights, so
# it makes F and B longer, and adds nothing to W. In any case, W is the only pass that can wait.
#
# ### Exercise 1: split the backward pass
#
# Write `split_backward.py`. `SplitStage` takes the place of your `Stage` of lab 10: `Pipeline(modules, links, buffer,
# make_stage=SplitStage)` executes schedules with W. Modules stay as they are. They call `torch.nn.functional.linear`,
# as your layers of lab 09 do, and `linear_replaced`, which is given, replaces this function within a `with` block.
#
# - `forward` and `backward` do what those of `Stage` do, except that `backward` computes no gradient of a matrix or bias
#   that a linear layer uses. It queues what this takes. All other parameters, such as embeddings and the scales of norms,
#   get their gradients in B.
# - `weight(key)` computes the gradients of one micro-batch that `backward` has queued, and adds them to those that the
#   parameters have. Then nothing of the micro-batch stays in memory. Different micro-batches may be in flight at once.
# - After all three passes, every gradient is what one process computes: also of a matrix that two layers use, of one
#   that does not require a gradient (it has none), and of parameters in bf16 whose `grad_dtype` is `torch.float32`.
#   These accumulate in fp32, as in lab 05.
# - Between B and W, a stage keeps the input of each linear layer and the gradient of its output, and nothing else.
# - With activation checkpointing, the module's forward pass runs again, in the middle of B. Then B must not compute the
#   weight gradients, either.
#
# Any number of dimensions may precede the features. The last stage returns a loss, as in lab 10.

# %% answer="split-backward"
%%writefile mytrainer/split_backward.py
"""Split a backward pass in two: B computes the gradient of the input, and W those of the weights."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F

plain_linear = F.linear


@contextmanager
def linear_replaced(function):
    """Let torch.nn.functional.linear be a function of x, weight, and bias=None within a `with` block."""
    original = F.linear
    F.linear = function
    try:
        yield
    finally:
        F.linear = original


class SplitLinear(torch.autograd.Function):
    """x W^T + b, whose backward pass computes the gradient of x only, and queues those of W and b."""

    @staticmethod
    def forward(ctx, x, weight, bias, queue):
        """Args:
            x: [..., in].
            weight: [out, in].
            bias: [out], or None.
            queue: the list to which the backward pass appends what W needs.
        """
        ### BEGIN SOLUTION
        ctx.save_for_backward(x)
        # An attribute: saved tensors of a recomputed pass are copies, and a gradient belongs to the parameter itself.
        ctx.weight, ctx.bias, ctx.queue = weight, bias, queue
        return plain_linear(x, weight, bias)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        ### BEGIN SOLUTION
        (x,) = ctx.saved_tensors
        ctx.queue.append((ctx.weight, ctx.bias, x.detach(), grad))  # without the history that led to x
        return grad @ ctx.weight, None, None, None
        ### END SOLUTION


class SplitStage:
    """A part of a model, as Stage of lab 10, with its backward pass in two parts.

    Attributes:
        module: called with hidden states and a micro-batch.
        in_flight: {key of a micro-batch: what its B needs}.
        queues: {key of a micro-batch: what its W needs}.
    """

    def __init__(self, module):
        self.module, self.in_flight, self.queues = module, {}, {}

    def forward(self, key, x, data):
        """Run the forward pass of a micro-batch, and return its output, which has no history.

        Args:
            key: of the micro-batch.
            x: received hidden states, or None on the first stage.
            data: the micro-batch.
        """
        ### BEGIN SOLUTION
        if x is not None:
            x = x.detach().requires_grad_()
        with self.split(key):
            y = self.module(x, data)
        self.in_flight[key] = x, y
        return y.detach()
        ### END SOLUTION

    def backward(self, key, grad):
        """Run B of a micro-batch, and return the gradient of its x (None on the first stage).

        Args:
            key: of the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        ### BEGIN SOLUTION
        x, y = self.in_flight.pop(key)
        with self.split(key):  # recomputation calls the module again
            y.backward(grad)
        return None if x is None else x.grad
        ### END SOLUTION

    def weight(self, key):
        """Run W of a micro-batch: add to the gradients of the matrices and biases of its linear layers."""
        ### BEGIN SOLUTION
        with torch.no_grad():
            for weight, bias, x, grad in self.queues.pop(key):
                x, grad = x.flatten(0, -2), grad.flatten(0, -2)
                if weight.requires_grad:
                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
                if bias is not None and bias.requires_grad:
                    bias.backward(grad.sum(0))

    def split(self, key):
        queue = self.queues.setdefault(key, [])
        return linear_replaced(lambda input, weight, bias=None: SplitLinear.apply(input, weight, bias, queue))
        ### END SOLUTION

# %% tags=["driver"]
def split_step(schedule, common, seed, recompute=None, frozen=()):
    """Train a tiny model for a step; return the loss, and a projection of each gradient."""
    from lablib import executor, zero_bubble

    executor.install()
    from mytrainer.split_backward import SplitStage

    return zero_bubble.step(SplitStage, schedule, common, seed, recompute, frozen)


def summed_gradients(values):
    """Return the gradient of one weight in bf16 after a micro-batch with each of these output gradients, and its dtype."""
    from mytrainer.split_backward import SplitStage

    weight = torch.nn.Parameter(torch.ones(1, 1, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    stage = SplitStage(lambda x, data: torch.nn.functional.linear(x, weight))
    for number, value in enumerate(values):
        stage.forward(number, torch.ones(1, 1, 1, dtype=torch.bfloat16), None)
        stage.backward(number, torch.full((1, 1, 1), value, dtype=torch.bfloat16))
        stage.weight(number)
    return [weight.grad.item(), str(weight.grad.dtype)]


def split_passes(actions):
    """Run passes of one stage on a GPU."""
    from mytrainer.split_backward import SplitStage

    from lablib import zero_bubble

    zero_bubble.passes_on_gpu(SplitStage, actions, 4, 1024, 4096)

# %% tags=["check-setup"]
import torch

from lablib import zero_bubble


def in_one_number(grad):
    """Return the scalar product of a gradient with sines."""
    from lablib import tensor

    return float((grad.contiguous() * tensor.sines(grad.shape, 2.0)).sum())


def step_of_one_process(schedule, common, seed, frozen=()):
    """Return what split_step returns on each rank, by plain autograd; `seed` has one number per rank."""
    parts = [zero_bubble.Part(one, number == 0, number == len(seed) - 1) for number, one in enumerate(seed)]
    for part in parts:
        for name in frozen:
            dict(part.named_parameters())[name].requires_grad_(False)
    total = 0.0
    for k in range(1 + max(int(action[1:]) for action in schedule[0].split())):
        data, y = zero_bubble.batch(common, k), None
        for part in parts:
            y = part(y, data)
        wanted = [(actions.split(), name, one) for part, actions in zip(parts, schedule, strict=True)
                  for name, one in part.named_parameters() if one.requires_grad]
        found = torch.autograd.grad(y, [one for _, _, one in wanted])
        for (actions, name, one), grad in zip(wanted, found, strict=True):
            if name not in zero_bubble.LINEAR or f"W{k}" in actions:
                one.grad = grad if one.grad is None else one.grad + grad
        total += y.item()
    return [[total if part.is_last else None, *[None if one.grad is None else in_one_number(one.grad) for one in part.parameters()]]
            for part in parts]


def require_late_weights(run, share):
    """Require that the last stage's gradients are sent before it computes weight gradients.

    Args:
        run: of a schedule whose last stage runs all W at the end.
        share: of its FLOPs, those of F and B.
    """
    flops, last = run.records[1].flops, max(call.started for call in run.calls(1, "send"))
    check.that(last <= 1.01 * share * flops, f"Stage 1 has done {last / flops:.0%} of its FLOPs when it sends its last gradient, and "
               f"F and B are {share:.0%} of them. Which GEMMs could come later?")
    check.that(last >= 0.99 * share * flops, f"Stage 1 has done only {last / flops:.0%} of its FLOPs when it sends its last gradient, "
               f"and F and B are {share:.0%} of them. Where are the others?")

# %% check="split-backward" points=8
with check.parts():
    with check.part(2, "computes the gradients of one process"):
        check.ranks(
            split_step, ranks=2, rel=1e-4,
            cases=[{"schedule": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"], "common": 1.0, "seed": check.by_rank([2.0, 3.0])},
                   {"schedule": ["F0 F1 B0 B1 W1", "F0 F1 B0 B1 W0"], "common": 4.0, "seed": check.by_rank([5.0, 6.0])},
                   {"schedule": ["F0 B0 W0", "F0 B0 W0"], "common": 1.0, "seed": check.by_rank([2.0, 3.0]), "frozen": ["square", "bias"]}],
            expected=[[[None, -5.374372, 0.3600067, 22.06479, -0.7109855, 11.69262, 5.643245], [-14.74552, 0.1522838, 0.3256332, 0.07119176, 7.803298, 8.645391]],
                 [[None, -3.197466, 0.01854032, -3.388385, -1.292909, 0.3691759, -9.555789], [-1.390077, -0.2566257, -0.6552588, -0.682184, 10.27071, 13.61407]],
                 [[None, -4.775599, -0.2126648, 13.67263, None, None, 4.553366], [-8.688489, 0.3632877, -6.136342, None, None, 9.496413]]],
            hints={
                "The matrix that two layers use has the gradient of one of them. What happens to a second one?":
                    [[[None, -5.374372, 0.3600067, 22.06479, -0.7109855, 0.4547369, 5.643245], [-14.74552, 0.1522838, 0.3256332, 0.07119176, 6.558666, 8.645391]],
                 [[None, -3.197466, 0.01854032, -3.388385, -1.292909, 13.7606, -9.555789], [-1.390077, -0.2566257, -0.6552588, -0.682184, 6.470391, 13.61407]], []],
                "The parameters have the gradients of the last W only.":
                    [[[None, -5.374372, 0.3600067, 8.392163, 5.546532, -0.8224566, 1.08988], [-14.74552, 0.1522838, 6.461975, -0.03512966, 6.138102, -0.8510227]], [], []],
                "W of one micro-batch must not touch the others, which run later.":
                    [[],
                 [[None, -3.197466, 0.01854032, 3.343215, 0.5166876, -4.819696, -9.845092], [-1.390077, -0.2566257, -2.04841, -0.2995743, 4.931402, 5.940176]], []],
                "The bias has no gradient, or a wrong one.":
                    [[[None, -5.374372, 0.3600067, 22.06479, None, 11.69262, 5.643245], [-14.74552, 0.1522838, 0.3256332, None, 7.803298, 8.645391]],
                 [[None, -3.197466, 0.01854032, -3.388385, None, 0.3691759, -9.555789], [-1.390077, -0.2566257, -0.6552588, None, 10.27071, 13.61407]], []]})
        ### BEGIN HIDDEN TESTS
        (drawn,) = check.draw(1, common=check.between(0, 100), seed=check.for_each_rank(check.between(0, 100)))
        check.ranks(split_step, ranks=2, rel=1e-3, cases=[{"schedule": ["F0 F1 F2 B0 B1 W0 B2 W2 W1", "F0 B0 F1 B1 W0 F2 B2 W1 W2"], **drawn}],
                    expected=lambda ranks, **case: step_of_one_process(**case))
        ### END HIDDEN TESTS
    with check.part(2, "sends gradients before it computes those of weights"):
        CASE = {"schedule": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"], "common": 1.0, "seed": check.by_rank([2.0, 3.0])}
        (run,) = check.ranks(split_step, ranks=2, cases=[CASE], expected=None)
        require_late_weights(run, 2 / 3)
    with check.part(1, "also if activations are recomputed"):
        CASE = {"schedule": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"], "common": 1.0, "seed": check.by_rank([2.0, 3.0]),
                "recompute": "again"}
        (run,) = check.ranks(split_step, ranks=2, rel=1e-4, cases=[CASE], expected=[[[None, -5.374372, 0.3600067, 22.06479, -0.7109855, 11.69262, 5.643245], [-14.74552, 0.1522838, 0.3256332, 0.07119176, 7.803298, 8.645391]]])
        require_late_weights(run, 3 / 4)
        ### BEGIN HIDDEN TESTS
        (drawn,) = check.draw(1, common=check.between(0, 100), seed=check.for_each_rank(check.between(0, 100)))
        (run,) = check.ranks(split_step, ranks=2, rel=1e-3,
                             cases=[{"schedule": ["F0 F1 B0 W0 B1 W1", "F0 F1 B0 B1 W1 W0"], "recompute": "again", **drawn}],
                             expected=lambda ranks, recompute, **case: step_of_one_process(**case))
        require_late_weights(run, 3 / 4)
        ### END HIDDEN TESTS
    with check.part(1, "accumulates in fp32"):
        check.ranks(summed_gradients, ranks=1, cases=[{"values": [256.0, 1.0, 1.0, 1.0]}], expected=[[[259.0, "torch.float32"]]],
                    hints={"In bf16, 256 + 1 is 256. Which dtype does the parameter ask for?": [[[256.0, "torch.float32"]]]})
        ### BEGIN HIDDEN TESTS
        check.ranks(summed_gradients, ranks=1, cases=check.draw(1, values=lambda dice: [512.0, *[float(dice.randint(1, 3)) for _ in range(6)]]),
                    expected=lambda ranks, values: [[sum(values), "torch.float32"]])
        ### END HIDDEN TESTS
    with check.part(2, "keeps what W needs until W, on a virtual H100"):
        FLOPS = {"flops": 8 * 6 * 4 * 4096 * 8 * 1024**2, "dtype": "bf16"}
        late = check.gpus(split_passes, {"actions": " ".join([f"F{k} B{k}" for k in range(8)] + [f"W{k}" for k in range(8)])}, "h100:1",
                          least=FLOPS)
        check.pass_mark(late.peak_memory, error=late.memory_error, below=3.3, hint=(
            f"{late.peak_memory:.2f} GiB with eight micro-batches between B and W. Which of the tensors in memory does W not read?"))
        soon = check.gpus(split_passes, {"actions": " ".join(f"F{k} B{k} W{k}" for k in range(8))}, "h100:1", least=FLOPS)
        check.pass_mark(soon.peak_memory, error=soon.memory_error, below=1.2, hint=(
            f"{soon.peak_memory:.2f} GiB, although each W runs right after its B. What still refers to a micro-batch after W?"))

# %% [raw] mutant="split-backward" hint="Which GEMMs could come later"
# -        ctx.queue.append((ctx.weight, ctx.bias, x.detach(), grad))  # without the history that led to x
# -        return grad @ ctx.weight, None, None, None
# +        flat = grad.flatten(0, -2)
# +        bias = None if ctx.bias is None else flat.sum(0)
# +        return grad @ ctx.weight, flat.t() @ x.flatten(0, -2) if ctx.weight.requires_grad else None, bias, None

# %% [raw] mutant="split-backward" hint="Which GEMMs could come later"
# -        with self.split(key):  # recomputation calls the module again
# -            y.backward(grad)
# +        y.backward(grad)

# %% [raw] mutant="split-backward" hint="What happens to a second one"
# -                if weight.requires_grad:
# -                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
# +                if weight.requires_grad and id(weight) not in seen:
# +                    weight.backward(grad.t() @ x)
# +                    seen.add(id(weight))
# -        with torch.no_grad():
# +        seen = set()
# +        with torch.no_grad():

# %% [raw] mutant="split-backward" hint="the gradients of the last W only"
# -        with torch.no_grad():
# +        with torch.no_grad():
# +            for weight, bias, _, _ in self.queues[key]:
# +                weight.grad = None
# +                if bias is not None:
# +                    bias.grad = None

# %% [raw] mutant="split-backward" hint="must not touch the others"
# -            for weight, bias, x, grad in self.queues.pop(key):
# +            for weight, bias, x, grad in [one for other in list(self.queues) for one in self.queues[other]]:
# -                    bias.backward(grad.sum(0))
# +                    bias.backward(grad.sum(0))
# +            for queue in self.queues.values():
# +                queue.clear()

# %% [raw] mutant="split-backward" hint="The bias has no gradient"
# -                if bias is not None and bias.requires_grad:
# -                    bias.backward(grad.sum(0))

# %% [raw] mutant="split-backward" hint="In bf16, 256 + 1 is 256"
# -                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
# +                    new = grad.t() @ x
# +                    old = new.new_zeros(()) if weight.grad is None else weight.grad
# +                    weight.grad = (old.to(new.dtype) + new).to(weight.grad_dtype)

# %% [raw] mutant="split-backward" hint="Which of the tensors in memory does W not read"
# -        x, y = self.in_flight.pop(key)
# +        x, y = self.in_flight[key]
# -            y.backward(grad)
# +            y.backward(grad, retain_graph=True)
# -        with torch.no_grad():
# +        self.in_flight.pop(key)
# +        with torch.no_grad():

# %% [raw] mutant="split-backward" hint="What still refers to a micro-batch after W"
# -            for weight, bias, x, grad in self.queues.pop(key):
# +            for weight, bias, x, grad in self.queues[key]:

# %% [raw] mutant="split-backward" hint="What still refers to a micro-batch after W"
# -        ctx.queue.append((ctx.weight, ctx.bias, x.detach(), grad))  # without the history that led to x
# +        ctx.queue.append((ctx.weight, ctx.bias, x, grad))

# %% [raw] mutant="split-backward" hint="does not require grad"
# -                if weight.requires_grad:
# -                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
# -                if bias is not None and bias.requires_grad:
# -                    bias.backward(grad.sum(0))
# +                weight.backward(grad.t() @ x)
# +                if bias is not None:
# +                    bias.backward(grad.sum(0))

# %% [markdown]
# What does it cost to postpone W? Let a stage run eight micro-batches in three orders:

# %% tags=["explore"]
def peak(actions):
    """Return the modeled peak memory of these passes of four MLPs, in GiB."""
    return virtualgpu.run(lambda: split_passes(actions), "h100:1")[0].peak / 2**30


SOON = " ".join(f"F{k} B{k} W{k}" for k in range(8))
LATE = " ".join([f"F{k} B{k}" for k in range(8)] + [f"W{k}" for k in range(8)])
FORWARDS = " ".join([f"F{k}" for k in range(8)] + [f"B{k} W{k}" for k in range(8)])
for name, actions in {"W right after B": SOON, "all W at the end": LATE, "all F first": FORWARDS}.items():
    print(f"{name:16} {result(f'{peak(actions):.2f} GiB')} at the peak (modeled)")

# %% [markdown]
# Between B and W, a micro-batch keeps the inputs of the linear layers and the gradients of their outputs, which is less
# than all activations between F and B, but not much less. So from now on, a micro-batch is **in flight** from F to W,
# and the most micro-batches in flight on a stage is our (slightly pessimistic) measure of memory.
#
# ### Exercise 2: ZB-H1
#
# What share of 1F1B's idle time is left if W may run at any time, but memory may not grow? Assume that F, B, and W take
# the same time. (An ordinary backward pass is B and W in one.) Guess first:

# %% answer="guess-left"
### BEGIN SOLUTION
guess_left = 0.33
### END SOLUTION

# %% [markdown]
# Now write `zb_h1`. It returns the actions of each stage, in the form of lab 10, with `W3` for W of micro-batch 3.
# With $p$ stages and $m$ micro-batches:
#
# - At most $p$ micro-batches are in flight on any stage, as on the first stage of 1F1B. In flight now means until W.
# - If F, B, and W each take the same time, and $m \ge p$, the pipeline idles for $(p-1)(F+B-W)$ only: it finishes
#   after $m(F+B+W) + (p-1)(F+B-W)$. With $m < p$, fewer W are there to fill the gaps, and it idles for
#   $(p-1)(F+B) - (m-1)W$.
#
# Draw two stages on paper first. Which passes can a stage run while it waits for its first gradient, and which may it
# run only later than you would like?

# %% answer="zb-h1"
%%writefile mytrainer/zero_bubble.py
"""ZB-H1 (Qi et al., 2023): weight gradients fill the pipeline's idle time, in the memory of 1F1B."""


def zb_h1(stages, micro_batches):
    """Return the actions of each stage: F, B, and W of every micro-batch, as in [["F0", "B0", "W0"]]."""
    ### BEGIN SOLUTION
    schedule = []
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        actions = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                actions.append(f"F{warm_up + k}")
            actions.append(f"B{k}")
            if k >= stage:
                actions.append(f"W{k - stage}")
        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
        schedule.append(actions)
    return schedule
    ### END SOLUTION

# %% tags=["driver"]
def zb_h1_schedule(stages, micro_batches):
    """Return the student's schedule."""
    from mytrainer.zero_bubble import zb_h1

    return zb_h1(stages, micro_batches)

# %% check="zb-h1" points=4
check.schedule(
    zb_h1_schedule, on_rank=True,
    cases=[{"stages": p, "micro_batches": m} for p, m in ((4, 8), (2, 3), (3, 5), (1, 2), (4, 2))], ends=[27, 10, 17, 6, 11], live=[4, 2, 3, 1, 2],
    hints={"A micro-batch is in flight until its W. Which W is due before the next F?": "memory",
           "This is right for some pipelines. What changes with the stage, and what with the number of micro-batches?": "some sizes",
           "The backward pass is not split: B alone computes both gradients here.": "1f1b",
           "Every B needs a W, also the last ones.": "incomplete",
           "Draw who waits for whom: do neighbors agree on the order of micro-batches?": "deadlock",
           "B of the previous stage waits for yours. Does a W come before it that nobody waits for?": "bubble"})
### BEGIN HIDDEN TESTS
check.schedule(zb_h1_schedule, on_rank=True, cases=check.draw(8, stages=range(1, 8), micro_batches=range(1, 15)),
               ends=lambda stages, micro_batches: (3 * micro_batches + stages - 1 if micro_batches >= stages
                                                   else 2 * micro_batches + 2 * stages - 1),
               live=lambda stages, micro_batches: min(stages, micro_batches))
### END HIDDEN TESTS

# %% [raw] mutant="zb-h1" hint="Does a W come before it that nobody waits for"
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +            actions.append(f"W{k}")

# %% [raw] mutant="zb-h1" hint="Which W is due before the next F"
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +            if k > stage:
# +                actions.append(f"W{k - stage - 1}")
# +        actions += [f"W{k}" for k in range(max(0, micro_batches - stage - 1), micro_batches)]

# %% [raw] mutant="zb-h1" hint="Does a W come before it that nobody waits for"
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +        actions += [f"W{k}" for k in range(micro_batches)]

# %% [raw] mutant="zb-h1" hint="B alone computes both gradients"
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]

# %% [raw] mutant="zb-h1" hint="also the last ones"
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]

# %% [raw] mutant="zb-h1" hint="What changes with the stage"
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +        actions += [f"W{k}" for k in range(micro_batches - stage, micro_batches)]

# %% [raw] mutant="zb-h1" hint="do neighbors agree on the order"
# -            actions.append(f"B{k}")
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +            k = k if stage < stages - 1 or k + 1 + k % 2 > micro_batches else k
# +            actions.append(f"B{k}")
# +        if stage == stages - 1:
# +            actions = [f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))]
# +        actions += [f"W{k}" for k in range(micro_batches)]

# %% [markdown]
# The executor of lab 10, here the course's copy of it, runs your schedule on four ranks. Every pass takes 20 ms, so that
# the timeline can be compared with a simulated one:

# %% tags=["explore"]
def on_ranks(schedule):
    """Return the timeline of a schedule that four ranks executed, in units of one pass."""
    logs = run_ranks(zero_bubble.sleep_on_ranks, 4, schedule, 0.02)
    start = min(span[3] for log in logs for span in log)
    return Timeline.of({stage: [(*span[:3], (span[3] - start) / 0.02, (span[4] - start) / 0.02) for span in log]
                        for stage, log in enumerate(logs)})


h1 = zb_h1_schedule(4, 8)
one_f_one_b = simulate(load("1f1b", 4, 8))
ran, simulated = on_ranks(h1), simulate(parse(h1))
idle = [made.total - 24 for made in (simulated, one_f_one_b)]
check.compare("share of 1F1B's idle time", guess_left, idle[0] / idle[1])
print(f"bubble {result(f'{ran.bubble_fraction:.1%}')} on four ranks, {simulated.bubble_fraction:.1%} simulated, and "
      f"{one_f_one_b.bubble_fraction:.1%} with 1F1B; in flight {ran.peak_live}")
draw_beside({"ZB-H1 on four ranks": ran, "ZB-H1, simulated": simulated}, "", True)

# %% [markdown]
# The idle time at the end is gone: W fills it. What is left is at the beginning, before a stage's first action, and
# between the first F and the first B. No W can fill that, because none is ready yet. What else could a stage run there?
#
# ### Exercise 3: ZB-H2
#
# Allow more memory, and the second gap closes as well. Write `zb_h2` for at least $2p-1$ micro-batches:
#
# - If F, B, and W take the same time, **no stage ever waits** between its first and its last action. So each stage
#   takes $m(F+B+W)$ for a step.
# - At most $2p-1$ micro-batches are in flight on any stage.
#
# Stages still begin one after the other. When does each of them receive its first gradient, and what does it do until
# then?

# %% answer="zb-h2"
%%writefile mytrainer/zero_bubble_2.py
"""ZB-H2 (Qi et al., 2023): no idle time between a stage's first and last action, in twice the memory of 1F1B."""


def zb_h2(stages, micro_batches):
    """Return the actions of each stage, for at least 2 stages - 1 micro-batches."""
    ### BEGIN SOLUTION
    schedule = []
    for stage in range(stages):
        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
        actions = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            actions.append(f"B{k}")
            if k >= late:
                actions.append(f"W{k - late}")
            if warm_up + k < micro_batches:
                actions.append(f"F{warm_up + k}")
        schedule.append(actions + [f"W{k}" for k in range(micro_batches - late, micro_batches)])
    return schedule
    ### END SOLUTION

# %% tags=["driver"]
def zb_h2_schedule(stages, micro_batches):
    """Return the student's schedule."""
    from mytrainer.zero_bubble_2 import zb_h2

    return zb_h2(stages, micro_batches)

# %% check="zb-h2" points=4
check.schedule(
    zb_h2_schedule, on_rank=True,
    cases=[{"stages": p, "micro_batches": m} for p, m in ((4, 8), (2, 5), (3, 7), (1, 2))], stage_time=[24, 15, 21, 6], live=[7, 3, 5, 1],
    hints={"That is ZB-H1, whose stages wait for their first gradient.": "zb-h1",
           "This is right for some pipelines. What changes with the stage?": "some sizes",
           "Every B needs a W, also the last ones.": "incomplete",
           "A micro-batch is in flight until its W. How many F may come before the first W?": "memory",
           "Look at the longest wait. Which B is late, and which W or F of the next stage makes it late?": "bubble"})
### BEGIN HIDDEN TESTS
check.schedule(zb_h2_schedule, on_rank=True,
               cases=[{"stages": one["stages"], "micro_batches": 2 * one["stages"] - 1 + one["more"]}
                      for one in check.draw(8, stages=range(1, 8), more=range(8))],
               stage_time=lambda stages, micro_batches: 3 * micro_batches, live=lambda stages, micro_batches: 2 * stages - 1)
### END HIDDEN TESTS

# %% [raw] mutant="zb-h2" hint="whose stages wait for their first gradient"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = stages - stage, stage

# %% [raw] mutant="zb-h2" hint="Which B is late"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = 2 * (stages - stage) - 1, 0

# %% [raw] mutant="zb-h2" hint="Which B is late"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = 2 * (stages - stage) - 1, stage

# %% [raw] mutant="zb-h2" hint="How many F may come before the first W"
# -            if k >= late:
# -                actions.append(f"W{k - late}")
# -            if warm_up + k < micro_batches:
# -                actions.append(f"F{warm_up + k}")
# +            if warm_up + k < micro_batches:
# +                actions.append(f"F{warm_up + k}")
# +            if k >= late:
# +                actions.append(f"W{k - late}")

# %% [raw] mutant="zb-h2" hint="What changes with the stage"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = max(1, 7 - 2 * stage), 2 * stage

# %% [raw] mutant="zb-h2" hint="also the last ones"
# -        schedule.append(actions + [f"W{k}" for k in range(micro_batches - late, micro_batches)])
# +        schedule.append(actions)

# %% tags=["explore"]
h2 = zb_h2_schedule(4, 12)
draw_beside({"ZB-H1": simulate(parse(zb_h1_schedule(4, 12))), "ZB-H2": simulate(parse(h2))}, "", True)

# %% [markdown]
# ZB-H2 is a parallelogram: no stage waits, but each begins one F after the previous one, and ends later. That is idle
# time, too, unless stage 0 begins its next step at once. It may do so only when its own optimizer step is done, and two
# things in an optimizer step make it wait for all other stages: the global gradient norm, and the check for NaN and
# infinity. Qi et al. therefore step first and validate later (**post-validation**): each stage uses what it knows of the
# norm so far, passes it on with the pipeline's own messages, and rolls its step back in the rare case in which the
# gradients had to be clipped or contained a NaN. So the rollback must be exact, and the optimizer must be invertible,
# as Adam is if you keep the gradients. Our trainer does not do that: its ZB-H2 has the idle time of ZB-H1, in more
# memory. How much memory? This is the most loaded stage with your `SplitStage`:

# %% tags=["explore"]
for name, schedule in {"ZB-H1": zb_h1_schedule(4, 12), "ZB-H2": h2}.items():
    peaks = [peak(" ".join(actions)) for actions in schedule]
    made = simulate(parse(schedule))
    print(f"{name}: {result(f'{max(peaks):.2f} GiB')} on the most loaded stage (modeled); a step takes {made.total} passes from the "
          f"first to the last, and {made.longest} on each stage")

# %% [markdown]
# ## Back and forth: V-shaped schedules
#
# ZB-H2 pays for a wait with memory: a micro-batch travels to the last stage, and its gradient comes all the way back,
# before stage 0 can run its first B. So shorten the wait. Give every stage two chunks of the model, and place them in a
# **V**: with $p$ stages, stage $s$ has parts $s$ and $2p-1-s$. A micro-batch turns around on the last stage without a
# transfer, and its loss is computed on stage 0. Gradients begin there, too, so stage 0 does not wait for them.
#
# **ZBV** (Qi et al., 2023, section 6, and [2024](https://arxiv.org/abs/2405.15362)) has no bubble in the sense of ZB-H2,
# and the memory of 1F1B. **DualPipeV** is the DualPipe of DeepSeek-V3 ([DeepSeek-AI,
# 2024](https://arxiv.org/abs/2412.19437)), which sends micro-batches in from both ends and so needs every parameter twice,
# cut in half. Its steady state pairs the forward pass of one chunk with the backward pass of the other, so that the
# computation of one hides the all-to-all of the other.

# %% tags=["explore"]
draw_beside({name: simulate(load(name, 4, 8)) for name in ("zbv", "dualpipev")}, "", True)

# %% tags=["explore"]
for name in ("1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev"):
    chunks = 1 if name in ("1f1b", "zb-h1", "zb-h2") else 2
    made = load(name, 4, 8, chunks)
    quick, slow = simulate(made), simulate(made, Durations(link=0.5))
    print(f"{name:12} idle {result(f'{quick.bubble_fraction:5.1%}')} of the time, {quick.longest / 24 - 1:5.1%} longer than its work on a "
          f"stage, {max(peak_live(made)) / chunks:4.1f} micro-batches in flight; with slow links idle {slow.bubble_fraction:5.1%}")

# %% [markdown]
# DeepSeek's [repository](https://github.com/deepseek-ai/DualPipe) counts $2p+1$ activations of half a stage for
# DualPipe's $PP = 2p$ parts, as in the last line. Its bubble counts pairs of overlapped passes, which this simulation does
# not have. The last column is the other side of the coin: a link that takes half as long as a forward pass costs a
# V-shaped schedule more than ZB-H2, whose long warm-up hides it.
#
# ## The contest
#
# Real stages differ, memory is what it is, and links are slow. `lab contest pipelines` draws such cases. Its **ghosts** are
# the published schedules:

# %% tags=["explore"] short={"!lab contest pipelines": "!true"}
!lab contest pipelines

# %% [markdown]
# ### Exercise 4: beat the ghosts
#
# Write `schedule(case)` in `contest/pipelines.py`. The rules are above. No ghost looks at the case's times or memory,
# and those that exceed a cap are disqualified there. Yours can look: instead of writing down an order, let a small
# simulation find one. At each point in time, which stages could start an action, what is most urgent, and what
# still fits?
#
# The check passes if your schedules are valid in every case, and their total, as `lab contest` computes it, is
# ahead of the best ghost. The file has everything that it needs, because the contest runs it alone. After this exercise, go on
# as long as you like: your course ranks its students by secret cases.

# %% answer="contest"
%%writefile contest/pipelines.py
"""A schedule for the contest, made by a simulation."""


def schedule(case):
    """Return a list with a string of actions for each stage, such as "F0 F1 B0 B1"."""
    ### BEGIN SOLUTION
    made = [simulated(case, eager) for eager in (True, False)]
    return min(made, key=lambda one: one[0])[1]


def simulated(case, eager):
    """Start whatever can start first, B before F before W; return the end, and the actions.

    Without `eager`, no stage has more micro-batches in flight than are needed to bridge the wait for its first gradient.
    """
    stages, count = case["stages"], case["micro_batches"]
    room = [int(cap / size + 1e-6) for cap, size in zip(case["memory"], case["activation"], strict=True)]
    if not eager:
        room = [min(cap, 2 * (stages - stage) - 1) for stage, cap in enumerate(room)]
    times = {"F": case["forward"], "B": case["backward"], "W": case["weight"]}
    ends = {}  # (kind, stage, micro-batch): when it ends
    done = {kind: [0] * stages for kind in times}
    free, actions = [0.0] * stages, [[] for _ in range(stages)]

    def start(kind, stage):
        """Return when the next action of this kind could start, or None if that is not known yet."""
        number = done[kind][stage]
        if number == count or (kind == "F" and number - done["W"][stage] >= room[stage]):
            return None
        if kind == "W":
            needed, delay = ("B", stage, number), 0
        elif kind == "F":
            needed, delay = ("F", stage - 1, number), case["link"]
            if stage == 0:
                return free[0]
        elif stage == stages - 1:
            needed, delay = ("F", stage, number), 0
        else:
            needed, delay = ("B", stage + 1, number), case["link"]
        return max(free[stage], ends[needed] + delay) if needed in ends else None

    for _ in range(3 * count * stages):
        starts = [(when, order, stage, kind) for stage in range(stages) for order, kind in enumerate("BFW")
                  for when in [start(kind, stage)] if when is not None]
        when, _, stage, kind = min(starts)
        number = done[kind][stage]
        done[kind][stage] += 1
        free[stage] = ends[kind, stage, number] = when + times[kind][stage]
        actions[stage].append(f"{kind}{number}")
    return max(free), [" ".join(one) for one in actions]
    ### END SOLUTION

# %% tags=["driver"]
def contest_schedule(case):
    """Return the student's schedule for a case."""
    from contest.pipelines import schedule

    return schedule(case)

# %% tags=["check-setup"]
from math import prod
from random import Random

from labkit.contest.contests.pipelines import CONTEST
from labkit.contest.declaration import Disqualified

def score_or_none(case, answer):
    """Return an answer's score, and why it is disqualified."""
    try:
        return CONTEST.score(case, answer).score, ""
    except Disqualified as error:
        return 0.01, f"{error.kind}: {error}"


def total(scores):
    """Return the points of these scores: 100 times their geometric mean."""
    return 100 * prod(scores) ** (1 / len(scores))

# %% check="contest" points=4
def schedules_of(cases):
    """Return the student's schedule for each case."""
    return [run.values[0] for run in check.ranks(contest_schedule, ranks=1, cases=[{"case": case} for case in cases], expected=None)]


def require_valid(cases):
    for case, answer in zip(cases, schedules_of(cases), strict=True):
        _, reason = score_or_none(case, answer)
        where = f"{case['stages']} stages, {case['micro_batches']} micro-batches: {reason}."
        check.that("over the memory cap" not in reason, f"{where} A micro-batch needs memory until its B, or until its W if you split the "
                   "backward pass. Compare with the cap.")
        check.that("incomplete" not in reason, f"{where} Run F and B (and W if you split the backward pass) of every micro-batch "
                   "exactly once.")
        check.that(not reason, f"{where} The order in a stage's list is not one in which it and its neighbors can run.")


def require_ahead(cases, best):
    points = total([score_or_none(case, answer)[0] for case, answer in zip(cases, schedules_of(cases), strict=True)])
    check.that(points > best, f"{points:.2f} points, and the best ghost has {best:.2f}. In which group do you lose most? Compare what limits "
               "you there: the memory, the slowest stage, or the links.")


OPEN = [case for group in CONTEST.groups for case in group.open]
with check.parts():
    with check.part(2, "is valid in every case"):
        require_valid(OPEN)
        ### BEGIN HIDDEN TESTS
        for one in check.draw(2, seed=range(10**6)):
            require_valid([group.draw(Random(f"{one['seed']} {group.name}")) for group in CONTEST.groups])
        ### END HIDDEN TESTS
    with check.part(2, "is ahead of every ghost"):
        require_ahead(OPEN, 84.51)
        ### BEGIN HIDDEN TESTS
        (one,) = check.draw(1, seed=range(10**6))
        drawn = [group.draw(Random(f"{one['seed']} {number} {group.name}")) for group in CONTEST.groups for number in range(2)]
        require_ahead(drawn, max(total([score_or_none(case, ghost.answer(case))[0] for case in drawn]) for ghost in CONTEST.ghosts))
        ### END HIDDEN TESTS

# %% [raw] mutant="contest" hint="In which group do you lose most"
# %%writefile contest/pipelines.py
# def schedule(case):
#     schedule = []
#     for stage in range(case["stages"]):
#         warm_up = min(case["stages"] - stage - 1, case["micro_batches"])
#         actions = [f"F{k}" for k in range(warm_up)]
#         for k in range(case["micro_batches"]):
#             if warm_up + k < case["micro_batches"]:
#                 actions.append(f"F{warm_up + k}")
#             actions.append(f"B{k}")
#         schedule.append(" ".join(actions))
#     return schedule

# %% [raw] mutant="contest" hint="until its W if you split the backward pass"
# -        if number == count or (kind == "F" and number - done["W"][stage] >= room[stage]):
# +        if number == count or (kind == "F" and number - done["B"][stage] >= room[stage]):

# %% [raw] mutant="contest" hint="until its W if you split the backward pass"
# -        if number == count or (kind == "F" and number - done["W"][stage] >= room[stage]):
# +        if number == count:

# %% [raw] mutant="contest" hint="in which it and its neighbors can run"
# -    return max(free), [" ".join(one) for one in actions]
# +    return max(free), [" ".join(sorted(one, key=lambda action: (int(action[1:]), action[0] == "F"))) for one in actions]

# %% [raw] mutant="contest" hint="exactly once"
# -    for _ in range(3 * count * stages):
# +    for _ in range(3 * count * stages - stages):

# %% tags=["explore"] short={"!lab contest pipelines contest/pipelines.py": "!true"}
!lab contest pipelines contest/pipelines.py

# %% [markdown]
# Where is the rest? The score compares with a bound that no schedule beats, but memory may put it out of reach. Look at
# one case at a time: draw your schedule with `plots.pipeline`, find the longest wait, and ask which action would have
# filled it, and why it was not ready. Chunks and V-shaped answers are allowed where `case["chunks"]` says so.
#
# ## Discuss
#
# 1. **W with tensor parallelism.** Your column-parallel layers all-reduce the gradient of their input and hide that
#    behind the weight gradient (lab 09). What happens to that overlap when W moves away, and what could hide the
#    all-reduce instead?
# 2. **W with data parallelism.** DDP sends a gradient when it is complete. What do ZB-H1 and ZB-H2 do to the time in
#    which that can overlap with computation?
# 3. **Recompute or split?** Activation checkpointing makes B longer by a forward pass. What does that do to the bubble of
#    ZB-H1, and to the memory between B and W?
# 4. **Whose zero?** A paper reports a bubble of zero, and a colleague measures 10% idle time with the same schedule. Name
#    three reasons for which both can be right.

# %% [markdown]
# ## Cleanup
#
# Keep `mytrainer/` and `contest/pipelines.py`, which you can submit to the contest.

# %% tags=["explore"]
!ls mytrainer contest/pipelines.py

# %% [markdown]
# ## Summary
#
# - The previous stage waits only for the gradient of the input. W can wait, and fills the bubble at the end.
# - Between B and W, a linear layer keeps its input and the gradient of its output, so moving W costs memory.
# - ZB-H1 has the memory of 1F1B and a third of its bubble if F, B, and W take the same time. ZB-H2 removes the wait for the
#   first gradient, in twice the memory. V-shaped placement does so in the memory of 1F1B, with more transfers.
# - "Zero bubble" counts each stage from its first to its last action. The rest costs nothing only if the optimizer step does
#   not wait for other stages.
# - With unlike stages, memory caps, and slow links, a simulation finds better orders than any formula.
#
# ## Read next
#
# - [Qi et al., 2023](https://arxiv.org/abs/2401.10241), *Zero bubble pipeline parallelism*: the split, ZB-H1 and ZB-H2,
#   post-validation, and a scheduler that searches.
# - [Qi et al., 2024](https://arxiv.org/abs/2405.15362), *Pipeline parallelism with controllable memory*: building blocks
#   from which schedules repeat, among them the V.
# - [DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437), *DeepSeek-V3 technical report*: section 3.2 is DualPipe.
# - [`dualpipev.py`](https://github.com/deepseek-ai/DualPipe/blob/main/dualpipe/dualpipev.py): eight short loops that are the
#   whole schedule.
# - [`torch.distributed.pipelining`](https://docs.pytorch.org/docs/stable/distributed.pipelining.html): `ScheduleZBVZeroBubble`
#   and `ScheduleDualPipeV`, with a general way to split a backward pass.
