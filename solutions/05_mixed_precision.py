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
# # Mixed precision
#
# The data sheet promises that 16-bit numbers make a V100 eight times as fast. Two colleagues have tried it. One got a
# loss of NaN in the second step; the other's loss hardly moved. This lab reproduces both failures, and you build what
# prevents them:
#
# - **First sitting, 65 minutes.** You look at real gradients as 16-bit hardware sees them, and write an optimizer with
#   fp32 **master weights** for models in fp16 or bf16.
# - **Second sitting, 75 minutes.** You write **dynamic loss scaling**: the overflow check that all ranks agree on, the
#   scaler, and the training loop around them. Then your trainer trains in fp16 with the losses, the loss scale, and the
#   skipped steps of this course's trainer.
# - **Third sitting, 75 minutes.** You decide which operations may run in fp16, find out when fp16 needs *more* memory,
#   and why the step is not eight times as fast, and write an optimizer that needs no master weights.
#
# What happens to numbers is **real** here: your CPU computes with real fp16 and bf16 numbers. Time and memory on GPUs
# are **virtual**, that is, modeled.

# %% tags=["setup"]
import os

import torch
import torch.distributed as dist

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace
os.makedirs("mytrainer/new", exist_ok=True)

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("lab.mytrainer", "lablib.half", "lablib.tiny_gpt.trained", "layout_estimator", "minimegatron",
           "torch.amp.GradScaler", "torch.amp.autocast", "torch.autocast", "torch.cuda.amp.GradScaler",
           "torch.cuda.amp.autocast")

# %% tags=["explore"]
from job_monitor import kernels, logs
from lab import tensorboard
from lab.mytrainer import gain, journey, pieces, small_model, worked
from labcore.colors import bad, good, mark, result
from lablib import half, jobs, plots
from layout_estimator import costs

jobs.connect()

# %% [markdown]
# This lab builds on the trainer of lab 04. If you lack one of its files, the next cell installs the course's version. A
# course may leave those versions out. Then the cell names the file to write, and where:

# %% tags=["explore"]
for name in ("collectives", "ddp", "launch", "train"):
    if pieces.load(name) is None:
        print("\n".join(worked.install_or_explain(pieces.find(name))))

# %% [markdown]
# ## Two ways to fail
#
# Both colleagues changed one line: `model.to(dtype)`, which converts the parameters, and with them the activations, the
# gradients, and Adam's state. The first one trains in fp16, and the second trains in bf16 at a learning rate of
# $10^{-5}$, which is common in fine-tuning. Read the loop, and run it. The model is a small GPT on real text.

# %% tags=["explore"] short={"steps=30": "steps=2", "build(dtype)": "build(dtype, 1)"}
def train(dtype, rate, steps=30):
    """Train the small GPT with everything in one dtype, up to the first NaN; return the loss of each step."""
    model, batches = small_model.build(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(next(batches))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if loss.isnan():
            break  # so are all later ones
    return losses


first_runs = {name: train(*settings) for name, settings in {
    "fp16 at 1e-3": (torch.float16, 1e-3), "bf16 at 1e-5": (torch.bfloat16, 1e-5),
    "fp32 at 1e-5": (torch.float32, 1e-5)}.items()}
half.draw_losses(first_runs)

# %% [markdown]
# Nothing is rigged: these are the numbers that 16 bits give. A floating-point number has a sign, an exponent, and
# significant digits, and 16 bits are too few for both a wide range and high precision. The next cell asks PyTorch.

# %% tags=["explore"]
for name in ("float32", "float16", "bfloat16"):
    kind = torch.finfo(getattr(torch, name))
    print(f"{name:9} largest {kind.max:8.2g}   smallest normal {kind.tiny:8.2g}   smallest {kind.smallest_normal * kind.eps:8.2g}"
          f"   1 and the next number differ by {kind.eps:.2g}")
one = torch.tensor([70_000.0, 1e-8, 1 + 1e-3, 1 + 1e-4])
print(f"\nin fp16: {one.half().tolist()}\nin bf16: {one.bfloat16().tolist()}")

# %% [markdown]
# - A number beyond the range becomes infinite: an **overflow**. One that is too close to 0 becomes 0: an
#   **underflow**. Gradients can leave the range of fp16 at both ends; **bf16** has the range of fp32.
# - Every number is rounded, and bf16 rounds eight times more coarsely than fp16. An update smaller than half the
#   distance between two numbers is lost: bf16 numbers near 0.02 are 0.00012 apart, so Adam's steps of $10^{-5}$ do not
#   change such a weight at all. This is how the second colleague's loss stalls.
#
# The first one's NaN comes from Adam. Its second moment $v$ is a mean of *squared* gradients, which underflow to 0.
# PyTorch's default AdamW computes in the parameters' dtype, where $\epsilon = 10^{-8}$ is 0 as well, so the first
# update divides by $\sqrt0+0$: it is infinite where the gradient is not 0, and NaN where it is 0. (With `fused=True`,
# AdamW computes in fp32. It survives this step, but it still stores $v$ as 0.)
#
# **Mixed precision** ([Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)) keeps 16 bits for what is large
# and computed often, and 32 bits for what is added up: master weights and Adam's state in fp32, and, for fp16, a loss
# that is scaled so that gradients do not underflow. The V100's **Tensor Cores** multiply fp16 matrices. Those
# of the A100 and the H100 also multiply bf16 matrices, just as fast.

# %% [markdown]
# ## The range of real gradients
#
# Is underflow a theoretical problem? The **exponent** $e$ of a number $x$ with $2^e \le |x| < 2^{e+1}$ decides. A
# histogram over exponents shows at a glance what 16 bits can hold, and what a factor of $2^k$ does: it shifts the
# histogram by $k$ bins.

# %% [markdown]
# ### Exercise 1: a histogram of exponents
#
# Write `log2_histogram`. It must be exact: 1023.99994, the fp32 number below 1,024, has the exponent 9, although its
# logarithm rounds to 10. With `--log-num-zeros-in-grad`, `my_trainer.py` counts the zeros of each step's gradient with
# your function, and a gradient can hold infinities and NaN. On a GPU, it must not make the CPU wait for a result. An
# expression such as `x[x > 0]` does: only the GPU knows how large its result is.

# %% answer="histogram"
%%writefile mytrainer/histogram.py
"""A histogram of a tensor's exponents."""

import torch


def log2_histogram(tensor, lowest=-40, highest=16):
    """Count the elements of a tensor by their exponents.

    Args:
        tensor: fp16, bf16, or fp32, of any shape; it may require a gradient.
        lowest: exponent of the first bin, which also counts all smaller elements except zeros.
        highest: exponent of the last bin, which also counts all larger elements and infinities.

    NaN has no exponent and is counted nowhere. Returns the number of zeros, a tensor of one element, and the counts, int64
    [highest - lowest + 1]. The sign does not matter.
    """
    ### BEGIN SOLUTION
    values = tensor.detach().abs().flatten().float()
    present = (values > 0).long()  # neither zeros nor NaN
    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
    counts = present.new_zeros(highest - lowest + 1)
    counts.scatter_add_(0, exponents.clamp(lowest, highest).long() - lowest, present)
    return (values == 0).sum(), counts
    ### END SOLUTION

# %% tags=["driver"]
def histogram_of(values, dtype, lowest, highest):
    """Return the zeros and the counts of a matrix that requires a gradient."""
    from mytrainer.histogram import log2_histogram

    matrix = torch.tensor([values, values], dtype=getattr(torch, dtype), requires_grad=True)
    zeros, counts = log2_histogram(matrix, lowest, highest)
    return [zeros.item(), counts.tolist()]


def histogram_on_gpu(width):
    """Count the exponents of a matrix on a GPU."""
    from mytrainer.histogram import log2_histogram

    log2_histogram(torch.randn(width, width, device="cuda"))

# %% check="histogram" points=3
check.ranks(
    histogram_of, ranks=1,
    cases=[{"values": [1.0, 1.5, -2.0, 0.0, 0.3, 0.0], "dtype": "float32", "lowest": -3, "highest": 2},
           {"values": [0.01, 1000.0, 4.0, -0.125, 0.0], "dtype": "float16", "lowest": -3, "highest": 2},
           {"values": [1023.99994, -0.00097656244], "dtype": "float32", "lowest": -12, "highest": 10},
           {"values": [6e-8, float("inf"), -1e-7, float("nan")], "dtype": "float16", "lowest": -26, "highest": 1}],
    expected=[[[4, [0, 2, 0, 4, 2, 0]]], [[2, [4, 0, 0, 0, 0, 4]]], [[0, [0, 2] + [0] * 19 + [2, 0]]],
              [[0, [0, 0, 2, 2] + [0] * 23 + [2]]]],
    hints={"Negative elements are missing: only the magnitude counts.":
               [[[4, [0, 2, 0, 4, 0, 0]]], [], [], []],
           "Each of these exponents is rounded to the nearest integer. Which bin holds 1.5?":
               [[[4, [0, 2, 0, 2, 4, 0]]], [], [], []],
           "Zeros have no exponent: count them separately, and not in the first bin.":
               [[[4, [4, 2, 0, 4, 2, 0]]], [], [], []],
           "Elements beyond the first or the last bin are missing. The bins at the ends count them, too.":
               [[], [[2, [2, 0, 0, 0, 0, 2]]], [], []],
           "All of it is one bin too far to the right: frexp's mantissa is in [0.5, 1), so 1 is 0.5 times 2^1.":
               [[[4, [0, 0, 2, 0, 4, 2]]], [], [], []],
           "NaN is in a bin, as if it had an exponent.":
               [[], [], [], [[0, [0, 0, 2, 2] + [0] * 23 + [4]]]],
           "An infinity is in the bin of 0.5: frexp returns the exponent 0 for it. The last bin counts infinities.":
               [[], [], [], [[0, [0, 0, 2, 2] + [0] * 21 + [2, 0, 0]]]],
           "An exponent is off by one: the logarithm of a number just below a power of two is rounded. torch.frexp does "
           "not round.":
               [[], [], [[0, [0, 0, 2] + [0] * 19 + [2]]], []]})
cost = check.gpus(histogram_on_gpu, {"width": 1024}, "h100:1", least={"live": 4 * 1024**2})
check.that(cost.reads == 0, f"The CPU waits for the GPU {cost.reads} time(s). Which of your results has a size, or a value, "
           "that only the GPU knows? Give every element a bin, and add 0 to it for those that do not count.")
### BEGIN HIDDEN TESTS
import math


def counted(values, lowest, highest):
    counts, zeros = [0] * (highest - lowest + 1), 0
    for value in values:
        if value == 0:
            zeros += 2
        else:
            exponent = highest if math.isinf(value) else math.frexp(value)[1] - 1
            counts[min(max(exponent, lowest), highest) - lowest] += 2
    return [zeros, counts]


drawn = check.draw(3, values=lambda dice: [dice.choice([0.0, 1.0, -1.0]) * dice.randint(16, 31) * 2.0**dice.randint(-16, 6)
                                           for _ in range(40)] + [float("inf")], lowest=range(-12, -5), highest=range(0, 6))
check.ranks(histogram_of, ranks=1, cases=[dict(case, dtype=dtype) for case, dtype in zip(
                drawn, ("float32", "float16", "bfloat16"), strict=True)],
            expected=lambda ranks, values, dtype, lowest, highest: [counted(values, lowest, highest)])
### END HIDDEN TESTS

# %% [raw] mutant="histogram" hint="only the magnitude counts"
# -    values = tensor.detach().abs().flatten().float()
# +    values = tensor.detach().flatten().float()

# %% [raw] mutant="histogram" hint="Which bin holds 1.5"
# -    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
# +    exponents = values.clamp(2.0**lowest, 2.0**highest).nan_to_num().log2().round()

# %% [raw] mutant="histogram" hint="Zeros have no exponent"
# -    present = (values > 0).long()  # neither zeros nor NaN
# +    present = (values >= 0).long()
# -    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
# +    exponents = torch.where(values > 0, torch.frexp(values.clamp(max=2.0**highest)).exponent - 1, lowest)

# %% [raw] mutant="histogram" hint="The bins at the ends count them"
# -    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
# +    exponents = torch.frexp(values).exponent - 1
# +    present = present * ((exponents >= lowest) & (exponents <= highest))

# %% [raw] mutant="histogram" hint="one bin too far to the right"
# -    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
# +    exponents = torch.frexp(values).exponent

# %% [raw] mutant="histogram" hint="is rounded"
# -    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
# +    exponents = values.clamp(2.0**lowest, 2.0**highest).nan_to_num().log2().floor()

# %% [raw] mutant="histogram" hint="NaN is in a bin"
# -    present = (values > 0).long()  # neither zeros nor NaN
# +    present = (values != 0).long()
# +    values = values.nan_to_num(nan=2.0**highest)

# %% [raw] mutant="histogram" hint="The last bin counts infinities"
# -    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
# +    exponents = torch.frexp(values).exponent - 1

# %% [raw] mutant="histogram" hint="requires grad"
# -    values = tensor.detach().abs().flatten().float()
# +    values = torch.from_numpy(abs(tensor.numpy())).flatten().float()

# %% [raw] mutant="histogram" hint="that only the GPU knows"
# -    return (values == 0).sum(), counts
# +    return torch.tensor((values == 0).sum().item()), counts

# %% [raw] mutant="histogram" hint="choose on the GPU"
# -    present = (values > 0).long()  # neither zeros nor NaN
# -    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
# -    counts = present.new_zeros(highest - lowest + 1)
# -    counts.scatter_add_(0, exponents.clamp(lowest, highest).long() - lowest, present)
# -    return (values == 0).sum(), counts
# +    exponents = torch.frexp(values[values > 0].clamp(max=2.0**highest)).exponent - 1
# +    return (values == 0).sum(), torch.bincount(exponents.clamp(lowest, highest) - lowest,
# +                                               minlength=highest - lowest + 1)

# %% [markdown]
# ### Predict the underflow
#
# The loss is a mean over tokens, and over micro-batches: if a step has 64 of them, each one's loss is divided by 64.
# The next cell takes the first micro-batch of the small GPT in fp32, with 512 tokens and a vocabulary of 4,096. The
# gradient of the **logits**, which the backward pass computes first, is $(p_v - [v\text{ is the label}])/(512 \cdot
# 64)$, and an untrained model has $p_v \approx 1/4096$. fp16's smallest number is $2^{-24}$, and what is
# at most half of it is rounded to 0. What percentage of the logits' gradients become 0 in fp16? And in bf16, whose smallest number is $2^{-133}$?
#
# From the logits, the gradient goes back through the output matrix, whose elements have a standard deviation of 0.02, to
# the output of layer 2, and on to layer 1. The gradient of a weight is a sum over the 512 tokens. Predict the fp16 percentage
# in these places, too.

# %% answer="guess-underflow"
### BEGIN SOLUTION
guess_fp16 = {"logits": 90, "layer 2, output": 50, "layer 1, output": 60, "layer 1, weights": 20}
guess_bf16 = 1
### END SOLUTION

# %% tags=["explore"]
from mytrainer import histogram


def percent_lost(gradient, dtype):
    """Return the percentage of the elements other than 0 that become 0 in a dtype."""
    present = gradient[gradient != 0]
    return 100 * (present.to(dtype) == 0).float().mean().item()


gradients = small_model.gradients(micro_batches=64)
largest = max(gradient.abs().max().item() for gradient in gradients.values())
check.compare("percent of the logits' gradients lost in fp16", guess_fp16["logits"],
              percent_lost(gradients["logits"], torch.float16))
print(f"in bf16: {percent_lost(gradients['logits'], torch.bfloat16):.1f}%; you guessed {guess_bf16}")
for name, gradient in gradients.items():
    print(f"{name:20} lost in fp16: {result(f'{percent_lost(gradient, torch.float16):5.1f}%')}, with 1 micro-batch: "
          f"{percent_lost(64 * gradient, torch.float16):.1f}%"
          + (f"; you guessed {guess_fp16[name]}%" if name in guess_fp16 else ""))
print(f"largest gradient: {largest:.2g}; it could be {result(f'{65504 / largest:,.0f}')} times as large before it overflows")
half.draw_histograms({name: histogram.log2_histogram(gradient, -40, 0)[1].tolist()
                      for name, gradient in gradients.items()}, -40, -25)

# %% [markdown]
# It is mostly the logits' gradients that are lost, and hardly those of the layers. The gradient of a layer's output
# contains the term of its token's label, which is about 4,096 times as large as the other words', and the final layer
# norm enlarges it, because it divides the hidden states by their standard deviation, which is small. A weight's
# gradient adds up 512 tokens. But all of them are computed from the logits' gradients: a backward pass in fp16 would
# start with almost nothing but the labels' own terms. With a single micro-batch, or a loss that is multiplied by 64 or
# more, they survive, though as **subnormals**, with only a few significant bits. And there is plenty of headroom on the
# right. How much a loss can be multiplied depends on the model, the batch, and how far training has come, so the right
# factor is found by trial, in the second sitting.

# %% [markdown]
# ## Master weights
#
# The other failure, lost updates, has a simple remedy: update weights in fp32, and round them to 16 bits for the next
# forward pass. Gradients need precision, too. A step adds up the gradients of all micro-batches, and a small addend is
# lost in a large sum just as a small update is. By default, `.grad` has the parameter's dtype. PyTorch lets you change
# that: after `parameter.grad_dtype = torch.float32`, the backward pass still computes the gradient in 16 bits, and adds
# it to an fp32 `.grad`. (Megatron-LM keeps an fp32 buffer, `main_grad`, for the same purpose.)

# %% [markdown]
# ### Exercise 2: the mixed-precision optimizer
#
# Write `MixedPrecision`, which wraps any optimizer. `my_trainer.py` uses it with `--bf16` and `--fp16`.
#
# - The model's parameters keep their dtypes. A parameter in fp32 is its own master weight.
# - Micro-batches accumulate in fp32, in `.grad` of the model's parameters.
# - `step()` updates the fp32 master weights with the wrapped optimizer and leaves their rounded values in the model.
# - No gradient is ever in memory twice, and none is left there in the forward pass.

# %% answer="precision"
%%writefile mytrainer/precision.py
"""Mixed precision: 16-bit parameters, fp32 gradients, and an optimizer over fp32 master weights."""

import torch


class MixedPrecision:
    """Update fp32 master weights of a model's parameters with any optimizer."""

    def __init__(self, parameters, make_optimizer):
        """Create the master weights, and an optimizer for them.

        Args:
            parameters: those of the model, in fp16, bf16, or fp32.
            make_optimizer: returns an optimizer, given a list of master weights, one for each
                parameter and in the same order.
        """
        ### BEGIN SOLUTION
        self.parameters = list(parameters)
        self.masters = []
        for parameter in self.parameters:
            parameter.grad_dtype = torch.float32
            is_master = parameter.dtype == torch.float32
            self.masters.append(parameter if is_master else parameter.detach().float())
        self.optimizer = make_optimizer(self.masters)
        ### END SOLUTION

    @property
    def param_groups(self):
        """The groups of the wrapped optimizer, in which the training loop sets the learning rate."""
        ### BEGIN SOLUTION
        return self.optimizer.param_groups
        ### END SOLUTION

    def zero_grad(self):
        """Free all gradients, before a forward pass."""
        ### BEGIN SOLUTION
        for tensor in (*self.parameters, *self.masters):
            tensor.grad = None
        ### END SOLUTION

    def step(self):
        """Update the master weights from the parameters' gradients, and round them to the parameters."""
        ### BEGIN SOLUTION
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                if parameter is not master:
                    parameter.copy_(master)
        ### END SOLUTION

# %% tags=["driver"]
def accumulated(dtype, gradients):
    """Run a backward pass for each gradient of one parameter; return .grad's dtype and value."""
    from mytrainer.precision import MixedPrecision

    parameter = torch.nn.Parameter(torch.ones(1, dtype=getattr(torch, dtype)))
    optimizer = MixedPrecision([parameter], lambda masters: torch.optim.SGD(masters, lr=0.1))
    optimizer.zero_grad()
    for gradient in gradients:
        (parameter * gradient).sum().backward()
    return [str(parameter.grad.dtype), parameter.grad.item()]


def updated(dtypes, start, gradients, rate):
    """Update a parameter of each dtype, one gradient per step; return their dtypes and values."""
    from mytrainer.precision import MixedPrecision

    parameters = [torch.nn.Parameter(torch.tensor([start], dtype=getattr(torch, dtype))) for dtype in dtypes]
    parameters.append(torch.nn.Parameter(torch.ones(1)))  # it has no gradient
    optimizer = MixedPrecision(parameters, lambda masters: torch.optim.SGD(masters, lr=100.0))
    for gradient in gradients:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        for parameter in parameters[:-1]:
            (parameter * gradient).sum().backward()
        optimizer.step()
    return [[str(parameter.dtype), parameter.item()] for parameter in parameters]


def precision_steps(width, layers, samples, steps, dtype="float16"):
    """Train a stack of linear layers on a GPU, in fp16 unless another dtype is given."""
    from functools import partial

    from mytrainer.precision import MixedPrecision

    dtype = getattr(torch, dtype)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False, device="cuda", dtype=dtype)
                                  for _ in range(layers)))
    optimizer = MixedPrecision(model.parameters(), partial(torch.optim.AdamW, lr=1e-3, fused=True))
    inputs = torch.zeros(samples, width, device="cuda", dtype=dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

# %% check="precision" points=6
with check.parts():
    with check.part(2, "accumulates micro-batches in fp32"):
        check.ranks(
            accumulated, ranks=1,
            cases=[{"dtype": "bfloat16", "gradients": [1.0] + [2.0**-9] * 63},
                   {"dtype": "float16", "gradients": [1.0] + [2.0**-12] * 63}],
            expected=[[["torch.float32", 1.123046875]], [["torch.float32", 1.015380859375]]],
            hints={"63 small gradients are lost: each is smaller than half the distance between two 16-bit numbers. "
                   "The sum needs fp32.": [[["torch.bfloat16", 1.0]], [["torch.float16", 1.0]]]})
        ### BEGIN HIDDEN TESTS
        check.ranks(
            accumulated, ranks=1, rel=1e-6,
            cases=check.draw(3, dtype=["bfloat16", "float16"], gradients=lambda dice: [
                dice.randint(-127, 127) * 2.0**-7 * dice.choice([1, 2.0**-6]) for _ in range(64)]),
            expected=lambda ranks, dtype, gradients: [["torch.float32", sum(gradients)]])
        ### END HIDDEN TESTS
    with check.part(2, "updates fp32 master weights"):
        kinds = ["float16", "bfloat16", "float32"]
        check.ranks(
            updated, ranks=1, rel=1e-3,
            cases=[{"dtypes": kinds, "start": 1.0, "gradients": [1.0, 1.0], "rate": 0.0625},
                   {"dtypes": kinds, "start": 1.0, "gradients": [1.0] * 40, "rate": 1e-4}],
            expected=[[[["torch.float16", 0.875], ["torch.bfloat16", 0.875], ["torch.float32", 0.875], ["torch.float32", 1.0]]],
                      [[["torch.float16", 0.996], ["torch.bfloat16", 0.996], ["torch.float32", 0.996], ["torch.float32", 1.0]]]],
            hints={"40 small updates are lost in 16 bits: each is smaller than half the distance between two numbers. "
                   "The optimizer must update fp32 weights.":
                       [[[["torch.float16", 0.875], ["torch.bfloat16", 0.875], ["torch.float32", 0.875], ["torch.float32", 1.0]]],
                        [[["torch.float16", 1.0], ["torch.bfloat16", 1.0], ["torch.float32", 0.996], ["torch.float32", 1.0]]]],
                   "The model in 16 bits never changes: round the master weights to its parameters.":
                       [[[["torch.float16", 1.0], ["torch.bfloat16", 1.0], ["torch.float32", 0.875], ["torch.float32", 1.0]]],
                        [[["torch.float16", 1.0], ["torch.bfloat16", 1.0], ["torch.float32", 0.996], ["torch.float32", 1.0]]]],
                   "The gradients of all steps add up: does zero_grad() free those of the model's parameters?":
                       [[[["torch.float16", 0.8125], ["torch.bfloat16", 0.8125], ["torch.float32", 0.8125], ["torch.float32", 1.0]]],
                        [[["torch.float16", 0.918], ["torch.bfloat16", 0.918], ["torch.float32", 0.918], ["torch.float32", 1.0]]]],
                   "The model's parameters are in fp32 now, so its GEMMs cannot use fp16 Tensor Cores.":
                       [[[["torch.float32", 0.875], ["torch.float32", 0.875], ["torch.float32", 0.875], ["torch.float32", 1.0]]], []],
                   "The learning rate that the loop sets has no effect: param_groups are those of the wrapped optimizer.":
                       [[[["torch.float16", -199.0], ["torch.bfloat16", -199.0], ["torch.float32", -199.0], ["torch.float32", 1.0]]], []]})
        ### BEGIN HIDDEN TESTS
        check.ranks(
            updated, ranks=1, rel=8e-3,
            cases=check.draw(3, dtypes=[["float16"], ["bfloat16", "float32"]], start=check.between(1.0, 1.5),
                             gradients=lambda dice: [dice.uniform(0.5, 1.0)] * dice.randint(100, 300), rate=[2e-4]),
            expected=lambda ranks, dtypes, start, gradients, rate: [
                [[f"torch.{dtype}", start - rate * sum(gradients)] for dtype in dtypes] + [["torch.float32", 1.0]]])
        ### END HIDDEN TESTS
    with check.part(2, "holds no more tensors than it needs"):
        # 2**27 parameters: the step takes 2.25 GiB, and a copy of the gradients 0.5 GiB more.
        small = check.gpus(precision_steps, {"width": 4096, "layers": 8, "samples": 256, "steps": 3}, "h100:1",
                           least={"flops": 3 * 23 * 2 * 256 * 4096**2, "dtype": "fp16", "live": 14 * 2**27})
        check.pass_mark(small.peak_memory, error=small.memory_error, below=2.62, hint=(
            f"{small.peak_memory:.2f} GiB at the peak, {small.peak_memory * 2**30 / 2**27:.0f} bytes per parameter: the "
            "step holds more than one fp32 tensor for each gradient."))
        # 6.8 bytes of activations for each parameter: the end of the forward pass needs most.
        large = check.gpus(precision_steps, {"width": 4096, "layers": 8, "samples": 12_288, "steps": 3}, "h100:1",
                           least={"flops": 3 * 23 * 2 * 12_288 * 4096**2, "dtype": "fp16",
                                  "live": 14 * 2**27 + 9 * 2 * 12_288 * 4096})
        check.pass_mark(large.peak_memory, error=large.memory_error, below=2.96, hint=(
            f"{large.peak_memory:.2f} GiB at the peak: something that only the backward pass and the step need is still "
            "allocated in the next forward pass."))
        single = check.gpus(precision_steps, {"width": 4096, "layers": 8, "samples": 256, "steps": 3, "dtype": "float32"},
                            "h100:1", least={"flops": 3 * 23 * 2 * 256 * 4096**2, "live": 16 * 2**27})
        check.pass_mark(single.peak_memory, error=single.memory_error, below=2.3, hint=(
            f"{single.peak_memory:.2f} GiB at the peak for a model in fp32: its parameters are their own master weights, "
            "and need no copy."))

# %% [raw] mutant="precision" hint="The sum needs fp32"
# -            parameter.grad_dtype = torch.float32
# +            pass
# -            master.grad = parameter.grad
# +            master.grad = None if parameter.grad is None else parameter.grad.to(master.dtype)

# %% [raw] mutant="precision" hint="never changes"
# -        with torch.no_grad():
# -            for parameter, master in zip(self.parameters, self.masters, strict=True):
# -                if parameter is not master:
# -                    parameter.copy_(master)

# %% [raw] mutant="precision" hint="gradients of all steps add up"
# -        for tensor in (*self.parameters, *self.masters):
# -            tensor.grad = None
# +        for tensor in self.masters:
# +            if all(tensor is not parameter for parameter in self.parameters):
# +                tensor.grad = None

# %% [raw] mutant="precision" hint="The optimizer must update fp32 weights"
# -            is_master = parameter.dtype == torch.float32
# -            self.masters.append(parameter if is_master else parameter.detach().float())
# +            self.masters.append(parameter)

# %% [raw] mutant="precision" hint="more than one fp32 tensor for each gradient"
# -            master.grad = parameter.grad
# +            master.grad = None if parameter.grad is None else parameter.grad.clone()

# %% [raw] mutant="precision" hint="still allocated in the next forward pass"
# -        for tensor in (*self.parameters, *self.masters):
# -            tensor.grad = None
# +        for parameter in self.parameters:
# +            if parameter.grad is not None:
# +                parameter.grad.zero_()

# %% [raw] mutant="precision" hint="more than one fp32 tensor for each gradient"
# -        for tensor in (*self.parameters, *self.masters):
# -            tensor.grad = None
# +        for parameter in self.parameters:
# +            parameter.grad = None

# %% [raw] mutant="precision" hint="their own master weights"
# -            is_master = parameter.dtype == torch.float32
# -            self.masters.append(parameter if is_master else parameter.detach().float())
# +            self.masters.append(parameter.detach().clone().float())

# %% [raw] mutant="precision" hint="cannot use fp16 Tensor Cores"
# -            is_master = parameter.dtype == torch.float32
# -            self.masters.append(parameter if is_master else parameter.detach().float())
# +            parameter.data = parameter.data.float()
# +            self.masters.append(parameter)

# %% [raw] mutant="precision" hint="has no effect"
# -        return self.optimizer.param_groups
# +        return [{"params": self.parameters, "lr": 0.0}]

# %% [markdown]
# How large is the error that fp32 sums avoid? The next cell adds up the gradients of 64 micro-batches of the small GPT,
# each computed in bf16, in both ways, and compares the sums with one in fp64.

# %% tags=["explore"] short={"range(64)": "range(2)", "build(torch.bfloat16)": "build(torch.bfloat16, 1)"}
model, batches = small_model.build(torch.bfloat16)
weight = dict(model.named_parameters())["stage.decoder.layers.0.mlp.linear_fc1.weight"]
sums = {dtype: torch.zeros_like(weight, dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.float64)}
errors = {"bf16": [], "fp32": []}
for _ in range(64):
    model.zero_grad()
    model(next(batches)).backward()
    for dtype, total in sums.items():
        total += weight.grad.to(dtype)
    exact = sums[torch.float64]
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        errors[name].append(((sums[dtype].double() - exact).norm() / exact.norm()).item() + 1e-12)
half.draw_errors(errors)

# %% [markdown]
# In bf16, the error grows with the number of micro-batches, because each addition rounds the sum to eight bits. This is
# why Megatron-LM, and your trainer, accumulate and all-reduce gradients in fp32.
#
# **This is the end of the first sitting.** With `--bf16`, your trainer works already, because bf16 has the range of
# fp32. Train GPT-2 small on one and on eight virtual H100s, in fp32 and with your master weights:

# %% tags=["explore"] short={'("h100:1", "h100:8")': '("h100:1",)', "{gain.MODEL}": "{gain.MODEL} --num-layers 2"}
for gpus in ("h100:1", "h100:8"):
    for flags in ("", "--bf16"):
        gained = gain.measure(gpus, flags=f"{gain.MODEL} {flags}")
        print(f"{gpus:6} {flags or '(fp32)':8} {1000 * gained.seconds:6.1f} ms per step, "
              f"{result(f'{gained.tokens:9,.0f} tokens/s')}, {gained.peak / 2**30:.2f} GiB, MFU {gained.mfu:.0%} (modeled)")

# %% [markdown]
# On a V100, which has no bf16, training needs the rest of this lab. Newer GPUs leave you the choice. BLOOM's authors,
# for example, trained 176 billion parameters in bf16, because they suspected fp16 behind the instabilities of a smaller
# run ([Le Scao et al., 2022](https://arxiv.org/abs/2211.05100)).

# %% [markdown]
# ## Loss scaling
#
# **The second sitting starts here.** Multiply the loss by a scale $S$, and the chain rule multiplies every gradient by
# $S$: the histogram moves to the right by $\log_2 S$ bins. In fp32, the gradients are divided by $S$ again,
# **unscaled**, before anything looks at them. If $S$ is too large, a gradient overflows to infinity, and spreads:
# $\infty - \infty$ and $0 \cdot \infty$ are NaN. Such a step must not update anything. It is **skipped**, and the next
# one has a smaller scale.
#
# Who notices? With data parallelism, an infinite gradient reaches all ranks with the average. But in later labs, ranks
# hold different parts of the gradient: shards of it (lab 08), of each matrix (lab 09), or whole layers (lab 10). If
# rank 1 skips the step and the others do not, the model falls apart without an error. So all ranks must agree: every
# rank contributes what it found to an all-reduce.

# %% [markdown]
# ### Exercise 3: unscale, and agree on overflows
#
# Write `unscale`. The check runs it on ranks with different gradients, only one of which overflows. Some of them hold
# large gradients that are finite. A rank may exchange at most 64 bytes, and which collectives it calls must not depend
# on what it finds. On a GPU, the CPU may wait for a result at most once, however many parameters there are.

# %% answer="unscale"
%%writefile mytrainer/unscale.py
"""Unscale gradients, and find out whether any rank's overflowed."""

import torch
import torch.distributed as dist


def unscale(parameters, scale):
    """Divide the gradients by the loss scale, in place.

    Args:
        parameters: those of this rank; .grad is fp32, or None for a parameter that was not used.
        scale: the loss scale.

    Returns True on all ranks if any gradient of any rank is infinite or NaN, else False.
    """
    ### BEGIN SOLUTION
    parameters = list(parameters)
    overflow = torch.zeros((), device=parameters[0].device)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad /= scale
            overflow += (~parameter.grad.isfinite()).any()
    dist.all_reduce(overflow)
    return bool(overflow > 0)
    ### END SOLUTION

# %% tags=["driver"]
def unscaled(gradients, scale):
    """Unscale gradients, one for each parameter; return whether one overflowed, and their values."""
    from mytrainer.unscale import unscale

    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = torch.tensor(gradient)
    overflow = unscale((parameter for parameter in parameters), scale)
    # After an overflow, nobody needs the values.
    return [overflow, [] if overflow else [None if parameter.grad is None else parameter.grad.tolist()
                                           for parameter in parameters]]


def unscale_on_gpu(width, matrices):
    """Unscale the gradients of some matrices on a GPU."""
    from mytrainer.unscale import unscale

    parameters = [torch.nn.Parameter(torch.empty(width, width, device="cuda")) for _ in range(matrices)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    if unscale(parameters, 1024.0):
        raise RuntimeError("unscale() reports an overflow, but the gradients are finite")

# %% check="unscale" points=5
inf, nan = float("inf"), float("nan")
fine, huge = [[2048.0, -1024.0], [512.0, 0.0]], [[3e38, 3e38], [-3e38, 1024.0]]
runs = check.ranks(
    unscaled, ranks=3, rel=1e-5,
    cases=[{"gradients": check.by_rank([fine, fine, [[1024.0, 0.0], None]]), "scale": 1024.0},
           {"gradients": check.by_rank([fine, [[1.0, 2.0], [3.0, inf]], fine]), "scale": 1024.0},
           {"gradients": check.by_rank([fine, fine, [[nan, 1.0], None]]), "scale": 1024.0},
           {"gradients": check.by_rank([[[-inf, 1.0], [inf, 1.0]], fine, [None, fine[0]]]), "scale": 1024.0},
           {"gradients": check.by_rank([huge, huge, fine]), "scale": 2.0}],
    expected=[[[False, [[2.0, -1.0], [0.5, 0.0]]], [False, [[2.0, -1.0], [0.5, 0.0]]], [False, [[1.0, 0.0], None]]], [[True, []]] * 3, [[True, []]] * 3,
              [[True, []]] * 3,
              [[False, [[1.5e38, 1.5e38], [-1.5e38, 512.0]]]] * 2 + [[False, [[1024.0, -512.0], [256.0, 0.0]]]]],
    hints={"Only the rank whose gradient overflowed skips its step. The ranks must agree.":
               [[], [[False, [[2.0, -1.0], [0.5, 0.0]]], [True, []], [False, [[2.0, -1.0], [0.5, 0.0]]]], [], [], []],
           "NaN is an overflow, too: it is what becomes of infinity minus infinity.":
               [[], [], [[False, [[2.0, -1.0], [0.5, 0.0]]], [False, [[2.0, -1.0], [0.5, 0.0]]], [False, [[1e999 - 1e999, 0.0009765625], None]]], [], []],
           "These gradients are finite, but their sum or their norm is not. Look at the elements.":
               [[], [], [], [], [[True, []]] * 3],
           "The gradients are still multiplied by the scale.":
               [[[False, [[2048.0, -1024.0], [512.0, 0.0]]], [False, [[2048.0, -1024.0], [512.0, 0.0]]],
                 [False, [[1024.0, 0.0], None]]], [], [], [], []],
           "Some ranks call a collective that the others do not call: every rank must take part, whatever it finds.":
               "deadlock"})


def require_small(runs):
    """Require of every run that all ranks exchange something, and little."""
    for run in runs:
        for rank in range(len(run.values)):
            size = run.bytes(rank)
            check.that(0 < size <= 64, f"Rank {rank} exchanges {size} bytes with the others. One number is enough, and "
                       "necessary.")


require_small(runs)
many = check.gpus(unscale_on_gpu, {"width": 64, "matrices": 300}, "h100:1", least={"live": 2 * 4 * 300 * 64**2})
check.that(many.reads <= 1, f"For 300 parameters, the CPU waits for the GPU {many.reads} times, and the GPU runs dry each "
           "time. Keep the flag on the device, and read it once.")
# 512 MiB of gradients.
cost = check.gpus(unscale_on_gpu, {"width": 4096, "matrices": 8}, "h100:1", least={"live": 2 * 4 * 8 * 4096**2})
check.pass_mark(cost.peak_memory, error=cost.memory_error, below=1.35, hint=(
    f"{cost.peak_memory:.2f} GiB at the peak for parameters and gradients of 1 GiB: unscale in place, one gradient at a time."))
### BEGIN HIDDEN TESTS
import numpy as np


def agreed(ranks, gradients, scale):
    flat = [np.array([one for one in own if one is not None], dtype=float) for own in gradients]
    if not all(np.isfinite(own).all() for own in flat):
        return [[True, []]] * ranks
    return [[False, [None if one is None else [value / scale for value in one] for one in own]] for own in gradients]


for ranks in (1, 2, 4):
    drawn = check.draw(2, scale=[256.0, 65536.0], gradients=check.for_each_rank(check.between(-9, 9), [3, 2]))
    where = check.draw(1, value=["inf", "-inf", "nan"], at=range(3))
    (broken,) = check.draw(1, scale=[256.0], gradients=check.for_each_rank(
        lambda dice: dice.choice([float(where[0]["value"]), 1.0]), [3, 2]))
    require_small([run for run in check.ranks(unscaled, ranks=ranks, rel=1e-5, cases=[*drawn, broken], expected=agreed)
                   if ranks > 1])
### END HIDDEN TESTS

# %% [raw] mutant="unscale" hint="The ranks must agree"
# -    dist.all_reduce(overflow)

# %% [raw] mutant="unscale" hint="NaN is an overflow"
# -            overflow += (~parameter.grad.isfinite()).any()
# +            overflow += parameter.grad.isinf().any()

# %% [raw] mutant="unscale" hint="their norm is not"
# -            overflow += (~parameter.grad.isfinite()).any()
# +            overflow += float(not parameter.grad.norm().isfinite())

# %% [raw] mutant="unscale" hint="read it once"
# -            overflow += (~parameter.grad.isfinite()).any()
# +            if not parameter.grad.isfinite().all():
# +                overflow += 1

# %% [raw] mutant="unscale" hint="still multiplied by the scale"
# -            parameter.grad /= scale

# %% [raw] mutant="unscale" hint="whatever it finds"
# -    dist.all_reduce(overflow)
# +    if overflow > 0:
# +        dist.all_reduce(overflow)

# %% [raw] mutant="unscale" hint="One number is enough, and necessary"
# -    dist.all_reduce(overflow)
# +    for parameter in parameters:
# +        found = overflow.repeat(32)
# +        dist.all_reduce(found)
# +        overflow += found[0]

# %% [raw] mutant="unscale" hint="one gradient at a time"
# -    for parameter in parameters:
# -        if parameter.grad is not None:
# -            parameter.grad /= scale
# -            overflow += (~parameter.grad.isfinite()).any()
# +    copies = [None if parameter.grad is None else parameter.grad / scale for parameter in parameters]
# +    for parameter, copy in zip(parameters, copies, strict=True):
# +        if copy is not None:
# +            parameter.grad.copy_(copy)
# +            overflow += (~copy.isfinite()).any()

# %% [markdown]
# ## Dynamic loss scaling
#
# A **dynamic** loss scaler raises the scale until a gradient overflows, and then lowers it. These are the properties of
# Megatron-LM's, with the names of its flags and their default values:
#
# | flag | property |
# |---|---|
# | `--initial-loss-scale 4294967296` | The first scale, $2^{32}$, is far too high on purpose. |
# | `--loss-scale-window 1000` | Every 1,000 steps in a row without an overflow double the scale. |
# | `--hysteresis 2` | At the start, it takes two overflows to halve the scale, even with good steps between them. After that, each further one halves it. |
# | `--min-loss-scale 1` | The scale never falls below this value. |
#
# When is a scaler as tolerant again as it was at the start? Two traces of Megatron-LM's rules answer that. `x` is a step
# that overflows, `.` is a good one, and the number below a step is the scale after it.
#
# ```
# window 4, hysteresis 2, initial scale 64:    x   .   x   .   .   .   .   x   x
#                                             64  64  32  32  32  32  64  64  32
# window 2, hysteresis 3, initial scale 64:    x   x   .   x   x   .   .   x
#                                             64  64  64  32  16  16  32  32
# ```
#
# PyTorch's `torch.amp.GradScaler` has no minimum, and acts like `--hysteresis 1`. Nor does it all-reduce its flag across
# ranks, so it misses an overflow on another rank unless the average brings it along.

# %% [markdown]
# ### Exercise 4: the loss scaler
#
# Write `LossScaler`. With hysteresis 1 and a minimum that is never reached, the check compares it with
# `torch.amp.GradScaler` on random sequences of overflows. `my_trainer.py` makes a fixed scale (`--loss-scale`) out of
# it by setting `minimum` to the scale, and `window` to `math.inf`.

# %% answer="scaler"
%%writefile mytrainer/scaler.py
"""Dynamic loss scaling, with the rules of Megatron-LM."""

from mytrainer.unscale import unscale


class LossScaler:
    """The loss scale, and what it depends on.

    Attributes:
        scale: multiplies the loss of the next step.
    """

    def __init__(self, initial=2.0**32, minimum=1.0, window=1000, hysteresis=2):
        """Start with the scale `initial`; the other arguments are those of the flags above."""
        self.scale = initial
        self.minimum, self.window, self.hysteresis = minimum, window, hysteresis
        ### BEGIN SOLUTION
        self.good_steps, self.tolerated = 0, hysteresis
        ### END SOLUTION

    def unscale(self, parameters):
        """Divide the gradients by the scale; return whether one overflowed on any rank."""
        return unscale(parameters, self.scale)

    def update(self, overflow):
        """Adapt the scale after a step.

        Args:
            overflow: whether a gradient of this step overflowed, so that it was skipped.
        """
        ### BEGIN SOLUTION
        if overflow:
            self.good_steps = 0
            self.tolerated -= 1
            if self.tolerated <= 0:
                self.scale = max(self.scale / 2, self.minimum)
            return
        self.good_steps += 1
        if self.good_steps == self.window:
            self.scale *= 2
            self.good_steps, self.tolerated = 0, self.hysteresis
        ### END SOLUTION

# %% tags=["driver"]
def scales(initial, minimum, window, hysteresis, overflows):
    """Return the scale after each step, given whether it overflowed (1 or 0)."""
    import math

    from mytrainer.scaler import LossScaler

    scaler = LossScaler(initial, minimum, window or math.inf, hysteresis)
    found = []
    for overflow in overflows:
        scaler.update(bool(overflow))
        found.append(float(scaler.scale))
    return found

# %% check="scaler" points=4
from itertools import accumulate

check.ranks(
    scales, ranks=1,
    cases=[{"initial": 64.0, "minimum": 1.0, "window": 3, "hysteresis": 1, "overflows": [0, 0, 0, 0, 1, 0, 0, 0]},
           {"initial": 64.0, "minimum": 1.0, "window": 3, "hysteresis": 2, "overflows": [1, 0, 1, 1, 0, 0, 0, 1, 1]},
           {"initial": 8.0, "minimum": 4.0, "window": 3, "hysteresis": 1, "overflows": [1, 1, 1, 0, 0, 0]},
           {"initial": 8.0, "minimum": 8.0, "window": 0, "hysteresis": 1, "overflows": [0, 0, 1, 1, 0, 0]}],
    expected=[[[64.0, 64.0, 128.0, 128.0, 64.0, 64.0, 64.0, 128.0]],
              [[64.0, 64.0, 32.0, 16.0, 16.0, 16.0, 32.0, 32.0, 16.0]],
              [[4.0, 4.0, 4.0, 4.0, 4.0, 8.0]], [[8.0] * 6]],
    hints={"An overflow does not start the count again: steps in a row are counted.":
               [[[64.0, 64.0, 128.0, 128.0, 64.0, 64.0, 128.0, 128.0]], [], [], []],
           "The first overflow halves the scale, although the hysteresis tolerates it.":
               [[], [[32.0, 32.0, 16.0, 8.0, 8.0, 8.0, 16.0, 8.0, 4.0]], [], []],
           "A good step restores the tolerance. Only a doubling may.":
               [[], [[64.0, 64.0, 64.0, 32.0, 32.0, 32.0, 64.0, 64.0, 32.0]], [], []],
           "The tolerance is not restored when the scale doubles.":
               [[], [[64.0, 64.0, 32.0, 16.0, 16.0, 16.0, 32.0, 16.0, 8.0]], [], []],
           "The scale falls below its minimum.": [[], [], [[4.0, 2.0, 1.0, 1.0, 1.0, 2.0]], []],
           "One step late: the step that completes the window counts, too.":
               [[[64.0, 64.0, 64.0, 128.0, 64.0, 64.0, 64.0, 64.0]], [], [], []]})
### BEGIN HIDDEN TESTS
import torch


def by_torch(initial, window, overflows):
    """Return the scales of torch.amp.GradScaler, given which steps overflow."""
    scaler = torch.amp.GradScaler("cpu", init_scale=initial, growth_interval=window)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer, found = torch.optim.SGD([weight], lr=0.0), []
    for overflow in overflows:
        weight.grad = scaler.scale(torch.tensor([float("inf") if overflow else 1.0]))
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.get_scale())
    return found


drawn = check.draw(4, initial=[2.0**16, 2.0**20], window=[2, 3, 5], overflows=lambda dice: [
    int(dice.random() < 0.25) for _ in range(60)])
check.ranks(scales, ranks=1, cases=[dict(case, minimum=2.0**-60, hysteresis=1) for case in drawn],
            expected=lambda ranks, initial, minimum, window, hysteresis, overflows: [by_torch(initial, window, overflows)])


def by_rules(initial, minimum, window, hysteresis, overflows):
    def after(state, overflow):
        scale, good, left = state
        if overflow:
            return (max(scale / 2, minimum) if left <= 1 else scale), 0, left - 1
        return (2 * scale, 0, hysteresis) if good + 1 == window else (scale, good + 1, left)

    return [scale for scale, _, _ in accumulate(overflows, after, initial=(initial, 0, hysteresis))][1:]


drawn = check.draw(4, initial=[2.0**6, 2.0**9], minimum=[1.0, 16.0], window=[2, 3, 5], hysteresis=[1, 2, 3],
                   overflows=lambda dice: [int(dice.random() < 0.3) for _ in range(60)])
check.ranks(scales, ranks=1, cases=drawn, expected=lambda ranks, **case: [by_rules(**case)])
### END HIDDEN TESTS

# %% [raw] mutant="scaler" hint="steps in a row are counted"
# -            self.good_steps = 0
# -            self.tolerated -= 1
# +            self.tolerated -= 1

# %% [raw] mutant="scaler" hint="tolerates it"
# -            if self.tolerated <= 0:
# -                self.scale = max(self.scale / 2, self.minimum)
# -            return
# +            self.scale = max(self.scale / 2, self.minimum)
# +            return

# %% [raw] mutant="scaler" hint="Only a doubling may"
# -        self.good_steps += 1
# +        self.good_steps += 1
# +        self.tolerated = self.hysteresis

# %% [raw] mutant="scaler" hint="not restored when the scale doubles"
# -            self.good_steps, self.tolerated = 0, self.hysteresis
# +            self.good_steps = 0

# %% [raw] mutant="scaler" hint="below its minimum"
# -                self.scale = max(self.scale / 2, self.minimum)
# +                self.scale = self.scale / 2

# %% [raw] mutant="scaler" hint="One step late"
# -        self.good_steps += 1
# -        if self.good_steps == self.window:
# -            self.scale *= 2
# -            self.good_steps, self.tolerated = 0, self.hysteresis
# +        if self.good_steps == self.window:
# +            self.scale *= 2
# +            self.good_steps, self.tolerated = 0, self.hysteresis
# +        self.good_steps += 1

# %% [markdown]
# ## The loop, once more
#
# Your training loop of lab 04 knows no scale. Now `my_trainer.py` passes a `scaler` to `train`, and the loop must have
# these properties:
#
# - Clipping and the log see losses and gradients as if there were no scale.
# - A step that overflows leaves parameters, moments, and the schedule as they were, because a single infinity or NaN
#   would stay in Adam's moments forever. But it does consume its data.
# - After each step, the scaler and the log learn whether it overflowed.

# %% [markdown]
# ### Exercise 5: a loop that skips
#
# Write the new loop beside the old one, as `mytrainer/new/train.py`. Start from your `mytrainer/train.py`. Without a
# `scaler`, it trains as before.

# %% answer="loop"
%%writefile mytrainer/new/train.py
"""The training loop, with loss scaling."""

import contextlib
import math

import torch
import torch.distributed as dist


def train(model, optimizer, batches, learning_rate, log, args, scaler=None, clip=None):
    """Train for args.train_iters steps.

    Args:
        model: DataParallel; maps a micro-batch to its mean loss, a tensor of one element.
        optimizer: updates the model's parameters.
        batches: returns this rank's micro-batches of a step, given the samples consumed before.
        learning_rate: returns the rate of a step, given the samples of the steps before that were not skipped.
        log: takes the number of a step, the loss of the global batch, the gradient norm before
            clipping, and whether the step was skipped.
        args: has train_iters, global_batch_size, and clip_grad (0: gradients are not clipped).
        scaler: your LossScaler; None if the loss is not scaled.
        clip: what clips the gradients; None means torch.nn.utils.clip_grad_norm_. (Lab 08 passes another function.)
    """
    ### BEGIN SOLUTION
    consumed = advanced = 0  # samples of all steps, and of those that were not skipped
    for iteration in range(1, args.train_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(advanced)
        optimizer.zero_grad()
        micro_batches, losses = batches(consumed), []
        for number, batch in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(batch) / len(micro_batches)
                (loss if scaler is None else loss * scaler.scale).backward()
            losses.append(loss.detach())
        model.finish()
        skipped = scaler is not None and scaler.unscale(model.parameters())
        norm = (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), args.clip_grad or math.inf)
        if not skipped:
            optimizer.step()
            advanced += args.global_batch_size
        if scaler is not None:
            scaler.update(skipped)
        consumed += args.global_batch_size
        loss = torch.stack(losses).sum()
        dist.all_reduce(loss)
        log(iteration, loss / dist.get_world_size(), norm, skipped)
    ### END SOLUTION

# %% tags=["driver"]
def replica_of(module, loss_of):
    """Return a replica that sends gradients as the backward pass computes them; finish() puts their means in .grad.

    Args:
        module: the model.
        loss_of: returns its loss, given a micro-batch.
    """
    import contextlib

    class Replica(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.sent = module, {}
            for parameter in module.parameters():
                parameter.register_post_accumulate_grad_hook(lambda one: self.sent.update({one: one.grad.clone()}))

        def forward(self, batch):
            return loss_of(batch)

        def no_sync(self):
            return contextlib.nullcontext()

        def finish(self):
            parameters = list(self.module.parameters())
            flat = torch.cat([self.sent[parameter].flatten() for parameter in parameters])
            dist.all_reduce(flat)
            means = (flat / dist.get_world_size()).split([parameter.numel() for parameter in parameters])
            for parameter, mean in zip(parameters, means, strict=True):
                parameter.grad = mean.view_as(parameter)

    return Replica()


def scaled_lines(seed, samples, clip, overflows, scale):
    """Train a small model with train() and a scaler that overflows when it is told to.

    Return a line for each step: its number, loss, gradient norm (0 after an overflow), learning
    rate, 1 if it was skipped, and what the scaler was told.
    """
    from types import SimpleNamespace

    from mytrainer.new.train import train

    from lablib import replicas

    class Scripted:
        """A scaler with a list of overflows, each of which puts an infinite gradient in place."""

        def __init__(self):
            self.scale, self.steps, self.told = scale, 0, []

        def unscale(self, parameters):
            parameters = list(parameters)
            for parameter in parameters:
                parameter.grad /= self.scale
            overflow = bool(overflows[self.steps])
            self.steps += 1
            if overflow:
                parameters[0].grad[0, 0] = float("inf")
            return overflow

        def update(self, overflow):
            self.told.append(int(overflow))

    def batches(consumed):
        x, y = replicas.batch(seed + consumed, samples)
        return list(zip(x.chunk(2), y.chunk(2), strict=True))

    def log(iteration, loss, norm, skipped=False):
        lines.append([iteration, float(loss), 0.0 if skipped else float(norm), optimizer.param_groups[0]["lr"],
                      int(skipped)])

    def recorded(parameters, largest):
        calls.append(largest)
        return torch.nn.utils.clip_grad_norm_(parameters, largest)

    calls, small = [], replicas.Small("plain", 1)
    model = replica_of(small, lambda batch: replicas.loss(small, *batch))
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0, momentum=0.5)
    lines, batch, scaler = [], samples * dist.get_world_size(), Scripted() if overflows else None
    try:
        train(model, optimizer, batches, lambda advanced: replicas.RATE / (1 + advanced / batch), log,
              SimpleNamespace(train_iters=len(overflows) or 3, global_batch_size=batch, clip_grad=clip),
              **({"scaler": scaler, "clip": recorded} if scaler else {}))
    except AttributeError as error:
        if scaler is None and "'NoneType' object" in str(error):
            raise TypeError("Without a scaler, train() trains as before: scaler is None then") from error
        raise
    if scaler and not calls:
        raise RuntimeError("train() gets a function clip, and never calls it. It takes the place of "
                           "torch.nn.utils.clip_grad_norm_, with the same arguments")
    told = scaler.told if scaler else [0] * len(lines)
    return [[*line, told[number] if number < len(told) else -1] for number, line in enumerate(lines)]


def fp16_lines(seed, samples, steps, clip, scale, window, hysteresis):
    """Train a GPT with one layer in fp16 with the student's loop, master weights, and loss scaler.

    Return a line for each step: its loss, gradient norm (0 if it was skipped), 1 if it was skipped,
    and the scale by which its gradients were divided.
    """
    from functools import partial
    from types import SimpleNamespace

    from mytrainer.new.train import train
    from mytrainer.precision import MixedPrecision
    from mytrainer.scaler import LossScaler

    from lablib import tiny_gpt

    class Recorded(LossScaler):
        def unscale(self, parameters):
            used.append(float(self.scale))
            return super().unscale(parameters)

    def log(iteration, loss, norm, skipped=False):
        lines.append([float(loss), 0.0 if skipped else float(norm), int(skipped)])

    gpt, batch, used, lines = tiny_gpt.TinyGPT(), samples * dist.get_world_size(), [], []
    train(replica_of(gpt, gpt), MixedPrecision(gpt.parameters(), partial(torch.optim.AdamW, lr=tiny_gpt.RATE)),
          lambda consumed: tiny_gpt.micro_batches(seed + consumed, samples),
          lambda advanced: tiny_gpt.learning_rate(advanced, batch), log,
          SimpleNamespace(train_iters=steps, global_batch_size=batch, clip_grad=clip),
          scaler=Recorded(scale, 1.0, window, hysteresis))
    return [[*line, used[number] if number < len(used) else 0.0] for number, line in enumerate(lines)]

# %% tags=["check-setup"]
import torch

from lablib import replicas, tiny_gpt


def lines_of_one_process(seeds, samples, clip, overflows, scale):
    """Return what `scaled_lines` returns on each rank, computed by one model on the samples of all ranks."""
    model = replicas.Small("plain", 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0, momentum=0.5)
    lines, batch, made = [], samples * len(seeds), 0
    for step, overflow in enumerate(overflows or [0] * 3):
        rate = optimizer.param_groups[0]["lr"] = replicas.RATE / (1 + made)
        x, y = (torch.cat(parts) for parts in zip(*(replicas.batch(seed + step * batch, samples) for seed in seeds),
                                                  strict=True))
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        if not overflow:
            optimizer.step()
            made += 1
        lines.append([step + 1, loss.item(), 0.0 if overflow else norm.item(), rate, overflow, overflow])
    return [lines] * len(seeds)

# %% check="loop" points=7
with check.parts():
    with check.part(5, "skips steps that overflow"):
        check.ranks(
            scaled_lines, ranks=2, rel=1e-4,
            cases=[{"seed": check.by_rank([1, 2]), "samples": 4, "clip": clip, "overflows": overflows, "scale": 1024.0}
                   for clip, overflows in ((0.5, [0, 1, 0, 0]), (0, []))],
            expected=[[[[1, 1.077652, 1.265643, 0.2, 0, 0], [2, 0.909634, 0.0, 0.1, 1, 1], [3, 0.9310229, 1.044587, 0.1, 0, 0],
                        [4, 0.8922718, 1.006567, 0.06666667, 0, 0]]] * 2,
                      [[[1, 1.077652, 1.265643, 0.2, 0, 0], [2, 0.7840971, 0.8660429, 0.1, 0, 0], [3, 0.7080035, 0.6577152, 0.06666667, 0, 0]]] * 2],
            hints={
                "The gradient was clipped while it was still scaled: its norm is about 1,024 times as large. Unscale it first.":
                    [[[[1, 1.077652, 1296.018, 0.2, 0, 0], [2, 1.007513, 0.0, 0.1, 1, 1], [3, 1.036553, 1237.192, 0.1, 0, 0],
                       [4, 1.058324, 1285.409, 0.06666667, 0, 0]]] * 2, []],
                "The gradients are unscaled before finish(): what arrives from the other ranks is still scaled.":
                    [[[[1, 1.077652, 1296.018, 0.2, 0, 0], [2, 0.909634, 0.0, 0.1, 1, 1], [3, 0.9310229, 1069.657, 0.1, 0, 0],
                       [4, 0.8922718, 1030.725, 0.06666667, 0, 0]]] * 2, []],
                "The learning rate advances on the skipped step, too.":
                    [[[[1, 1.077652, 1.265643, 0.2, 0, 0], [2, 0.909634, 0.0, 0.1, 1, 1],
                       [3, 0.9310229, 1.044587, 0.06666667, 0, 0], [4, 0.9139776, 1.039931, 0.05, 0, 0]]] * 2, []],
                "The learning rate never changes: which samples does learning_rate() get?":
                    [[[[1, 1.077652, 1.265643, 0.2, 0, 0], [2, 0.909634, 0.0, 0.2, 1, 1], [3, 0.9310229, 1.044587, 0.2, 0, 0],
                       [4, 0.8317779, 0.9097862, 0.2, 0, 0]]] * 2, []],
                "One overflow has made everything NaN: the step after it must not be taken.":
                    [[[[1, 1.077652, 1.265643, 0.2, 0, 0], [2, 0.909634, 0.0, 0.1, 1, 1],
                       [3, 1e999 - 1e999, 1e999 - 1e999, 0.1, 0, 0],
                       [4, 1e999 - 1e999, 1e999 - 1e999, 0.06666667, 0, 0]]] * 2, []],
                "After a skipped step, you train on its samples again. They may well overflow again.":
                    [[[[1, 1.077652, 1.265643, 0.2, 0, 0], [2, 0.909634, 0.0, 0.1, 1, 1],
                       [3, 0.909634, 1.078999, 0.1, 0, 0], [4, 0.8660617, 0.9420552, 0.06666667, 0, 0]]] * 2, []],
                "The log shows the scaled loss.":
                    [[[[1, 1103.516, 1.265643, 0.2, 0, 0], [2, 931.4652, 0.0, 0.1, 1, 1], [3, 953.3674, 1.044587, 0.1, 0, 0],
                       [4, 913.6863, 1.006567, 0.06666667, 0, 0]]] * 2, []],
                "The gradients are unscaled, but the loss was never scaled.":
                    [[[[1, 1.077652, 0.001235979, 0.2, 0, 0], [2, 1.007357, 0.0, 0.1, 1, 1], [3, 1.036382, 0.001179632, 0.1, 0, 0],
                       [4, 1.058053, 0.001225485, 0.06666667, 0, 0]]] * 2, []],
                "The scaler must learn after every step whether it overflowed: good steps let the scale grow.":
                    [[[[1, 1.077652, 1.265643, 0.2, 0, 1], [2, 0.909634, 0.0, 0.1, 1, -1], [3, 0.9310229, 1.044587, 0.1, 0, -1],
                       [4, 0.8922718, 1.006567, 0.06666667, 0, -1]]] * 2, []],
                "log() is not told that the second step was skipped.":
                    [[[[1, 1.077652, 1.265643, 0.2, 0, 0], [2, 0.909634, 1e999, 0.1, 0, 1],
                       [3, 0.9310229, 1.044587, 0.1, 0, 0], [4, 0.8922718, 1.006567, 0.06666667, 0, 0]]] * 2, []],
                "The log shows the loss of this rank's samples, and not the mean over all ranks.":
                    [[[[1, 1.0696079, 1.265643, 0.2, 0, 0], [2, 0.9266415, 0.0, 0.1, 1, 1], [3, 0.91435, 1.044587, 0.1, 0, 0],
                       [4, 0.9051201, 1.006567, 0.06666667, 0, 0]],
                      [[1, 1.0856961, 1.265643, 0.2, 0, 0], [2, 0.8926265, 0.0, 0.1, 1, 1], [3, 0.9476958, 1.044587, 0.1, 0, 0],
                       [4, 0.8794235, 1.006567, 0.06666667, 0, 0]]], []],
                "A clip_grad of 0 does not clip. Yours clips every gradient to 0, so nothing is learned.":
                    [[], [[[1, 1.077652, 1.265643, 0.2, 0, 0], [2, 1.0076146, 1.22998, 0.1, 0, 0],
                           [3, 1.0366638, 1.2083595, 0.06666667, 0, 0]]] * 2]})
        ### BEGIN HIDDEN TESTS
        for ranks, case in zip((1, 3), check.draw(2, seed=check.for_each_rank(check.between(0, 100)), samples=[4, 8], clip=[0, 0.4],
                                                  overflows=[[1, 0, 1, 1, 0], [0, 0, 1, 0]], scale=[256.0, 4096.0]), strict=True):
            check.ranks(scaled_lines, ranks=ranks, rel=1e-4, cases=[case],
                        expected=lambda ranks, **given: lines_of_one_process(*given.values()))
        ### END HIDDEN TESTS
    with check.part(2, "trains a GPT in fp16 with your master weights and your scaler"):
        def require_training(seeds, **case):
            """Require the losses, norms, scales, and skipped steps of one process."""
            (run,) = check.ranks(fp16_lines, ranks=len(seeds), cases=[{"seed": check.by_rank(seeds), **case}], expected=None)
            right = tiny_gpt.trained(seeds, **case)
            first = next(step for step, one in enumerate(right, 1) if one.skipped)
            for lines in run.values:
                check.that(not all(skipped for _, _, skipped, _ in lines[first:]), (
                    f"After the first overflow, in step {first}, every step is skipped. scaler.scale changes after a step, and "
                    "infinite gradients stay until they are freed. What does each forward pass begin with, and which scale does "
                    "its loss get?"))
                for step, (line, one) in enumerate(zip(lines, right, strict=False), 1):
                    wanted = [one.loss, one.norm, int(one.skipped), one.scale]
                    check.that(all(abs(found - value) <= 5e-3 * abs(value) for found, value in zip(line, wanted, strict=True)), (
                        f"Step {step} has the loss {line[0]:.4f} and the gradient norm {line[1]:.4g}, is "
                        f"{'skipped' if line[2] else 'made'}, and divides gradients by {line[3]:g}. It should have "
                        f"{one.loss:.4f} and {one.norm:.4g}, be {'skipped' if one.skipped else 'made'}, and divide by "
                        f"{one.scale:g}. Is each loss multiplied by the scale that its gradients are divided by?"))

        require_training([1.3, 2.7], samples=4, steps=14, clip=1.0, scale=2.0**19, window=4, hysteresis=2)
        ### BEGIN HIDDEN TESTS
        for case in check.draw(1, seeds=lambda dice: [dice.uniform(0, 100) for _ in range(2)], samples=[4], steps=[24],
                               clip=[0.8, 1.2], scale=[2.0**21, 2.0**23], window=[4, 5], hysteresis=[1, 2]):
            require_training(**case)
        ### END HIDDEN TESTS

# %% [raw] mutant="loop" hint="clipped while it was still scaled"
# -        skipped = scaler is not None and scaler.unscale(model.parameters())
# -        norm = (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), args.clip_grad or math.inf)
# +        norm = (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), args.clip_grad or math.inf)
# +        skipped = scaler is not None and scaler.unscale(model.parameters())

# %% [raw] mutant="loop" hint="unscaled before finish()"
# -        model.finish()
# -        skipped = scaler is not None and scaler.unscale(model.parameters())
# +        skipped = scaler is not None and scaler.unscale(model.parameters())
# +        model.finish()

# %% [raw] mutant="loop" hint="advances on the skipped step"
# -            advanced += args.global_batch_size
# -        if scaler is not None:
# +        advanced += args.global_batch_size
# +        if scaler is not None:

# %% [raw] mutant="loop" hint="never changes"
# -            advanced += args.global_batch_size
# -        if scaler is not None:
# +        if scaler is not None:

# %% [raw] mutant="loop" hint="must not be taken"
# -        if not skipped:
# -            optimizer.step()
# +        optimizer.step()
# +        if not skipped:

# %% [raw] mutant="loop" hint="on its samples again"
# -            advanced += args.global_batch_size
# -        if scaler is not None:
# -            scaler.update(skipped)
# -        consumed += args.global_batch_size
# +            advanced += args.global_batch_size
# +            consumed += args.global_batch_size
# +        if scaler is not None:
# +            scaler.update(skipped)

# %% [raw] mutant="loop" hint="shows the scaled loss"
# -                loss = model(batch) / len(micro_batches)
# -                (loss if scaler is None else loss * scaler.scale).backward()
# +                loss = model(batch) / len(micro_batches) * (1 if scaler is None else scaler.scale)
# +                loss.backward()

# %% [raw] mutant="loop" hint="was never scaled"
# -                (loss if scaler is None else loss * scaler.scale).backward()
# +                loss.backward()

# %% [raw] mutant="loop" hint="good steps let the scale grow"
# -        if scaler is not None:
# -            scaler.update(skipped)
# +        if skipped:
# +            scaler.update(skipped)

# %% [raw] mutant="loop" hint="every step is skipped"
# -    consumed = advanced = 0  # samples of all steps, and of those that were not skipped
# +    consumed = advanced = 0
# +    scale = 1 if scaler is None else scaler.scale
# -                (loss if scaler is None else loss * scaler.scale).backward()
# +                (loss * scale).backward()

# %% [raw] mutant="loop" hint="Is each loss multiplied by the scale"
# -    consumed = advanced = 0  # samples of all steps, and of those that were not skipped
# +    consumed = advanced = 0
# +    scale = 1 if scaler is None else scaler.scale
# -                (loss if scaler is None else loss * scaler.scale).backward()
# +                (loss * scale).backward()
# -        if scaler is not None:
# -            scaler.update(skipped)
# +        if scaler is not None:
# +            scale = scaler.scale
# +            scaler.update(skipped)

# %% [raw] mutant="loop" hint="infinite gradients"
# -        optimizer.zero_grad()
# -        micro_batches, losses = batches(consumed), []
# +        micro_batches, losses = batches(consumed), []
# -            optimizer.step()
# +            optimizer.step()
# +            optimizer.zero_grad()

# %% [raw] mutant="loop" hint="mean over all ranks"
# -        dist.all_reduce(loss)
# -        log(iteration, loss / dist.get_world_size(), norm, skipped)
# +        log(iteration, loss, norm, skipped)

# %% [raw] mutant="loop" hint="0 does not clip"
# -        norm = (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), args.clip_grad or math.inf)
# +        norm = (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), args.clip_grad)

# %% [raw] mutant="loop" hint="and never calls it"
# -        norm = (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), args.clip_grad or math.inf)
# +        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)

# %% [raw] mutant="loop" hint="Without a scaler"
# -        skipped = scaler is not None and scaler.unscale(model.parameters())
# +        skipped = scaler.unscale(model.parameters())

# %% [raw] mutant="loop" hint="log() is not told"
# -        log(iteration, loss / dist.get_world_size(), norm, skipped)
# +        log(iteration, loss / dist.get_world_size(), norm)

# %% [markdown]
# Put it in place. `lab mytrainer` tests it on two ranks first, and keeps your old file:

# %% tags=["explore"] short={"lab mytrainer --adopt train": "cp mytrainer/new/train.py mytrainer/train.py"}
!lab mytrainer --adopt train

# %% [markdown]
# ## Train in fp16
#
# Now everything is connected. The next job trains the small GPT on two nodes with four ranks of *your* trainer, for 100
# steps in fp16, and a single process of `pretrain_gpt.py` with the same flags is the reference. Each micro-batch is a
# single sample. Otherwise, the two programs might group samples differently, and whether a gradient overflows in fp16
# depends on the grouping. The scale starts at $2^{28}$. How many of the 100 steps will be skipped?

# %% answer="guess-skipped"
### BEGIN SOLUTION
guess_skipped = 10
### END SOLUTION

# %% tags=["explore"] short={"--train-iters 100": "--train-iters 5 --lr-decay-iters 100", "scale 268435456": "scale 1048576"}
FLAGS = ("--device cpu --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
         "--max-position-embeddings 64 --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 1 "
         "--global-batch-size 8 --train-iters 100 --lr 1e-3 --min-lr 1e-5 --lr-warmup-fraction 0.1 --lr-decay-style cosine "
         "--log-interval 1 --eval-iters 0 --split 949,50,1 --data-path data/bpe-4096/text_document "
         "--vocab-file data/bpe-4096/vocab.json --merge-file data/bpe-4096/merges.txt "
         "--fp16 --initial-loss-scale 268435456 --loss-scale-window 20 --accumulate-allreduce-grads-in-fp32 "
         "--log-num-zeros-in-grad")
!sbatch --output=megatron/logs/mine_fp16.txt code/my_trainer.sh {FLAGS}

# %% tags=["explore"]
!OMP_NUM_THREADS=1 python megatron/Megatron-LM/pretrain_gpt.py {FLAGS} > megatron/logs/reference_fp16.txt

# %% tags=["explore"]
jobs.wait()
!grep -hE "^training|error:" megatron/logs/mine_fp16.txt

# %% tags=["explore"]
reference, mine = (logs.read(f"megatron/logs/{name}_fp16.txt") for name in ("reference", "mine"))
check.compare("skipped steps of 100", guess_skipped, sum(one.skipped for one in mine.iterations))
assert mine.iterations, "Your job has failed. The line above, and megatron/logs/mine_fp16.txt, say why."
for theirs, yours in zip(reference.iterations, mine.iterations, strict=True):
    assert (theirs.loss_scale, theirs.skipped) == (yours.loss_scale, yours.skipped), f"iteration {yours.iteration}"
    if not yours.skipped:
        assert abs(yours.loss / theirs.loss - 1) < 1e-3 and abs(yours.grad_norm / theirs.grad_norm - 1) < 0.02, yours
print(f"{good('the same')} loss scale and skipped steps in all {len(mine.iterations)} iterations; losses differ by at most "
      + result(f"{logs.loss_difference(reference, mine):.1e}"))
plots.loss_scale(mine)

# %% [markdown]
# (`pretrain_gpt.py` divides by the number of ranks before the backward pass and yours after it. So `my_trainer.py` gives
# your scaler the scale divided by the number of ranks, and the log has the product.)
#
# Look at the log line of a skipped step, and at the first one that was made. The skipped one has no loss and no
# gradient norm, and its learning rate did not advance. In the other one, `num zeros` is what your `log2_histogram`
# counted: the elements of the global batch's gradient that are exactly 0.

# %% tags=["explore"]
lines = logs.lines("megatron/logs/mine_fp16.txt", "elapsed time")
made = [number for number, one in enumerate(mine.iterations) if not one.skipped]
for number in (0, *made[:1]):
    zeros = [] if mine.iterations[number].skipped else [r"num zeros: [^ |]+"]
    print(mark(lines[number], r"loss scale: [^ |]+", r"number of skipped iterations: +\d+", r"learning rate: [^ |]+", *zeros))

# %% [markdown]
# ### A scale that stays too high
#
# > **The next job goes wrong on purpose, and nothing will tell you.** `--loss-scale` fixes the scale. This one is too
# > high, and nothing lowers it.

# %% tags=["explore"] short={"--train-iters 6": "--train-iters 2"}
!sbatch --output=megatron/logs/silent.txt code/my_trainer.sh {FLAGS.partition("--fp16")[0]} --train-iters 6 --fp16 --loss-scale 1073741824

# %% tags=["explore"]
silent = jobs.wait()

# %% tags=["explore"]
silent_steps = logs.read("megatron/logs/silent.txt").iterations
print(f"{jobs.show().state}; skipped: {bad(sum(one.skipped for one in silent_steps))} of {len(silent_steps)} steps")

# %% [markdown]
# The job is `COMPLETED`, so Slurm reports no problem, but the model has learned nothing: every step was skipped. This
# is why every log line counts the skipped iterations. **A few at the beginning are healthy, and one now and then, when
# the scale has doubled. Many of them, or a scale that keeps falling, mean that something is wrong.**
#
# **This is the end of the second sitting.**

# %% [markdown]
# ## Which operations?
#
# **The third sitting starts here.** Your trainer puts whole models into 16 bits. PyTorch's `torch.autocast` is the
# other recipe: parameters stay in fp32, and for every *operation*, two lists say whether its inputs are cast to 16 bits
# or to fp32. An operation belongs on the first list if 16 bits make it much faster, and on the second if its result can
# leave the range of fp16 although its inputs have ordinary magnitudes, up to a few hundred. All others take what they
# get.
#
# The next cell applies operations in fp16 and in fp32 to activations with a standard deviation of 6 and a few outliers
# of 300. That value is our choice; some activations of large models are far larger ([Sun et al.,
# 2024](https://arxiv.org/abs/2402.17762)). GEMMs multiply them by weights with a standard deviation of 0.02, GPT-2's at
# the start. The loss is a sum over 16,384 tokens, as in Megatron-LM. The times are those of a virtual V100 and of a
# virtual H100.

# %% tags=["explore"] short={"size=4096": "size=1024"}
import time

from torch.nn import functional as F

import virtualgpu

OPERATIONS = {
    "add": lambda x, w: x + x, "bmm": lambda x, w: torch.bmm(x[None], w.t()[None]),
    "cross_entropy": lambda x, w: F.cross_entropy(x.flatten()[:2**20].view(16_384, 64), torch.arange(
        16_384, device=x.device) % 64, reduction="sum"),
    "cumsum": lambda x, w: x.abs().cumsum(-1), "exp": lambda x, w: x.exp(), "linear": lambda x, w: F.linear(x, w),
    "matmul": lambda x, w: x @ w.t(), "maximum": lambda x, w: torch.maximum(x, -x), "pow": lambda x, w: x.pow(2),
    "relu": lambda x, w: x.relu(), "softmax": lambda x, w: x.softmax(-1), "sum": lambda x, w: x.abs().sum(-1),
    "tanh": lambda x, w: x.tanh()}
GPUS = {"V100": ("v100:1", torch.float32, torch.float16), "H100": ("h100:1", torch.float32, torch.bfloat16)}


def milliseconds(dtypes, size=4096):
    """Return each operation's time on [size, size] tensors in each dtype on a GPU, in ms (run by virtualgpu)."""
    times = {}
    for name, operation in OPERATIONS.items():
        for dtype in dtypes:
            x = torch.randn(size, size, device="cuda", dtype=dtype)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            operation(x, x)
            torch.cuda.synchronize()
            times[name, dtype] = 1000 * (time.perf_counter() - begin)
    return times


generator = torch.Generator().manual_seed(0)
x, weights = (std * torch.randn(64, 16_384, generator=generator) for std in (6, 0.02))
x[::8, ::64] = 300
x, weights = x.half(), weights.half()
times = {name: virtualgpu.run(lambda dtypes=dtypes: milliseconds(dtypes), gpu)[0].value
         for name, (gpu, *dtypes) in GPUS.items()}
print(f"{'':14}  in fp16, became     V100, virtual (ms)   H100, virtual (ms)\n"
      f"{'':14} infinite        0      fp32     fp16        fp32     bf16")
for name, operation in OPERATIONS.items():
    exact, rounded = operation(x.float(), weights.float()), operation(x, weights)
    infinite = 100 * (rounded.isinf() & ~exact.isinf()).float().mean().item()
    lost = 100 * ((rounded == 0) & (exact != 0)).float().mean().item()
    infinite, lost = (bad(f"{share:7.2f}%") if share else f"{share:7.2f}%" for share in (infinite, lost))
    print(f"{name:14} {infinite} {lost}  " + "   ".join(
        " ".join(f"{times[gpu][name, dtype]:8.2f}" for dtype in dtypes) for gpu, (_, *dtypes) in GPUS.items()))

# %% [markdown]
# (Memory-bound operations also become faster in 16 bits, but only because they move half as many bytes. A cast of their
# inputs would cost what it gains.)

# %% [markdown]
# ### Exercise 6: your autocast
#
# Write `Autocast` and its two lists. A `TorchFunctionMode` sees each call of a PyTorch function in its `with` block:
# `function.__name__` is the operation's name, and `x @ y` is `matmul`. Decide for each operation of the table, and for
# the others of `ALL`: what do they have in common with those that you measured? Only floating-point tensors of 16 and
# 32 bits are cast, wherever they are among the arguments; labels and fp64 stay as they are. `my_trainer.py` runs the
# forward pass in your Autocast if it is given `--autocast`.

# %% answer="autocast"
%%writefile mytrainer/autocast.py
"""Autocast: fp32 parameters, and each operation in the dtype that suits it."""

import torch

# What the check calls. Operations that are on neither list run in the dtype of their inputs.
ALL = ("add", "addmm", "baddbmm", "bmm", "clamp", "cosh", "cross_entropy", "cumprod", "cumsum", "exp", "expm1", "linear",
       "matmul", "maximum", "mse_loss", "neg", "pow", "prod", "relu", "reshape", "softmax", "sum", "tanh", "transpose")


class Autocast(torch.overrides.TorchFunctionMode):
    """Run each operation in the dtype that suits it: `with Autocast(torch.float16): ...`."""

    def __init__(self, dtype):
        """Choose the names of the operations that run in `dtype`, and of those that run in fp32."""
        super().__init__()
        self.dtype = dtype
        ### BEGIN SOLUTION
        self.low = {"addmm", "baddbmm", "bmm", "linear", "matmul"}
        self.full = {"cosh", "cross_entropy", "cumprod", "cumsum", "exp", "expm1", "mse_loss", "pow", "prod", "softmax",
                     "sum"}
        ### END SOLUTION

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call a function of PyTorch, after casting its arguments."""
        ### BEGIN SOLUTION
        def cast(value, dtype):
            if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16, torch.float32):
                return value.to(dtype)
            return value

        kwargs, name = kwargs or {}, function.__name__
        if name in self.low or name in self.full:
            dtype = self.dtype if name in self.low else torch.float32
            args = [cast(value, dtype) for value in args]
            kwargs = {key: cast(value, dtype) for key, value in kwargs.items()}
        return function(*args, **kwargs)
        ### END SOLUTION

# %% tags=["driver"]
def dtypes_of(names, dtype, low):
    """Return the dtype of each operation's result under Autocast, for operands in a dtype."""
    from torch.nn import functional as F

    from mytrainer.autocast import Autocast

    x = torch.full((4, 4), 0.5, dtype=getattr(torch, dtype))
    calls = {
        "add": lambda: x + x, "addmm": lambda: torch.addmm(input=x, mat1=x, mat2=x), "clamp": lambda: x.clamp(min=0),
        "baddbmm": lambda: torch.baddbmm(x[None], x[None], batch2=x[None]), "bmm": lambda: torch.bmm(x[None], x[None]),
        "cosh": lambda: x.cosh(), "cross_entropy": lambda: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
        "cumprod": lambda: x.cumprod(0), "cumsum": lambda: x.cumsum(0), "exp": lambda: torch.exp(x),
        "expm1": lambda: x.expm1(), "linear": lambda: F.linear(x, weight=x),
        "matmul": lambda: x @ x, "maximum": lambda: torch.maximum(x, -x), "mse_loss": lambda: F.mse_loss(x, -x),
        "neg": lambda: -x, "pow": lambda: x.pow(2), "prod": lambda: x.prod(), "relu": lambda: F.relu(x),
        "reshape": lambda: x.reshape(2, 8), "softmax": lambda: x.softmax(-1), "sum": lambda: x.sum(),
        "tanh": lambda: x.tanh(), "transpose": lambda: x.transpose(0, 1)}
    with Autocast(getattr(torch, low)):
        return [str(calls[name]().dtype).removeprefix("torch.") for name in names]


def autocast_values(seed, rows):
    """Train one step of a small network under Autocast; return its loss, and the gradient's dtype."""
    from torch.nn import functional as F

    from mytrainer.autocast import Autocast

    first, second = (torch.nn.Parameter((torch.arange(64.0).view(8, 8) * number + seed).sin()) for number in (1, 2))
    x = (torch.arange(8.0 * rows).view(rows, 8) + seed).cos()
    with Autocast(torch.bfloat16):
        logits = F.linear(F.relu(F.linear(x, first)), second)
        loss = F.cross_entropy(logits, torch.arange(rows) % 8, reduction="sum")
    loss.backward()
    return [loss.item(), str(first.grad.dtype)]


def autocast_step(width, layers, tokens):
    """Train a stack of linear layers with fp32 parameters under Autocast on a GPU."""
    from mytrainer.autocast import Autocast

    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False, device="cuda") for _ in range(layers)))
    x = torch.empty(tokens, width, device="cuda")
    for _ in range(2):
        with Autocast(torch.float16):
            loss = model(x).sum()
        loss.backward()

# %% check="autocast" points=5
with check.parts():
    with check.part(3, "gives each operation a dtype"):
        check.ranks(
            dtypes_of, ranks=1,
            cases=[{"names": ["matmul", "linear", "bmm"], "dtype": "float32", "low": "float16"},
                   {"names": ["exp", "sum", "softmax", "cross_entropy", "cumsum", "pow"], "dtype": "float16", "low": "float16"},
                   {"names": ["relu", "maximum", "reshape", "add", "tanh"], "dtype": "float16", "low": "float16"},
                   {"names": ["matmul", "exp"], "dtype": "float64", "low": "float16"},
                   {"names": ["matmul", "exp"], "dtype": "float16", "low": "bfloat16"}],
            expected=[[["float16"] * 3], [["float32"] * 6], [["float16"] * 5], [["float64"] * 2], [["bfloat16", "float32"]]],
            hints={"Everything runs in fp16. Which results of the table became infinite or 0?":
                       [[["float16"] * 3], [["float16"] * 6], [["float16"] * 5], [["float64"] * 2], [["bfloat16"] * 2]],
                   "GEMMs run in fp32: nothing uses Tensor Cores.":
                       [[["float32"] * 3], [["float32"] * 6], [["float16"] * 5], [["float64"] * 2], [["float32"] * 2]],
                   "Operations that neither gain nor lose much are cast, too. Each cast costs a kernel.":
                       [[["float16"] * 3], [["float32"] * 6], [["float32"] * 5], [["float64"] * 2], [["bfloat16", "float32"]]],
                   "fp64 is cast. Leave it alone: whoever uses fp64 has a reason.":
                       [[["float16"] * 3], [["float32"] * 6], [["float16"] * 5], [["float16", "float32"]], [["bfloat16", "float32"]]],
                   "You cast to fp16, whatever dtype Autocast was made with.":
                       [[["float16"] * 3], [["float32"] * 6], [["float16"] * 5], [["float64"] * 2], [["float16", "float32"]]]})
        # The operations of ALL that the table does not show.
        for kind, names in (("multiply matrices", ("addmm", "baddbmm")),
                            ("can leave the range of fp16", ("cosh", "cumprod", "expm1", "mse_loss", "prod")),
                            ("do neither", ("clamp", "neg", "transpose"))):
            (run,) = check.ranks(dtypes_of, ranks=1, expected=None, cases=[
                {"names": list(names), "dtype": "float32" if kind == "multiply matrices" else "float16", "low": "float16"}])
            right = sum(dtype == ("float32" if kind == "can leave the range of fp16" else "float16") for dtype in run.values[0])
            check.that(right == len(names), (
                f"Of the {len(names)} operations that you did not measure and that {kind}, {right} run in the right dtype. What can "
                "powers, products, and sums of ordinary numbers become, and which operations only move, negate, or limit their "
                "input?"))
        ### BEGIN HIDDEN TESTS
        low, full = ("addmm", "baddbmm", "bmm", "linear", "matmul"), (
            "cosh", "cross_entropy", "cumprod", "cumsum", "exp", "expm1", "mse_loss", "pow", "prod", "softmax", "sum")
        rest = ("add", "clamp", "maximum", "neg", "relu", "reshape", "tanh", "transpose")
        for dtype, name in (("float32", "bfloat16"), ("float16", "float16")):
            check.ranks(dtypes_of, ranks=1, cases=[{"names": list(names), "dtype": dtype, "low": name}
                                                   for names in (low, full, rest)],
                        expected=[[[name] * len(low)], [["float32"] * len(full)], [[dtype] * len(rest)]])
        ### END HIDDEN TESTS
    with check.part(1, "trains fp32 parameters"):
        check.ranks(autocast_values, ranks=1, cases=[{"seed": 0.5, "rows": 4}], rel=0.02,
                    expected=[[[18.395, "torch.float32"]]])
        ### BEGIN HIDDEN TESTS
        import torch
        from torch.nn import functional as F

        def exact_loss(ranks, seed, rows):
            first, second = ((torch.arange(64.0).view(8, 8) * number + seed).sin() for number in (1, 2))
            x = (torch.arange(8.0 * rows).view(rows, 8) + seed).cos()
            logits = F.linear(F.relu(F.linear(x, first)), second)
            return [[F.cross_entropy(logits, torch.arange(rows) % 8, reduction="sum").item(), "torch.float32"]]

        check.ranks(autocast_values, ranks=1, cases=check.draw(3, seed=check.between(0, 9), rows=[4, 8, 16]), rel=0.02,
                    expected=exact_loss)
        ### END HIDDEN TESTS
    with check.part(1, "uses Tensor Cores"):
        cost = check.gpus(autocast_step, {"width": 4096, "layers": 4, "tokens": 8192}, "h100:1", least={
            "flops": 2 * 11 * 2 * 8192 * 4096**2, "dtype": "fp16"})
        check.pass_mark(cost.milliseconds, error=cost.error, below=30, hint=(
            f"{cost.milliseconds:.0f} ms: the forward or the backward pass multiplies in fp32."))

# %% [raw] mutant="autocast" hint="Everything runs in fp16"
# -        if name in self.low or name in self.full:
# -            dtype = self.dtype if name in self.low else torch.float32
# +        if name in ALL:
# +            dtype = self.dtype

# %% [raw] mutant="autocast" hint="nothing uses Tensor Cores"
# -            dtype = self.dtype if name in self.low else torch.float32
# +            dtype = torch.float32

# %% [raw] mutant="autocast" hint="Each cast costs a kernel"
# -        if name in self.low or name in self.full:
# +        if name in ALL:

# %% [raw] mutant="autocast" hint="whoever uses fp64 has a reason"
# -            if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16, torch.float32):
# +            if isinstance(value, torch.Tensor) and value.is_floating_point():

# %% [raw] mutant="autocast" hint="whatever dtype Autocast was made with"
# -            dtype = self.dtype if name in self.low else torch.float32
# +            dtype = torch.float16 if name in self.low else torch.float32

# %% [raw] mutant="autocast" hint="operations that you did not measure"
# -        self.full = {"cosh", "cross_entropy", "cumprod", "cumsum", "exp", "expm1", "mse_loss", "pow", "prod", "softmax",
# -                     "sum"}
# +        self.full = {"cross_entropy", "cumsum", "exp", "pow", "softmax", "sum"}

# %% [raw] mutant="autocast" hint="operations that you did not measure"
# -        self.low = {"addmm", "baddbmm", "bmm", "linear", "matmul"}
# +        self.low = {"addmm", "bmm", "linear", "matmul"}

# %% [raw] mutant="autocast" hint="multiplies in fp32"
# -        self.low = {"addmm", "baddbmm", "bmm", "linear", "matmul"}
# +        self.low = {"addmm", "baddbmm", "bmm", "matmul"}

# %% [markdown]
# Compare your lists with [PyTorch's](https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior). It also
# casts layer norms and losses to fp32, whose kernels add up in fp32 anyway, so that what they return is more precise. In
# bf16, an operation on your second list overflows only where it would in fp32, too. PyTorch runs it in fp32 all the same,
# for its precision.
#
# Your trainer can use either recipe. `--autocast` is a flag of `my_trainer.py` alone: the parameters are in fp32, so
# they are their own master weights, and the forward pass runs in your `Autocast`. Train in fp16 with it for 20 steps. At
# the end of this lab, you see what it costs in time and memory.

# %% tags=["explore"] short={"--train-iters 20 ": "--train-iters 2 "}
AUTOCAST = "--train-iters 20 --lr-decay-iters 100 --initial-loss-scale 524288 --autocast"  # the last value of a flag counts
!OMP_NUM_THREADS=1 python code/my_trainer.py {FLAGS} {AUTOCAST} > megatron/logs/autocast_fp16.txt 2>&1
!grep -hE "^training|error:" megatron/logs/autocast_fp16.txt
cast = logs.read("megatron/logs/autocast_fp16.txt").iterations
losses = [f"{one.iteration}: {one.loss:.3f}" for one in cast[::6] if not one.skipped]
print(f"losses of iterations {', '.join(losses)}; skipped: {sum(one.skipped for one in cast)} of {len(cast)}")

# %% [markdown]
# ## What a parameter costs
#
# 16 bits are half of 32, so does a model in fp16 need half the memory? Count. Each recipe keeps some tensors for every
# parameter until the end of the optimizer step, and Adam has two moments in fp32.

# %% [markdown]
# ### Predict the bytes
#
# How many bytes per parameter are allocated during the optimizer step?
#
# - `"fp32"`: everything in fp32;
# - `"autocast"`: your `Autocast` with fp32 parameters;
# - `"Megatron-LM 2021"`: like your `MixedPrecision`, but the gradients are accumulated in fp16, and the step unscales
#   them into an fp32 copy, the *main gradients*;
# - `"ZeRO"`: the accounting of [Rajbhandari et al., 2020](https://arxiv.org/abs/1910.02054): 16-bit parameters and
#   gradients, fp32 master weights, and no copy of the gradients;
# - `"yours"`: your `MixedPrecision`, which has Megatron-LM's tensors with `--accumulate-allreduce-grads-in-fp32`.

# %% answer="guess-bytes"
### BEGIN SOLUTION
guess_bytes = {"fp32": 16, "autocast": 16, "Megatron-LM 2021": 20, "ZeRO": 16, "yours": 18}
### END SOLUTION

# %% [markdown]
# The next cell measures all of them on a virtual H100, with 134 million parameters and hardly any activations. About
# half a byte per parameter is the workspace of the GEMMs. For ZeRO's accounting, it converts and updates one of the eight
# matrices at a time, so that the fp32 gradients of all others need no memory.

# %% tags=["explore"] short={"in guess_bytes": "in ('ZeRO', 'autocast')"}
def peak_per_parameter(recipe, layers=8, width=4096):
    """Return the peak allocated memory of the second optimizer step, in bytes per parameter."""
    from contextlib import nullcontext
    from functools import partial

    from mytrainer.autocast import Autocast
    from mytrainer.precision import MixedPrecision

    dtype = torch.float32 if recipe in ("fp32", "autocast") else torch.float16
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False, device="cuda", dtype=dtype)
                                  for _ in range(layers)))
    make = partial(torch.optim.AdamW, fused=True)
    parameters = list(model.parameters())
    masters = [parameter.detach().float() for parameter in parameters] if recipe in ("Megatron-LM 2021", "ZeRO") else []
    groups = {"ZeRO": [[number] for number in range(layers)], "Megatron-LM 2021": [range(layers)]}.get(recipe, [])
    copied = [make([masters[number] for number in group]) for group in groups]  # an optimizer for each group
    optimizer = None if copied else MixedPrecision(parameters, make) if recipe == "yours" else make(parameters)
    x = torch.randn(16, width, device="cuda", dtype=dtype)
    for _ in range(2):
        model.zero_grad()
        if optimizer is not None:
            optimizer.zero_grad()
        with Autocast(torch.float16) if recipe == "autocast" else nullcontext():
            loss = model(x).float().sum()
        loss.backward()
        torch.cuda.reset_peak_memory_stats()
        for group, one in zip(groups, copied, strict=True):
            for number in group:
                masters[number].grad = parameters[number].grad.float()
            one.step()
            for number in group:
                masters[number].grad = None
                parameters[number].data.copy_(masters[number])
        if optimizer is not None:
            optimizer.step()
    return torch.cuda.max_memory_allocated() / (layers * width**2)


for recipe in guess_bytes:
    (run,) = virtualgpu.run(lambda recipe=recipe: peak_per_parameter(recipe), "h100:1")
    print(f"{recipe:16} {result(f'{run.value:.1f}')} bytes per parameter (modeled), and you predicted {guess_bytes[recipe]}")

# %% [markdown]
# With gradients in fp16, Megatron-LM needs 20 bytes, because the main gradients are a second copy; with gradients in
# fp32, it needs 18, because that copy is gone. ZeRO counts 16, which takes an optimizer that never holds all fp32
# gradients at once.
#
# None of the recipes needs less than fp32. Mixed precision saves memory only in *activations*, which is why the largest
# models shard their states over ranks: the subject of lab 08. When you read a number of bytes per parameter, ask which
# recipe it counts, and at what point in the step.

# %% [markdown]
# ### Can fp16 need more?
#
# A colleague adds `--fp16` to a job of `pretrain_gpt.py` on one GPU, changes nothing else, and reports that its peak
# memory rose. Can that be? This trainer follows Megatron-LM of 2021: the main gradients exist only during the optimizer
# step, when the activations are gone. By how many percent does `--fp16` change the peak of each of these jobs on a V100
# with 32 GB (with a minus, if it falls)?
#
# - `"deep"`: 48 layers of width 1,024, with one sequence of 1,024 tokens per micro-batch;
# - `"wide"`: 10 layers of width 3,072, with one sequence of 128 tokens.

# %% answer="guess-change"
### BEGIN SOLUTION
guess_change = {"deep": -40, "wide": 10}
### END SOLUTION

# %% tags=["explore"] short={"--num-layers 48": "--num-layers 4"}
for name, shape in {"deep": "--num-layers 48 --hidden-size 1024 --seq-length 1024 --max-position-embeddings 1024",
                    "wide": "--num-layers 10 --hidden-size 3072 --seq-length 128 --max-position-embeddings 128"}.items():
    thirty_two, sixteen = costs.of({f"{name}, fp32": "", f"{name}, fp16": "--fp16"}, (
        f"--device virtual:v100-32gb --num-attention-heads 8 {shape} --micro-batch-size 1 --global-batch-size 1 "))
    print(f"{name}: {thirty_two.total:.1f} GiB in fp32, {sixteen.total:.1f} GiB in fp16 (modeled)")
    check.compare("percent of change", guess_change[name], 100 * (sixteen.total / thirty_two.total - 1))

# %% [markdown]
# With $P$ parameters and activations that take $A$ bytes in fp32 and about half of that in fp16, the peaks are
#
# $$M_\text{fp32} = 16P + A \qquad M_\text{fp16} = 16P + \max(A/2,\ 4P),$$
#
# so fp16 needs more than fp32 if $A < 4P$: for a large model with a small batch. Most reports of this kind have a
# simpler cause, though. Which two rows of the next table would mislead you, and which two should be compared?
#
# The table also shows step times. The V100's data sheet has 15.7 TFLOP/s in fp32 and 125 in fp16, and memory-bound
# kernels move half as many bytes. How many times as fast is a step in fp16, at the same micro-batch? Guess.

# %% answer="guess-speedup"
### BEGIN SOLUTION
guess_speedup = 5
### END SOLUTION

# %% tags=["explore"]
GPT2 = ("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 ")
V100 = GPT2 + "--device virtual:v100 "
precisions = costs.of({"fp32, micro-batch 2": "--micro-batch-size 2", "fp16, micro-batch 2": "--micro-batch-size 2 --fp16",
                       "fp16, micro-batch 4": "--micro-batch-size 4 --fp16", "fp32, micro-batch 4": "--micro-batch-size 4"},
                      V100)
costs.show(precisions)
costs.show(costs.of({"fp32, micro-batch 2": "--micro-batch-size 2", "bf16, micro-batch 2": "--micro-batch-size 2 --bf16"},
                    GPT2 + "--device virtual:h100 "))
check.compare("times as fast (virtual V100)", guess_speedup, precisions[0].milliseconds / precisions[1].milliseconds)

# %% [markdown]
# `activ.` shrinks by less than half: dropout masks still take one byte per element, and the loss is computed in fp32.
# (`all` is the larger of two peaks, at the end of the forward pass and in the optimizer step, plus CUDA's context.) The second table
# is an H100's. In bf16, `pretrain_gpt.py` accumulates gradients in fp32, so `states` takes 18 bytes per parameter, and the
# step needs no copy. If somebody turns
# fp16 on, notices the free memory, doubles the micro-batch, and only then reads the peak, fp16 seems to cost memory.
# **Change one thing at a time.**

# %% [markdown]
# ## Why the step is not eight times as fast
#
# The data sheet promises a factor of 8. In the table, `of peak` even falls, although everything is faster, because the
# peak grew by more than the speed did. Where did the rest of the promised speedup go? A program that runs on a GPU is
# called a **kernel**, a matrix multiplication a **GEMM**. The **profiler** records when each kernel starts and ends.
# Profile the first two rows: the same model on one virtual V100, first in fp32, then in fp16.

# %% tags=["explore"] short={"virtual:v100 --train": "virtual:v100 --num-layers 2 --train"}
PROFILE = ("--nodes=1 --gpus-per-node=1 code/virtual_v100.sh --device virtual:v100 --train-iters 4 --log-interval 2 "
           f"--profile-execution yes --tensorboard-dir {os.getcwd()}/megatron/tensorboard/precision")
!sbatch {PROFILE} --profile-name fp32

# %% tags=["explore"]
in_fp32 = jobs.wait()

# %% tags=["explore"]
single = kernels.read("fp32 (virtual V100)", "megatron/tensorboard/precision/run_fp32")
single.show()
print(f"GEMMs: {single.milliseconds_of('other') / single.total:.0%} of the kernels' time")

# %% [markdown]
# In fp32, no kernel of a V100 uses Tensor Cores, and all of its GEMMs are *eligible* for them. In the profile of a real
# training run, 27% of the kernels' time was eligible, which was the reason to switch. (That figure is from the slides of
# a course given in 2021, which are not public.) Yours has the share above.
# **Amdahl's law** says what becomes of the whole if a share $f$ of the time becomes $k$ times as fast: it is
# $1/(1 - f + f/k)$ times as fast. Use it before you run the job in fp16: what percentage of the kernels' time will use Tensor
# Cores then?

# %% answer="guess-tensor-cores"
### BEGIN SOLUTION
guess_tensor_cores = 80
### END SOLUTION

# %% tags=["explore"]
!sbatch {PROFILE} --profile-name fp16 --fp16

# %% tags=["explore"]
in_fp16 = jobs.wait()

# %% tags=["explore"]
half_precision = kernels.read("fp16 (virtual V100)", "megatron/tensorboard/precision/run_fp16")
check.compare("percentage of kernel time on Tensor Cores", guess_tensor_cores, 100 * half_precision.tensor_core_share)
half_precision.show()
for profile, job in ((single, in_fp32), (half_precision, in_fp16)):
    step = logs.read(job.log).iterations[-1].milliseconds
    print(f"{profile.name}: kernels run in {result(f'{min(1, profile.total / step):.0%}')} of a step of {step:.1f} ms")
rest = half_precision.milliseconds_of("rest")
for what, factor in {"the matrix multiplications": single.milliseconds_of("other") / half_precision.milliseconds_of("tensor"),
                     "everything else": single.milliseconds_of("rest") / rest,
                     "all kernels together": single.total / half_precision.total,
                     "all, if GEMMs took no time": single.total / rest}.items():
    print(f"{what:30} {result(f'{factor:.1f}')} x as fast (virtual)")
kernels.plot(single, half_precision)

# %% [markdown]
# And one generation later? Profile the same model on a virtual H100, in fp32 and in bf16. The H100's 16-bit peak is 15
# times its fp32 peak, and its memory is 3.7 times as fast as the V100's, by data sheet. Will the share of Tensor Cores in
# bf16 be higher or lower than the V100's in fp16? Decide before you run the next cells.

# %% tags=["explore"]
!sbatch {PROFILE} --device virtual:h100 --profile-name h100_fp32
!sbatch {PROFILE} --device virtual:h100 --profile-name h100_bf16 --bf16

# %% tags=["explore"]
jobs.wait_latest(2)
newer = [kernels.read(f"{name} (virtual H100)", f"megatron/tensorboard/precision/run_h100_{name}") for name in ("fp32", "bf16")]
for profile in newer:
    profile.show(3)
print(f"all kernels together: {result(f'{newer[0].total / newer[1].total:.1f}')} x as fast in bf16 (virtual)")
kernels.plot(single, half_precision, *newer)

# %% [markdown]
# (`gemm` in a kernel's name means matrix multiplication: `sgemm` in fp32, `s884gemm` on a V100's Tensor Cores.)
#
# The GEMMs became much faster, but they are only part of the step. The other kernels (dropout, softmax, masks, Adam) are
# **memory-bound**, and Tensor Cores cannot help them. Those that move half as many bytes take half as long. But Adam still
# reads and writes fp32 states, and casts between fp16 and fp32 are new, so together they became only 1.5 times as fast. Even
# with infinitely fast GEMMs, the step could not be faster than the last line says. The H100 shows the same more clearly. In bf16, its GEMMs shrink more than
# anything else does, so Tensor Cores are in use for a *smaller* share of the time than on the V100, although they are far
# faster. A low share does not mean that the GEMMs are slow. It tells you where to look next: at the kernels that only move memory.
#
# The profiler's pages show the same. Open the link, and choose `precision/run_fp16` under *Runs*. *GPU Summary* ends
# with *Kernel Time using Tensor Cores*, and *GPU Kernel* under *Views* says for every kernel whether it used them. *GPU
# Utilization* is the share of the time in which any kernel runs. If it is lower in fp16 than in fp32, that is not a bad
# sign: the kernels became shorter, and the CPU launches at least as many of them as before, so the GPU waits
# for launches more often.

# %% tags=["explore"]
tensorboard.link("profiler")

# %% [markdown]
# What does that mean for *your* trainer, on a V100 and on an H100? The H100's fp32 peak is 67 TFLOP/s (without TF32,
# whose GEMMs round fp32 inputs for Tensor Cores), and its 16-bit peak is 989. With FlashAttention and without dropout,
# most of the memory-bound kernels are gone:

# %% tags=["explore"] short={"{gain.MODEL}": "{gain.MODEL} --num-layers 2", "in RECIPES": "in RECIPES[1:5:3]"}
RECIPES = [("v100:1", ""), ("v100:1", "--fp16"), ("h100:1", ""), ("h100:1", "--fp16"), ("h100:1", "--bf16 --autocast"),
           ("h100:1", "--bf16")]
for gpu, flags in RECIPES:
    gained = gain.measure(gpu, flags=f"{gain.MODEL} {flags}")
    print(f"{gpu:6} {flags or '(fp32)':17} {result(f'{1000 * gained.seconds:6.1f} ms')} per step, MFU {gained.mfu:4.0%}, "
          f"{gained.peak / 2**30:.2f} GiB (modeled)")

# %% [markdown]
# fp16 costs more than bf16 on the same GPU, because the overflow check reads every gradient, and its result makes the
# CPU wait for the GPU in every step. (`pretrain_gpt.py` avoids this wait: it updates with a factor that is 0 after an
# overflow, and never reads the flag.) With your autocast, a step takes a little longer, because every weight is cast in
# every micro-batch. Here it also needs a little more memory, because autograd saves those copies for the backward pass,
# and layer norms and the residual stream are in fp32. Now look at your trainer's map. It has a row for this lab:

# %% tags=["explore"] short={"!lab mytrainer": "!true"}
!lab mytrainer

# %% [markdown]
# ## Without master weights?
#
# Master weights cost 4 of 18 bytes. **Stochastic rounding** ([Gupta et al., 2015](https://arxiv.org/abs/1502.02551))
# does without them: round up with a probability equal to the distance to the lower neighbor, in units of the gap
# between the neighbors. A small update is then usually lost, but it is right on average. [Zamirai et al.,
# 2020](https://arxiv.org/abs/2010.06192) train in pure bf16 this way. It takes little: bf16 is the upper half of fp32,
# and `tensor.view(torch.int32)` returns the bits.

# %% [markdown]
# ### Exercise 7: stochastic rounding
#
# Write `StochasticRounding`, which wraps any optimizer, as your `MixedPrecision` does. With `--bf16
# --stochastic-rounding`, `my_trainer.py` trains with it.
#
# - Parameters are in bf16, and between two steps, nothing else holds their values. Micro-batches accumulate in fp32.
# - In a step, the wrapped optimizer updates fp32 copies of the bf16 values. It keeps its own state, such as
#   moments, from step to step. At most one parameter at a time is in memory in fp32.
# - Each result is rounded stochastically, independently for every element and step, so that its expected value is exact.
# - Replicas stay equal without communication, even if the ranks' default generators are in different states. `step` does
#   not advance these generators.
#
# An optimizer knows its tensors by identity, but assigning another tensor to `tensor.data`, even an empty one, replaces
# their memory.

# %% answer="rounding"
%%writefile mytrainer/rounding.py
"""Train in bf16 without master weights: update in fp32, and round at random (Gupta et al. 2015)."""

import torch


class StochasticRounding:
    """Update a model's bf16 parameters with any optimizer, without master weights."""

    def __init__(self, parameters, make_optimizer):
        """Create the wrapped optimizers.

        Args:
            parameters: those of the model, in bf16, all on one device.
            make_optimizer: returns an optimizer, given a list of fp32 tensors with the shapes of parameters. It may
                be called several times.
        """
        ### BEGIN SOLUTION
        self.parameters = list(parameters)
        self.copies, self.optimizers = [], []
        for parameter in self.parameters:
            parameter.grad_dtype = torch.float32
            copy = parameter.detach().float()
            self.copies.append(copy)
            self.optimizers.append(make_optimizer([copy]))
            copy.data = copy.new_empty(0)
        self.generator = torch.Generator(self.parameters[0].device).manual_seed(1234)  # the same on all ranks
        ### END SOLUTION

    @property
    def param_groups(self):
        """All groups of the wrapped optimizers, in which the training loop sets the learning rate."""
        ### BEGIN SOLUTION
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]
        ### END SOLUTION

    def zero_grad(self):
        """Free all gradients, before a forward pass."""
        ### BEGIN SOLUTION
        for parameter in self.parameters:
            parameter.grad = None
        ### END SOLUTION

    def step(self):
        """Update the parameters from their gradients, and round the results to bf16 at random."""
        ### BEGIN SOLUTION
        for parameter, copy, optimizer in zip(self.parameters, self.copies, self.optimizers, strict=True):
            if parameter.grad is None:
                continue
            copy.data, copy.grad = parameter.detach().float(), parameter.grad
            optimizer.step()
            bits = copy.view(torch.int32)
            bits += torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)
            bits &= -2**16
            with torch.no_grad():
                parameter.copy_(copy)
            copy.data, copy.grad = copy.new_empty(0), None
        ### END SOLUTION

# %% tags=["driver"]
def small_updates(start, gradients, steps, rate, momentum):
    """Take steps on a bf16 vector of 4,096 equal elements; ranks have default generators of their own.

    Args:
        start: value of all elements.
        gradients: that of each micro-batch of a step.
        steps: their number.
        rate: learning rate.
        momentum: of SGD.

    Return the vector's dtype, the elements' mean and standard deviation, and a number that depends on each of them.
    """
    from mytrainer.rounding import StochasticRounding

    torch.manual_seed(dist.get_rank())
    default = torch.get_rng_state()
    vector, unused = (torch.nn.Parameter(torch.full((size,), start, dtype=torch.bfloat16)) for size in (4096, 2))
    optimizer = StochasticRounding([vector, unused], lambda copies: torch.optim.SGD(copies, lr=100.0, momentum=momentum))
    for _ in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        for gradient in gradients:
            (vector * gradient).sum().backward()
        optimizer.step()
    if not torch.get_rng_state().equal(default):
        raise RuntimeError("step() has changed the default generator, from which dropout draws its masks. Use a generator of "
                           "your own.")
    values = vector.detach().double()
    return [str(vector.dtype), values.mean().item(), values.std().item(), (values @ torch.arange(4096.0).double()).item()]


def rounding_steps(width, layers, samples, steps):
    """Train a stack of linear layers in bf16 on a GPU."""
    from functools import partial

    from mytrainer.rounding import StochasticRounding

    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False, device="cuda", dtype=torch.bfloat16)
                                  for _ in range(layers)))
    optimizer = StochasticRounding(model.parameters(), partial(torch.optim.AdamW, lr=1e-3, fused=True))
    inputs = torch.zeros(samples, width, device="cuda", dtype=torch.bfloat16)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

# %% check="rounding" points=5
def require_rounding(ranks, start, fraction, steps):
    """Require independent, exact rounding of updates by a fraction of the gap between bf16 numbers, on equal ranks.

    The numbers have the magnitudes from 1 to 2, so the gap is 2**-7.
    """
    case = {"start": start, "gradients": [1.0 if start > 0 else -1.0], "steps": steps, "rate": fraction / 128, "momentum": 0.0}
    (run,) = check.ranks(small_updates, ranks=ranks, cases=[case], expected=None)
    _, mean, spread, _ = run.values[0]
    check.that(run.values.count(run.values[0]) == ranks, "The ranks have different parameters, although their gradients "
               "were the same. Whose random numbers do they round with?")
    check.that(not run.calls(0), "The ranks communicate in a step. What makes random numbers equal without communication?")
    moved, right = 128 * abs(start - mean), steps * fraction
    width = (right * (1 - fraction))**0.5
    said = f"{steps} step(s) by {fraction:.3g} of the gap between two bf16 numbers: "
    spread_said = said + (f"the elements' standard deviation is {128 * spread:.3g} gaps, and that of independent draws is "
                          f"{width:.3g}. ")
    check.that(128 * spread <= 2 * width, spread_said + "Does each element draw a new number in each step?")
    check.that(abs(moved - right) <= 0.1 * width, said + (
        f"4,096 elements move by {moved:.3g} gaps on average instead of {right:.3g}. Rounding to nearest loses such updates, "
        "and a single draw moves all elements or none. Which values of the discarded half of the bits must round up, and "
        "how often?"))
    check.that(128 * spread >= 0.9 * width, spread_said + "Does each step begin with the bf16 value?")


with check.parts():
    with check.part(3, "rounds at random, and replicas stay equal"):
        check.ranks(
            small_updates, ranks=1, rel=1e-6,
            cases=[{"start": 1.0, "gradients": [1.0] + [2.0**-9] * 64, "steps": 2, "rate": 0.25, "momentum": 0.5}],
            expected=[[["torch.bfloat16", 0.296875, 0.0, 2489760.0]]],
            hints={"The model's parameters are in fp32 now: leave them in bf16.":
                       [[["torch.float32", 0.296875, 0.0, 2489760.0]]],
                   "64 small gradients are lost: micro-batches must accumulate in fp32.":
                       [[["torch.bfloat16", 0.375, 0.0, 3144960.0]]],
                   "The second step does not know the first: the optimizer's state must survive.":
                       [[["torch.bfloat16", 0.4375, 0.0, 3669120.0]]]})
        require_rounding(2, -1.5, 0.25, 1)
        require_rounding(2, 2.0, 0.25, 32)
        ### BEGIN HIDDEN TESTS
        for ranks, case in zip((1, 3), check.draw(2, start=lambda dice: dice.choice([-1, 1]) * dice.randint(224, 256) / 128,
                                                  fraction=check.between(0.1, 0.9), steps=range(20, 80)), strict=True):
            require_rounding(ranks, **case)
        ### END HIDDEN TESTS
    with check.part(2, "holds no master weights"):
        # 2**26 parameters, in matrices of 16 MiB in fp32.
        cost = check.gpus(rounding_steps, {"width": 2048, "layers": 16, "samples": 256, "steps": 2}, "h100:1",
                          least={"flops": 2 * 47 * 2 * 256 * 2048**2, "dtype": "bf16", "live": 14 * 2**26})
        check.pass_mark(cost.peak_memory, error=cost.memory_error, below=1.06, hint=(
            f"{cost.peak_memory:.2f} GiB at the peak, {cost.peak_memory * 2**30 / 2**26:.1f} bytes per parameter: more than one "
            "parameter is in memory in fp32."))

# %% [raw] mutant="rounding" hint="loses such updates"
# -            bits = copy.view(torch.int32)
# -            bits += torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)
# -            bits &= -2**16

# %% [raw] mutant="rounding" hint="how often?"
# -            bits += torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)
# +            bits += torch.randint(2**15, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)

# %% [raw] mutant="rounding" hint="Whose random numbers"
# -        self.generator = torch.Generator(self.parameters[0].device).manual_seed(1234)  # the same on all ranks
# +        self.generator = torch.Generator(self.parameters[0].device).manual_seed(torch.distributed.get_rank())

# %% [raw] mutant="rounding" hint="without communication"
# -            bits += torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)
# +            noise = torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)
# +            torch.distributed.broadcast(noise, 0)
# +            bits += noise

# %% [raw] mutant="rounding" hint="loses such updates"
# -            bits += torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)
# +            bits += torch.randint(2**16, (1,), generator=self.generator, dtype=torch.int32, device=bits.device)

# %% [raw] mutant="rounding" hint="has changed the default generator"
# -            bits += torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)
# +            bits += torch.randint(2**16, bits.shape, dtype=torch.int32, device=bits.device)

# %% [raw] mutant="rounding" hint="a new number in each step"
# -            bits = copy.view(torch.int32)
# +            bits = copy.view(torch.int32)
# +            self.generator.manual_seed(1234)

# %% [raw] mutant="rounding" hint="begin with the bf16 value"
# -            copy.data = copy.new_empty(0)
# +            pass
# -            copy.data, copy.grad = parameter.detach().float(), parameter.grad
# +            copy.grad = parameter.grad
# -            bits = copy.view(torch.int32)
# +            bits = copy.clone().view(torch.int32)
# -                parameter.copy_(copy)
# -            copy.data, copy.grad = copy.new_empty(0), None
# +                parameter.copy_(bits.view(torch.float32))
# +            copy.grad = None

# %% [raw] mutant="rounding" hint="leave them in bf16"
# -                parameter.copy_(copy)
# +                parameter.data = copy.clone()

# %% [raw] mutant="rounding" hint="the optimizer's state must survive"
# -            optimizer.step()
# +            optimizer.state.clear()
# +            optimizer.step()

# %% [raw] mutant="rounding" hint="must accumulate in fp32"
# -            parameter.grad_dtype = torch.float32
# +            pass
# -            copy.data, copy.grad = parameter.detach().float(), parameter.grad
# +            copy.data, copy.grad = parameter.detach().float(), parameter.grad.float()

# %% [raw] mutant="rounding" hint="is in memory in fp32"
# -            copy.data, copy.grad = copy.new_empty(0), None
# +            copy.grad = None

# %% [markdown]
# Here is the second colleague's run again, with your optimizer:

# %% tags=["explore"] short={"steps=30": "steps=2", "build(torch.bfloat16)": "build(torch.bfloat16, 1)"}
def train_without_masters(rate, steps=30):
    """Train the small GPT with bf16 parameters, rounded stochastically; return the losses."""
    from mytrainer.rounding import StochasticRounding

    model, batches = small_model.build(torch.bfloat16)
    optimizer = StochasticRounding(model.parameters(), lambda copies: torch.optim.AdamW(copies, lr=rate, weight_decay=0))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(next(batches))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


half.draw_losses({"bf16, rounded to nearest": first_runs["bf16 at 1e-5"],
                  "bf16, rounded stochastically": train_without_masters(1e-5),
                  "fp32": first_runs["fp32 at 1e-5"]})

# %% [markdown]
# And in your trainer: on real ranks, its losses are compared with those of `pretrain_gpt.py` in fp32, and on a virtual
# H100, time and memory with those of your `MixedPrecision`.

# %% tags=["explore"] short={"journey.loss_difference(ranks, \"--bf16 --stochastic-rounding\")": "0.0", "{gain.MODEL}": "{gain.MODEL} --num-layers 2"}
ranks = 2 if os.path.exists("mytrainer/ddp.py") else 1
difference = journey.loss_difference(ranks, "--bf16 --stochastic-rounding")
print(f"largest relative difference of five losses from those in fp32: {result(f'{difference:.1e}')}")
for flags in ("--bf16", "--bf16 --stochastic-rounding"):
    gained = gain.measure("h100:1", flags=f"{gain.MODEL} {flags}")
    print(f"{flags:28} {result(f'{1000 * gained.seconds:6.1f} ms')} per step, {gained.peak / 2**30:.2f} GiB (modeled)")

# %% [markdown]
# The memory of the master weights is gone. The step takes longer, because one fused kernel used to update many
# parameters, while each parameter now needs several kernels of its own, most of which read and write all its fp32
# values again. (A fused kernel that also draws and rounds would avoid both.)

# %% [markdown]
# What do large trainings keep in fp32? **Llama 3** trains in bf16, accumulates gradients over micro-batches in fp32,
# and reduce-scatters them in fp32 ([Llama team, 2024](https://arxiv.org/abs/2407.21783), section 3.3.2).
# **DeepSeek-V3** multiplies in FP8, the subject of lab 13, but keeps master weights and gradients in fp32, and the
# embedding, the output head, norms, attention, and the router in bf16 or fp32; Adam's two moments are in bf16
# ([DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437), section 3.3). Both follow this lab's rule, few bits for what is
# multiplied and many for what is added up, with one exception: DeepSeek-V3's moments are sums, yet bf16 was enough for
# them.

# %% [markdown]
# ## Discuss
#
# 1. **The first thousand steps.** A run in fp16 skips 17 steps at its start and one every thousand steps later. Another
#    one skips every other step. What is normal, and what would you look at?
# 2. **bf16 everywhere?** If bf16 needs no loss scaling, why does anybody still use fp16? Think of precision, of old
#    GPUs, and of inference.
# 3. **A checkpoint for the other format.** You resume a bf16 run in fp16, from its master weights. What can go wrong in
#    the first steps, and in the activations?
# 4. **Utilization is not speed.** Your manager's dashboard shows GPU utilization, which has fallen since you switched
#    to fp16. What do you say, and which figure should the dashboard show?

# %% [markdown]
# ## Cleanup
#
# Keep `mytrainer/`: the next labs add to it.

# %% tags=["explore"]
!rm -rf megatron/tensorboard/precision megatron/logs/*_fp16.txt megatron/logs/silent.txt
!ls mytrainer

# %% [markdown]
# ## What you have built
#
# Your trainer trains in bf16 and fp16: master weights, fp32 gradients, an overflow check that all ranks agree on,
# dynamic loss scaling, a loop that skips, and, as other recipes, an autocast and stochastic rounding. A step is several times as fast. Its
# activations take less memory, its states do not. Lab 06 takes on the activations, and lab 08 the states.
#
# ## Read next
#
# - [Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740), *Mixed precision training*: master weights and loss
#   scaling, with histograms like yours.
# - [Kalamkar et al., 2019](https://arxiv.org/abs/1905.12322), *A study of BFLOAT16 for deep learning training*: why
#   range matters more than precision.
# - [PyTorch's automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html): its lists, and recipes for
#   `GradScaler` with accumulation and clipping.
# - [Megatron-LM's
#   `grad_scaler.py`](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/optimizer/grad_scaler.py): your
#   LossScaler, in the original.
# - [Zamirai et al., 2020](https://arxiv.org/abs/2010.06192), *Revisiting BFloat16 training*: stochastic rounding and
#   Kahan summation in place of master weights.
# - [Llama team, 2024](https://arxiv.org/abs/2407.21783), section 3.3: how the precision of collectives is chosen in
#   practice.
