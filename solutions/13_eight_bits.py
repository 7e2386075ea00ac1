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
# # Eight bits: FP8, block scales, and below
#
# A training run costs a million dollars in BF16. An H100 multiplies FP8 matrices twice as fast, so the bill should drop
# by half. Your group switches to FP8, and the time of every large linear layer shrinks by a third: good, but not half.
# Then a colleague removes the scales, because the model trained well without them in a test with a single micro-batch.
# With the real batch, the loss no longer falls at all.
#
# An FP8 number has only two or three mantissa bits. Whether a model still learns depends above all on how its
# tensors are **scaled** before they are rounded. In this lab you build that part yourself, from rounding a single
# number to a linear layer whose three GEMMs run in FP8.
#
# **You will be able to**
#
# - round to any small floating-point format, and predict which values saturate and which underflow;
# - scale tensors with the current amax, with a history, and per block, and share scales across ranks;
# - write an FP8 linear layer that is really faster on a virtual H100, and tell which layers are not worth it;
# - move a Hugging Face model to Transformer Engine's layers without touching its checkpoint;
# - calibrate a model for FP8 inference, and read the FP8 settings of four frameworks.
#
# **How it works.** Where a cell says *Your turn*, replace that line with your answer; the cell below it checks it at
# once. Guesses are not graded. You need [Mixed precision](05_mixed_precision.ipynb) for loss scaling, and
# [Data parallelism](04_data_parallelism.ipynb) for the all-reduce.
#
# **Two sittings.** The lab takes about two hours.
#
# - **First sitting, about 65 minutes.** You round, scale, and build a linear layer in FP8. It ends with the answers to
#   both questions: why the bill is not cut in half, and why the colleague's run learned nothing.
# - **Second sitting, about 50 minutes.** You give blocks their own scales, gather parameters in FP8, go down to four
#   bits, and compare the FP8 settings of four frameworks. An appendix moves a whole model to FP8 layers, and calibrates
#   one for inference.
#
# **Real and virtual.** Values are real: tensors are rounded to PyTorch's float8 types on your CPU and multiplied with
# float32 accumulation, so a loss curve shows what the rounding does. Times are **virtual**: a CPU gains nothing from
# FP8, so an H100 is modeled. The layers come from `minite`, a small package with the names and semantics of NVIDIA's
# Transformer Engine. If Transformer Engine and a GPU are available, `import minite as te` imports the real one.

# %% tags=["setup"]
import os

import torch
import torch.distributed as dist
from torch import nn

import minite as te
from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace
os.makedirs("mytrainer", exist_ok=True)

# A format: its mantissa bits, the exponent of its smallest normal number, and its largest number.
E4M3 = (3, -6, 448.0)
E5M2 = (2, -14, 57344.0)
E2M1 = (1, 0, 6.0)

# %% tags=["check-setup"]
from labkit import check

# Answers cannot use these, because they contain the solutions.
check.mask("lablib.eight_bits", "minimegatron", "minite.functional.fp8_linear", "minite.quantize.amax_of",
           "minite.quantize.cast", "minite.quantize.quantize_blocks", "minite.quantize.quantize_mx",
           "minite.quantize.quantize_tensor", "minite.quantize.scale_from_amax", "minite.quantize.update_history")

# %% tags=["explore"]
import matplotlib.pyplot as plt

from job_monitor import kernels, logs
from labcore.colors import bad, good, result
from lablib import eight_bits, jobs
from layout_estimator import costs
from minite import recipe

jobs.connect()

# %% [markdown]
# ## A speedup, and a run that learns nothing
#
# First the speedup. A linear layer needs three GEMMs with equally many FLOPs: one in the forward pass, and two in the
# backward pass, for the gradients of its input and its weight. In FP8, an H100's Tensor Cores have exactly twice the
# peak rate of BF16. How much faster is the layer? Guess the speedup for 8,192 tokens and a weight of 8,192 x 8,192, and
# again for a weight of 1,024 x 1,024.

# %% answer="guess-speedup"
### BEGIN SOLUTION
guess_large, guess_small = 1.6, 1.3
### END SOLUTION

# %% tags=["explore"]
for guess, width in ((guess_large, 8192), (guess_small, 1024)):
    times = eight_bits.linear_times(8192, width, width)
    print(f"{width:,}: BF16 {times.bf16:,.0f} us; FP8 {times.gemms:,.0f} us in GEMMs and {times.casts:,.0f} us in "
          f"casts (virtual H100)")
    check.compare("times as fast", guess, times.speedup)

# %% [markdown]
# The large layer becomes almost 1.5 times as fast, not twice, and the small one gets *slower*. You will find out why,
# and predict which layers are worth it. Now the curve. A small language model is trained three times on the same
# batches. BF16 is the reference. The second run uses FP8 with delayed scaling, Transformer Engine's first recipe. The
# third run casts its tensors to FP8 directly, without any scale.
#
# A step has 1,024 micro-batches. Megatron-LM divides the loss of each by their number before its backward pass, so the
# gradients are 1,024 times smaller than those of a single micro-batch. To save time, only one of the 1,024 is run here;
# Adam's update does not depend on the magnitude of the gradients.

# %% tags=["explore"] short={"STEPS = 60": "STEPS = 4"}
STEPS = 60
delayed = recipe.DelayedScaling(amax_history_len=16)
curves = {"BF16": eight_bits.train(None, STEPS, micro_batches=1024).losses,
          "FP8, delayed scaling": eight_bits.train(delayed, STEPS, micro_batches=1024).losses,
          "FP8, no scales": eight_bits.train(delayed, STEPS, eight_bits.without_scales, 1024).losses}
for name, losses in curves.items():
    plt.plot(losses, label=name)
    print(f"{name}: final loss {result(f'{losses[-1]:.2f}')}")
plt.xlabel("step")
plt.ylabel("loss")
plt.legend()
plt.show()

# %% [markdown]
# Two of the curves lie almost on top of each other: with good scales, eight bits cost nothing here. The third one stays
# at the loss of random guessing, without a single error or NaN. So what do scales do, and what is a good one? To find
# out, look at the numbers themselves.

# %% [markdown]
# ## Numbers with two or three mantissa bits
#
# A floating-point number is $\pm\, 1.m \times 2^e$. FP8 has two formats
# ([Micikevicius et al., 2022](https://arxiv.org/abs/2209.05433)): **E4M3** has 4 exponent bits and 3 mantissa bits,
# **E5M2** has 5 and 2.
#
# | format | mantissa bits | largest number | smallest normal number | numbers between 1 and 2 |
# |---|---:|---:|---:|---:|
# | E4M3 | 3 | 448 | $2^{-6}$ | 8 |
# | E5M2 | 2 | 57,344 | $2^{-14}$ | 4 |
# | BF16 | 7 | $3.4 \times 10^{38}$ | $2^{-126}$ | 128 |
#
# ![The bits of BF16, E5M2, E4M3, and E2M1, and the magnitudes that the last three cover: E5M2 from 2^-16 to 57,344, E4M3
# from 2^-9 to 448, and E2M1 from 0.5 to 6.](../images/fp8_formats.svg)
#
# Between two powers of two, the numbers of a format are evenly spaced. The **spacing** at $x$, with
# $2^e \le |x| < 2^{e+1}$ and $m$ mantissa bits, is $2^{e-m}$. Below the smallest normal number, the spacing no longer
# shrinks: these are the **subnormal** numbers. A value smaller than half the smallest subnormal number becomes zero, an
# **underflow**. Beyond the largest number, a training library **saturates**: the value becomes the largest number,
# with its sign.
#
# ### Exercise 1: round to eight bits
#
# Write `round_to`. It rounds a float32 tensor to the nearest number of a format, and ties go to the number with an even
# mantissa, just as `torch.round` sends ties to even integers. Do not convert to PyTorch's float8 types: your function
# must work for any format, including a four-bit one that PyTorch cannot convert to. `spacing` is a helper that the next
# exercise uses, too. `torch.frexp(x)` returns a mantissa in $[0.5, 1)$ and an exponent, and `torch.ldexp(x, e)` is
# $x \cdot 2^e$.

# %% answer="round-to"
def spacing(x, mantissa, smallest):
    """Return the distance between neighboring numbers of a format at each element of x.

    Args:
        x: float32.
        mantissa: mantissa bits of the format.
        smallest: exponent of its smallest normal number.
    """
    ### BEGIN SOLUTION
    exponent = torch.frexp(x).exponent - 1
    return torch.ldexp(torch.ones_like(x), exponent.clamp(min=smallest) - mantissa)
    ### END SOLUTION


def round_to(x, mantissa, smallest, largest):
    """Round float32 numbers to the nearest number of a format, ties to even; saturate.

    Args:
        x: float32.
        mantissa, smallest, largest: the format, such as E4M3 above.
    """
    ### BEGIN SOLUTION
    x = x.clamp(-largest, largest)
    step = spacing(x, mantissa, smallest)
    return torch.round(x / step) * step
    ### END SOLUTION

# %% tags=["driver"]
def rounded(values, mantissa, smallest, largest):
    """Round a list of numbers."""
    return round_to(torch.tensor(values), mantissa, smallest, largest).tolist()

# %% check="round-to" points=3
some = [0.3952, 300.0, 500.0, -1e6, 0.001, 0.0005, 0.0, 1.0625, 1.1875]
check.function(
    rounded, cases=[(some, 3, -6, 448.0), (some, 2, -14, 57344.0)],
    expected=[[0.40625, 288.0, 448.0, -448.0, 0.001953125, 0.0, 0.0, 1.0, 1.25],
              [0.375, 320.0, 512.0, -57344.0, 0.0009765625, 0.00048828125, 0.0, 1.0, 1.25]],
    hints={
        "Values beyond the largest number must become the largest number.": [
            [0.40625, 288.0, 512.0, -983040.0, 0.001953125, 0.0, 0.0, 1.0, 1.25],
            [0.375, 320.0, 512.0, -1048576.0, 0.0009765625, 0.00048828125, 0.0, 1.0, 1.25]],
        "Numbers are rounded toward zero. The nearest number may be the larger one.": [
            [0.375, 288.0, 448.0, -448.0, 0.0, 0.0, 0.0, 1.0, 1.125],
            [0.375, 256.0, 448.0, -57344.0, 0.0009765625, 0.00048828125, 0.0, 1.0, 1.0]],
        "The spacing shrinks without end. Where do the subnormal numbers begin?": [
            [0.40625, 288.0, 448.0, -448.0, 0.0009765625, 0.00048828125, 0.0, 1.0, 1.25],
            [0.375, 320.0, 512.0, -57344.0, 0.0009765625, 0.00048828125, 0.0, 1.0, 1.25]],
        "The spacing is twice as large as it should be. `torch.frexp` returns a mantissa in [0.5, 1), so its exponent is "
        "one more than that of 1.m times a power of two.": [
            [0.375, 320.0, 448.0, -448.0, 0.001953125, 0.0, 0.0, 1.0, 1.25],
            [0.375, 256.0, 512.0, -65536.0, 0.0009765625, 0.00048828125, 0.0, 1.0, 1.0]],
        "The spacing is half as large as it should be, as if the format had one more mantissa bit.": [
            [0.390625, 304.0, 448.0, -448.0, 0.001953125, 0.0, 0.0, 1.0625, 1.1875],
            [0.40625, 288.0, 512.0, -57344.0, 0.0009765625, 0.00048828125, 0.0, 1.0, 1.25]],
        "Ties go away from zero. Halfway between two numbers, choose the one with the even mantissa.": [
            [0.40625, 288.0, 448.0, -448.0, 0.001953125, 0.0, 0.0, 1.125, 1.25],
            [0.375, 320.0, 512.0, -57344.0, 0.0009765625, 0.00048828125, 0.0, 1.0, 1.25]],
    })
### BEGIN HIDDEN TESTS
import numpy as np
import torch


def nearest(values, mantissa, smallest, largest):
    x = np.clip(np.float32(values), -np.float32(largest), np.float32(largest))
    step = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, smallest) - mantissa)
    return (np.rint(x / step) * step).tolist()


formats = [(3, -6, 448.0), (2, -14, 57344.0), (1, 0, 6.0), (2, -2, 28.0), (3, -2, 15.5)]
drawn = check.draw(10, shape=formats, values=lambda dice: [
    dice.choice([-1, 1]) * dice.uniform(1, 2) * 2.0**dice.randint(-18, 18) for _ in range(60)])
drawn += check.draw(4, shape=formats, values=lambda dice: [  # ties
    dice.choice([-1, 1]) * dice.randint(1, 64) / 32 for _ in range(40)])
check.function(rounded, cases=[(case["values"], *case["shape"]) for case in drawn], expected=nearest)


def converted(values, mantissa, smallest, largest):
    dtype = torch.float8_e4m3fn if mantissa == 3 else torch.float8_e5m2
    return torch.tensor(values).clamp(-largest, largest).to(dtype).float().tolist()


every = [sign * 1.0625 * 2.0**(exponent / 4) for exponent in range(-80, 80) for sign in (-1, 1)]
check.function(rounded, cases=[(every, 3, -6, 448.0), (every, 2, -14, 57344.0)], expected=converted)
### END HIDDEN TESTS

# %% [raw] mutant="round-to" hint="twice as large as it should be"
# -    exponent = torch.frexp(x).exponent - 1
# +    exponent = torch.frexp(x).exponent

# %% [raw] mutant="round-to" hint="half as large as it should be"
# -    exponent = torch.frexp(x).exponent - 1
# +    exponent = torch.frexp(x).exponent - 2

# %% [raw] mutant="round-to" hint="must become the largest number"
# -    x = x.clamp(-largest, largest)

# %% [raw] mutant="round-to" hint="rounded toward zero"
# -    return torch.round(x / step) * step
# +    return torch.trunc(x / step) * step

# %% [raw] mutant="round-to" hint="The spacing shrinks without end"
# -    return torch.ldexp(torch.ones_like(x), exponent.clamp(min=smallest) - mantissa)
# +    return torch.ldexp(torch.ones_like(x), exponent - mantissa)

# %% [raw] mutant="round-to" hint="Ties go away from zero"
# -    return torch.round(x / step) * step
# +    return torch.sign(x) * torch.floor(x.abs() / step + 0.5) * step

# %% [markdown]
# Here is the *relative* spacing: half of it is the largest relative error of rounding. Within the format's normal
# range, it stays between two values at every magnitude, hence *floating* point. On the left, numbers become subnormal
# and finally zero. On the right, where a curve ends, they saturate.

# %% tags=["explore"]
x = torch.logspace(-18, 18, 2000, base=2)
for name, numbers in (("E4M3", E4M3), ("E5M2", E5M2), ("E2M1, four bits", E2M1)):
    inside = (x >= spacing(x, numbers[0], numbers[1]) / 2) & (x <= numbers[2])
    plt.loglog(x[inside], (spacing(x, numbers[0], numbers[1]) / x)[inside], base=2, label=name)
plt.xlabel("magnitude")
plt.ylabel("spacing / magnitude")
plt.legend()
plt.show()

# %% [markdown]
# A GPU rounds in hardware, and PyTorch's conversion to float8 rounds in the same way. But what a value *beyond* the
# range becomes depends on the cast, because the [OCP's FP8
# specification](https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1)
# defines a saturating and a non-saturating conversion. CUDA's conversions from C++ [saturate in both
# formats](https://docs.nvidia.com/cuda/cuda-math-api/cuda_math_api/struct____nv__fp8__e4m3.html). PyTorch's `.to()`
# overflows to infinity in E5M2. In E4M3, which has no infinity, it returned NaN until PyTorch [began to
# saturate](https://github.com/pytorch/pytorch/pull/178817) in 2026. The next cell shows what yours does. Clamp first,
# as you did, and your program does not depend on it.

# %% tags=["explore"]
x = torch.linspace(-600, 600, 20001)
for name, numbers, dtype in (("E4M3", E4M3, torch.float8_e4m3fn), ("E5M2", E5M2, torch.float8_e5m2)):
    largest = numbers[2]
    same = torch.equal(round_to(x, *numbers), x.clamp(-largest, largest).to(dtype).float())
    print(f"{name}: {good('matches') if same else bad('differs from')} PyTorch's conversion of {len(x):,} clamped "
          "numbers")
    print("  without clamping: " + ", ".join(
        f"{value:g} becomes {torch.tensor(value).to(dtype).item():g}" for value in (464.5, 1e6, float("inf"))))

# %% [markdown]
# ### Exercise 2: round stochastically
#
# Rounding to nearest has a blind spot. Just above 1, the numbers of E4M3 are 0.125 apart, so a weight of 1 that
# receives a thousand updates of 0.01 stays 1: each of them is rounded away. This is why training keeps **master
# weights** in FP32.
#
# **Stochastic rounding** chooses one of the two neighbors at random, the nearer one with the larger probability, so
# that the result is right *on average*: 1.03 becomes 1.125 with probability 0.24, and 1 otherwise. Write
# `round_stochastically`, which takes uniform noise in $[0, 1)$, one number per element, and saturates as before. Let
# $f$ be the distance from an element down to its lower neighbor, divided by the spacing. The element rounds *up*, toward
# $+\infty$, if and only if its noise is at least $1 - f$. A negative number's lower neighbor has the larger magnitude.

# %% answer="round-stochastically"
def round_stochastically(x, noise, mantissa, smallest, largest):
    """Round to one of the two neighboring numbers of a format; saturate.

    Args:
        x: float32.
        noise: uniform in [0, 1), in the shape of x.
        mantissa, smallest, largest: the format.
    """
    ### BEGIN SOLUTION
    x = x.clamp(-largest, largest)
    step = spacing(x, mantissa, smallest)
    return torch.floor(x / step + noise) * step
    ### END SOLUTION

# %% tags=["driver"]
def rounded_stochastically(values, noise, mantissa, smallest, largest):
    """Round a list of numbers with a list of noise."""
    return round_stochastically(torch.tensor(values), torch.tensor(noise), mantissa, smallest, largest).tolist()

# %% check="round-stochastically" points=2
some = [1.03, 1.03, -1.03, -1.03, 0.3952, 500.0, -500.0]
noise = [0.5, 0.8, 0.5, 0.1, 0.7, 0.9, 0.1]
check.function(
    rounded_stochastically, cases=[(some, noise, 3, -6, 448.0)],
    expected=[[1.0, 1.125, -1.0, -1.125, 0.40625, 448.0, -448.0]],
    hints={
        "That rounds to nearest after adding the noise, so it is half a spacing too high on average.": [
            [1.125, 1.125, -1.0, -1.0, 0.40625, 480.0, -448.0]],
        "Negative numbers must round toward minus infinity when they round down.": [
            [1.0, 1.125, -0.875, -1.0, 0.40625, 448.0, -416.0]],
        "You round magnitudes. A negative number that rounds up becomes smaller in magnitude.": [
            [1.0, 1.125, -1.0, -1.0, 0.40625, 448.0, -448.0]],
        "The probability is right, but the wrong noise rounds up. Compare it with 1 minus the fraction.": [
            [1.0, 1.0, -1.0, -1.0, 0.375, 448.0, -448.0]],
        "The noise has no effect: these are the nearest numbers.": [
            [1.0, 1.0, -1.0, -1.0, 0.40625, 448.0, -448.0]],
    })
### BEGIN HIDDEN TESTS
import numpy as np


def one_of_two(values, noise, mantissa, smallest, largest):
    x = np.clip(np.float32(values), -np.float32(largest), np.float32(largest))
    step = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, smallest) - mantissa).astype(np.float32)
    return (np.floor(x / step + np.float32(noise)) * step).tolist()


drawn = check.draw(
    6, shape=[(3, -6, 448.0), (2, -14, 57344.0), (1, 0, 6.0)],
    values=lambda dice: [dice.choice([-1, 1]) * dice.uniform(1, 2) * 2.0**dice.randint(-8, 8) for _ in range(60)],
    noise=lambda dice: [dice.uniform(0.01, 0.99) for _ in range(60)])
check.function(rounded_stochastically, cases=[(case["values"], case["noise"], *case["shape"]) for case in drawn],
               expected=one_of_two)
### END HIDDEN TESTS

# %% [raw] mutant="round-stochastically" hint="half a spacing too high"
# -    return torch.floor(x / step + noise) * step
# +    return torch.round(x / step + noise) * step

# %% [raw] mutant="round-stochastically" hint="toward minus infinity"
# -    return torch.floor(x / step + noise) * step
# +    return torch.trunc(x / step + noise) * step

# %% [raw] mutant="round-stochastically" hint="You round magnitudes"
# -    return torch.floor(x / step + noise) * step
# +    return torch.sign(x) * torch.floor(x.abs() / step + noise) * step

# %% [raw] mutant="round-stochastically" hint="the wrong noise rounds up"
# -    return torch.floor(x / step + noise) * step
# +    lower = torch.floor(x / step)
# +    return (lower + (noise < x / step - lower)) * step

# %% [raw] mutant="round-stochastically" hint="The noise has no effect"
# -    return torch.floor(x / step + noise) * step
# +    return torch.round(x / step) * step

# %% tags=["explore"]
torch.manual_seed(0)
weights = torch.ones(2, 500)
for _ in range(1000):
    weights[0] = round_to(weights[0] + 0.01, *E4M3)
    weights[1] = round_stochastically(weights[1] + 0.01, torch.rand(500), *E4M3)
print(f"1 + 1,000 x 0.01 = 11. Nearest: {bad(f'{weights[0].mean():.2f}')}. "
      f"Stochastic: {good(f'{weights[1].mean():.2f}')} on average, each weight within "
      f"{weights[1].std():.2f} (standard deviation).")

# %% [markdown]
# The average is right, but every single weight is noisy. So FP8 training rounds to nearest and keeps master weights.
# Training in four bits, at the end of this lab, does round *gradients* stochastically.

# %% [markdown]
# ## Scales
#
# FP16 has loss scaling: one number for the whole model lifts all gradients into FP16's range, which is 40 powers of two
# wide, from $2^{-24}$ to $2^{15}$. E4M3 covers 18, from $2^{-9}$ to $2^8$. No single scale fits all tensors of a model,
# so in FP8 **every tensor has a scale** $s$ of its own. It is chosen so that the largest magnitude of the tensor, its
# **amax**, becomes the largest number of the format, divided by a safety factor of $2^\text{margin}$:
#
# $$ s = \frac{\text{largest}}{\text{amax} \cdot 2^\text{margin}}, \qquad x_\text{FP8} = \text{round}(s\,x), \qquad
# x \approx x_\text{FP8} / s. $$
#
# The amax of the *current* tensor takes an extra pass over the tensor. **Delayed scaling** avoids that pass: it rounds
# with a scale from the amaxes of earlier passes, and records the new amax while it rounds. Transformer Engine keeps a
# history, by default of 1,024 entries, and takes its maximum. But this has a cost: a tensor that suddenly grows saturates
# once.
#
# When does the history advance? Transformer Engine updates all scales of the forward pass whenever the outermost
# `autocast` block ends, and those of the gradients when the backward pass has ended. Megatron-LM opens one such block per
# micro-batch, so there, an entry is a micro-batch and not a step. The trainer of this course advances the history once
# per step instead, so that scales do not depend on how a batch is divided among micro-batches and ranks.
#
# ### Exercise 3: delayed scaling
#
# Write `mytrainer/delayed.py` with `DelayedScale`, the state of one tensor. The trainer makes one for each FP8 tensor of
# the model when you ask it for `--fp8-recipe delayed`. Inside an `autocast` block, `record` is called each time the
# tensor is rounded, and `end_autocast` sets the scale for the next block. The rules are those of Transformer Engine
# ([`delayed_scaling.cu`](https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/common/recipe/delayed_scaling.cu)):
#
# - The amax of a block is the largest amax of its tensors, and becomes an entry of the history, which holds the last
#   `length` of them.
# - The scale is computed from the largest entry.
# - An amax of zero means that the tensor was not used. It does not enter the history, and the scale does not change.
# - An infinite amax *does* enter the history. Until it has left, the scale stays as it is, because no scale fits
#   infinity.
# - Before the first block, the scale is 1.

# %% answer="delayed-scale"
%%writefile mytrainer/delayed.py
"""Delayed scaling: a tensor's scale from the amaxes of earlier passes."""


class DelayedScale:
    """The scale of one tensor under delayed scaling.

    Attributes:
        scale: the current factor, a float.
    """

    def __init__(self, largest, length, margin=0):
        """Begin with a scale of 1.

        Args:
            largest: the largest number of the format.
            length: entries of the history.
            margin: the scale is divided by 2^margin.
        """
        ### BEGIN SOLUTION
        self.largest, self.length, self.margin = largest, length, margin
        self.scale, self.current, self.history = 1.0, 0.0, []
        ### END SOLUTION

    def record(self, x):
        """Record the amax of a tensor."""
        ### BEGIN SOLUTION
        self.current = max(self.current, x.abs().max().item())
        ### END SOLUTION

    def end_autocast(self):
        """Set the scale of the next autocast block."""
        ### BEGIN SOLUTION
        if self.current > 0:
            self.history = [*self.history, self.current][-self.length:]
            amax = max(self.history)
            if amax < float("inf"):
                self.scale = self.largest / amax / 2**self.margin
        self.current = 0.0
        ### END SOLUTION

# %% tags=["driver"]
def scales_of_blocks(largest, length, margin, blocks):
    """Return the scale that each autocast block uses, and the one after the last block.

    Args:
        largest, length, margin: of DelayedScale.
        blocks: for each autocast block, the values of its tensors.
    """
    from mytrainer.delayed import DelayedScale

    state = DelayedScale(largest, length, margin)
    scales = [float(state.scale)]
    for block in blocks:
        for values in block:
            state.record(torch.tensor(values))
        state.end_autocast()
        scales.append(float(state.scale))
    return scales

# %% check="delayed-scale" points=3
INF = float("inf")
blocks = [[[1.0, -2.0], [0.5, 0.0]], [[8.0, 1.0]], [[0.0, 0.0]], [[-4.0, 1.0]], [[1.0, 1.0]], [[INF, 1.0]],
          [[1.0, 0.5]], [[0.25, 0.25]], [[0.5, 0.5]]]
check.ranks(
    scales_of_blocks, ranks=1, cases=[{"largest": 448.0, "length": length, "margin": margin, "blocks": blocks}
                                      for length, margin in ((3, 0), (3, 1), (1, 0))],
    expected=[[[1.0, 224.0, 56.0, 56.0, 56.0, 56.0, 56.0, 56.0, 56.0, 448.0]],
              [[1.0, 112.0, 28.0, 28.0, 28.0, 28.0, 28.0, 28.0, 28.0, 224.0]],
              [[1.0, 224.0, 56.0, 56.0, 112.0, 448.0, 448.0, 448.0, 1792.0, 896.0]]],
    hints={
        "The scale follows the latest block only. Which amax counts if the history has several?": [
            [[1.0, 224.0, 56.0, 56.0, 112.0, 448.0, 448.0, 448.0, 1792.0, 896.0]],
            [[1.0, 112.0, 28.0, 28.0, 56.0, 224.0, 224.0, 224.0, 896.0, 448.0]], []],
        "A block has several tensors. The last one has replaced the others.": [
            [[1.0, 896.0, 56.0, 56.0, 56.0, 56.0, 56.0, 56.0, 56.0, 448.0]],
            [[1.0, 448.0, 28.0, 28.0, 28.0, 28.0, 28.0, 28.0, 28.0, 224.0]], []],
        "A large negative number has no effect. The amax is the largest absolute value.": [
            [[1.0, 448.0, 56.0, 56.0, 56.0, 56.0, 56.0, 56.0, 56.0, 448.0]],
            [[1.0, 224.0, 28.0, 28.0, 28.0, 28.0, 28.0, 28.0, 28.0, 224.0]],
            [[1.0, 448.0, 56.0, 56.0, 448.0, 448.0, 448.0, 448.0, 1792.0, 896.0]]],
        "The margin must make the scale smaller: it is room for growth.": [
            [], [[1.0, 448.0, 112.0, 112.0, 112.0, 112.0, 112.0, 112.0, 112.0, 896.0]], []],
        "An infinite amax has set the scale to 0.": [
            [[1.0, 224.0, 56.0, 56.0, 56.0, 56.0, 0.0, 0.0, 0.0, 448.0]],
            [[1.0, 112.0, 28.0, 28.0, 28.0, 28.0, 0.0, 0.0, 0.0, 224.0]],
            [[1.0, 224.0, 56.0, 56.0, 112.0, 448.0, 0.0, 448.0, 1792.0, 896.0]]],
        "The infinite amax has not become an entry of the history. It stays for as many blocks as any other.": [
            [[1.0, 224.0, 56.0, 56.0, 56.0, 56.0, 56.0, 112.0, 448.0, 448.0]],
            [[1.0, 112.0, 28.0, 28.0, 28.0, 28.0, 28.0, 56.0, 224.0, 224.0]],
            [[1.0, 224.0, 56.0, 56.0, 112.0, 448.0, 448.0, 448.0, 1792.0, 896.0]]],
        "A tensor that was not used has pushed an older amax out of the history.": [
            [[1.0, 224.0, 56.0, 56.0, 56.0, 112.0, 112.0, 112.0, 112.0, 448.0]],
            [[1.0, 112.0, 28.0, 28.0, 28.0, 56.0, 56.0, 56.0, 56.0, 224.0]], []],
    })
### BEGIN HIDDEN TESTS
import numpy as np


def delayed(ranks, largest, length, margin, blocks):
    scales, history = [1.0], []
    for block in blocks:
        amax = float(np.max(np.abs(np.float32(block))))
        recent = max(history[-length:], default=INF)
        if amax:
            history.append(amax)
            recent = max(history[-length:])
        usable = amax and np.isfinite(recent)
        scales.append(largest / recent / 2**margin if usable else scales[-1])
    return [scales]


def drawn_blocks(dice):
    blocks = []
    for _ in range(14):
        kind = dice.choice(["usual"] * 6 + ["zero", "infinite"])
        values = [[dice.uniform(-1, 1) * 2.0**dice.randint(-6, 6) for _ in range(3)] for _ in range(2)]
        if kind == "infinite":
            values[0] = [1.0, -INF, 1.0]
        blocks.append([[0.0] * 3] * 2 if kind == "zero" else values)
    return blocks


check.ranks(scales_of_blocks, ranks=1, expected=delayed, cases=check.draw(
    6, largest=[448.0, 57344.0], length=range(1, 6), margin=range(3), blocks=drawn_blocks))
### END HIDDEN TESTS

# %% [raw] mutant="delayed-scale" hint="the largest absolute value"
# -        self.current = max(self.current, x.abs().max().item())
# +        self.current = max(self.current, x.max().item())

# %% [raw] mutant="delayed-scale" hint="follows the latest block only"
# -            amax = max(self.history)
# +            amax = self.current

# %% [raw] mutant="delayed-scale" hint="The last one has replaced the others"
# -        self.current = max(self.current, x.abs().max().item())
# +        self.current = x.abs().max().item()

# %% [raw] mutant="delayed-scale" hint="room for growth"
# -                self.scale = self.largest / amax / 2**self.margin
# +                self.scale = self.largest / amax * 2**self.margin

# %% [raw] mutant="delayed-scale" hint="has set the scale to 0"
# -            if amax < float("inf"):
# +            if amax > 0:

# %% [raw] mutant="delayed-scale" hint="has not become an entry"
# -        if self.current > 0:
# +        if 0 < self.current < float("inf"):

# %% [raw] mutant="delayed-scale" hint="has pushed an older amax out"
# -        if self.current > 0:
# -            self.history = [*self.history, self.current][-self.length:]
# +        self.history = [*self.history, self.current][-self.length:]
# +        if max(self.history) > 0:

# %% [markdown]
# So a single overflow freezes a scale for the length of the history. With 1,024 entries, the tensor may have changed a
# lot by the time the scale thaws. That is why this course's trainer leaves infinite amaxes out: with loss scaling, a
# step whose gradients overflow is skipped anyway.
#
# Gradients spread over many more powers of two than activations do, and E5M2 covers 32 powers of two instead of 18. Hence
# the **hybrid** format: E4M3 in the forward pass, where precision matters more, and E5M2 for gradients. Without scales,
# the range is all there is. How many micro-batches may a step have before the gradients underflow?

# %% tags=["explore"] short={"STEPS": "4"}
for name, gradients in (("E4M3", recipe.Format.E4M3), ("E5M2", recipe.Format.HYBRID)):
    for count in (1, 64, 1024):
        losses = eight_bits.train(recipe.DelayedScaling(gradients), STEPS, eight_bits.without_scales, count).losses
        learns = losses[-1] < 2
        print(f"{name} gradients, no scales, {count:5,} micro-batches: final loss "
              f"{(good if learns else bad)(f'{losses[-1]:.2f}')}")

# %% [markdown]
# Your colleague tried one micro-batch. With 1,024 of them in a step, every gradient is divided by 1,024. Without
# scales, that is too small for either format: all gradients of the linear layers become zero.

# %% [markdown]
# ### Exercise 4: ranks must agree
#
# With tensor parallelism, each rank holds a part of a weight, and with sequence parallelism a part of each activation.
# If each rank chose its own scale, its part would be rounded differently than on one GPU, and results would depend
# on the layout. So the ranks first take the **maximum** of their amaxes. A model has hundreds of FP8 tensors, and an
# all-reduce of four bytes takes as long as one of a kilobyte, because both are latency-bound. So use one collective for
# all tensors.
#
# Write `mytrainer/amaxes.py` with `share_amaxes`. With `--fp8-recipe delayed`, `my_trainer.py` calls it at the end of each
# step, with this step's amaxes of all FP8 tensors of the model. Data-parallel ranks see different samples, so their
# amaxes differ, too. The trainer sets your `DelayedScale` objects from what you return.

# %% answer="share-amaxes"
%%writefile mytrainer/amaxes.py
"""The amaxes that ranks share, so that they scale their tensors alike."""

import torch
import torch.distributed as dist


def share_amaxes(amaxes, group=None):
    """Return the amax of each tensor over all ranks of a group, with a single collective.

    Args:
        amaxes: this rank's, float32 tensors without dimensions; equally many on every rank.
        group: the process group; None is the default group of all ranks.

    Returns a float32 tensor [len(amaxes)], the same on all ranks of the group.
    """
    ### BEGIN SOLUTION
    shared = torch.stack(amaxes)
    dist.all_reduce(shared, dist.ReduceOp.MAX, group)
    return shared
    ### END SOLUTION

# %% tags=["driver"]
def amaxes_on_ranks(part, halves):
    """Share this rank's amaxes among all ranks, or within each half of them."""
    from mytrainer.amaxes import share_amaxes

    rank, ranks = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(some)) for some in (range(ranks // 2), range(ranks // 2, ranks))] if halves else [None]
    amaxes = [torch.tensor(amax) for amax in part]
    return share_amaxes(amaxes, groups[rank // (ranks // 2)] if halves else None).tolist()

# %% check="share-amaxes" points=3
some = [[1.0, 0.5], [7.0, 0.25], [2.0, 0.125], [3.5, 1.0]]
runs = check.ranks(
    amaxes_on_ranks, ranks=4, cases=[{"part": check.by_rank(some), "halves": halves} for halves in (False, True)],
    expected=[[[7.0, 1.0], [7.0, 1.0], [7.0, 1.0], [7.0, 1.0]], [[7.0, 0.5], [7.0, 0.5], [3.5, 1.0], [3.5, 1.0]]],
    hints={"Every rank has its own amaxes. The ranks have not agreed.": [
               [[1.0, 0.5], [7.0, 0.25], [2.0, 0.125], [3.5, 1.0]], [[1.0, 0.5], [7.0, 0.25], [2.0, 0.125], [3.5, 1.0]]],
           "The amaxes were summed. Which of the ranks' amaxes is that of the whole tensor?": [
               [[13.5, 1.875], [13.5, 1.875], [13.5, 1.875], [13.5, 1.875]],
               [[8.0, 0.75], [8.0, 0.75], [5.5, 1.125], [5.5, 1.125]]],
           "These are averages. A rank with a larger amax would saturate.": [
               [[3.375, 0.46875], [3.375, 0.46875], [3.375, 0.46875], [3.375, 0.46875]],
               [[4.0, 0.375], [4.0, 0.375], [2.75, 0.5625], [2.75, 0.5625]]],
           "All ranks have shared their amaxes, and not only those of `group`.": [
               [], [[7.0, 1.0], [7.0, 1.0], [7.0, 1.0], [7.0, 1.0]]]})


def require_one_collective(runs):
    for run in runs:
        for rank, values in enumerate(run.values):
            calls = run.calls(rank)
            check.that(len(calls) == 1, f"Rank {rank} called {len(calls)} collectives for {len(values)} tensors. "
                       "Put all amaxes into one tensor.")


require_one_collective(runs)
### BEGIN HIDDEN TESTS
def agreed(ranks, part, halves):
    groups = [range(ranks // 2), range(ranks // 2, ranks)] if halves else [range(ranks)]
    return [[max(part[rank][number] for rank in group) for number in range(len(part[0]))]
            for group in groups for _ in group]


for ranks, halves, case in zip((2, 4), (False, True), check.draw(2, count=range(3, 10)), strict=True):
    require_one_collective(check.ranks(amaxes_on_ranks, ranks=ranks, expected=agreed, cases=check.draw(
        1, halves=[halves], part=check.for_each_rank(
            lambda dice: dice.randint(1, 1 << 20) / 2.0**dice.randint(0, 30), [case["count"]]))))
### END HIDDEN TESTS

# %% [raw] mutant="share-amaxes" hint="The ranks have not agreed"
# -    dist.all_reduce(shared, dist.ReduceOp.MAX, group)

# %% [raw] mutant="share-amaxes" hint="The amaxes were summed"
# -    dist.all_reduce(shared, dist.ReduceOp.MAX, group)
# +    dist.all_reduce(shared, group=group)

# %% [raw] mutant="share-amaxes" hint="These are averages"
# -    dist.all_reduce(shared, dist.ReduceOp.MAX, group)
# +    dist.all_reduce(shared, group=group)
# +    shared /= dist.get_world_size(group)

# %% [raw] mutant="share-amaxes" hint="not only those of `group`"
# -    dist.all_reduce(shared, dist.ReduceOp.MAX, group)
# +    dist.all_reduce(shared, dist.ReduceOp.MAX)

# %% [raw] mutant="share-amaxes" hint="Put all amaxes into one tensor"
# -    dist.all_reduce(shared, dist.ReduceOp.MAX, group)
# +    for one in shared:
# +        dist.all_reduce(one, dist.ReduceOp.MAX, group)

# %% [markdown]
# ## A linear layer in FP8
#
# The layer computes $y = x w^T$, which sums over the inputs. Its backward pass has two more GEMMs. The gradient of the
# input sums over the outputs, and the gradient of the weight over the tokens. In FP8 all three multiply rounded
# matrices: `x` and `w` in E4M3, and the gradient of $y$ in E5M2. The Tensor Cores accumulate in higher precision, and the outputs are BF16 or FP32. Everything else in the
# model stays in 16 or 32 bits: the softmax, the norms, the residual stream, and the master weights of the optimizer.
#
# In PyTorch the GEMM is `torch._scaled_mm(a, b, a_inverse, b_inverse, out_dtype=...)`. It multiplies `a` [m, k] by `b`
# [k, n], and the result by both inverse scales. FP8 GEMMs on Hopper are TN-only: both operands must be K-major, that
# is, contiguous along the dimension that is summed over. So each operand is needed twice, as it is and transposed. With
# one scale per tensor, transpose the FP8 tensor rather than the BF16 one: nothing is rounded a second time, and the copy moves
# half the bytes. This does *not* hold for blocks of 1 x 128 or 1 x 32 elements, which you meet below: their scales run
# along the summed dimension, and transposing swaps the dimensions, so the tensor must be quantized a second time.
#
# How exact is the sum? Hopper's FP8 instructions promise FP32 accumulation, but the hardware keeps fewer bits.
# DeepSeek-V3's authors found that the H800's Tensor Cores keep only about 14 bits of an FP8 GEMM's partial sums, which
# leads to a maximum relative error of nearly 2% in sums over 4,096 elements ([2024](https://arxiv.org/abs/2412.19437),
# section 3.3.2). So they add the partial sums to FP32 registers every 128 elements, outside the Tensor Cores.
# Transformer Engine does the same in the backward pass (it calls it a *split accumulator*). On your CPU, the sums are
# exact.
#
# A weight's gradient is summed once more, over the micro-batches of a step. BF16 has 8 significant bits, so a sum in
# BF16 stops growing once the next addend is less than half the spacing, just as the weight in Exercise 2 did. Megatron-LM
# therefore keeps the gradients of BF16 weights in FP32 ([its
# default](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py) with `--bf16`). PyTorch casts a
# gradient to its parameter's type, unless `parameter.grad_dtype` says otherwise; `my_trainer.py` sets it to FP32 for all
# parameters. The rest is up to the backward pass: what it rounds to BF16 remains rounded.
#
# ### Exercise 5: an FP8 linear layer
#
# Write `fp8.py`, a file of your trainer. Scale each tensor by its *current* amax. Three things make the layer fast:
#
# - **Powers of two.** Round the scale *down* to a power of two, so that nothing can saturate. `torch.frexp` finds it
#   exactly, while `torch.log2` rounds. Multiplying a BF16 tensor
#   by it is exact, so do not convert the tensor to FP32 first: that conversion would read and write so many more bytes
#   that the layer would be slower than in BF16.
# - **Saved tensors.** Save `x` for the backward pass in FP8, which is half the memory, and only in the direction that the
#   backward pass reads.
# - **Reuse.** A weight changes once per step, not once per micro-batch. With gradient accumulation, quantize it in the
#   first micro-batch, and keep the result for the others.
#
# The layer must accept inputs with two or more dimensions, and a tensor of zeros must stay zero.
#
# It takes its scales from a **recipe**. `PerTensor` is the first, and the two that you write below have the same two
# methods: `pair` quantizes a matrix for the GEMMs that sum over its columns and for those that sum over its rows, and
# `multiply` multiplies two quantized matrices. `PerTensor` also does delayed scaling: then it has a `DelayedScale` for
# each role of a tensor, and `quantize` records the tensor's amax there.

# %% answer="fp8"
%%writefile mytrainer/fp8.py
"""A linear layer whose three GEMMs run in FP8, with the scales of a recipe."""

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantize(x, dtype, delayed=None):
    """Round a tensor to FP8, with a power-of-two scale from its own amax.

    Args:
        x: the tensor.
        dtype: E4M3 or E5M2.
        delayed: its DelayedScale, whose scale is used instead; None for that of the current amax.

    Returns the float8 tensor, and 1 / scale as a float32 tensor without dimensions. The scale is the
    largest power of two for which nothing saturates, and 1 if x is zero.
    """
    if delayed is not None:
        delayed.record(x.detach())
        scaled, largest = x.detach().float() * delayed.scale, torch.finfo(dtype).max
        inverse = torch.tensor(1 / delayed.scale, device=x.device)
        return scaled.clamp(-largest, largest).to(dtype), inverse
    ### BEGIN SOLUTION
    low, high = torch.aminmax(x.detach())
    amax = torch.maximum(-low, high).float()
    exponent = torch.frexp(torch.finfo(dtype).max / amax).exponent - 1  # exact, where log2 rounds
    scale = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponent), 1.0)
    return (x.detach() * scale.to(x.dtype)).to(dtype), scale.reciprocal()
    ### END SOLUTION


class PerTensor:
    """The recipe with one scale per tensor.

    A quantized matrix is a tuple of its float8 elements, with contiguous rows, and 1 / scale.

    Attributes:
        delayed: the DelayedScale of each role; empty with current scaling.
    """

    def __init__(self, delayed=None):
        self.delayed = delayed or {}

    def pair(self, x, dtype, role):
        """Quantize a matrix [m, k] for GEMMs that sum over its columns, and for those over its rows.

        Args:
            x: the matrix.
            dtype: E4M3 or E5M2.
            role: "input", "weight", or "grad" (of the output).

        Returns the quantized matrix [m, k], and its quantized transpose [k, m].
        """
        ### BEGIN SOLUTION
        data, inverse = quantize(x, dtype, self.delayed.get(role))
        return (data, inverse), (data.t().contiguous(), inverse)
        ### END SOLUTION

    def multiply(self, a, b, dtype):
        """Return a @ b.T for two quantized matrices [m, k] and [n, k], accumulated in float32."""
        return torch._scaled_mm(a[0], b[0].t(), a[1], b[1], out_dtype=dtype)


class Multiply(torch.autograd.Function):
    """y = x @ weight.T, with E4M3 in the forward pass and E5M2 gradients."""

    @staticmethod
    def forward(ctx, x, weight, quantized, recipe):
        """Return y [tokens, n].

        Args:
            x: [tokens, k].
            weight: [n, k]; the parameter, so that autograd asks for its gradient.
            quantized: the weight, as recipe.pair() returns it.
            recipe: as in Linear.
        """
        ctx.recipe = recipe
        ### BEGIN SOLUTION
        rows, columns = recipe.pair(x, E4M3, "input")
        ctx.save_for_backward(*columns, *quantized[1])
        return recipe.multiply(rows, quantized[0], x.dtype)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and weight, and None for the other two arguments.

        The gradient of the weight is float32, because the trainer adds up those of all micro-batches.
        """
        ### BEGIN SOLUTION
        x, x_inverse, *weight = ctx.saved_tensors
        rows, columns = ctx.recipe.pair(grad, E5M2, "grad")
        dx = ctx.recipe.multiply(rows, weight, grad.dtype)
        dw = ctx.recipe.multiply(columns, (x, x_inverse), torch.float32)
        return dx, dw, None, None
        ### END SOLUTION


class Linear(nn.Linear):
    """nn.Linear with FP8 GEMMs, and the same parameters.

    Attributes:
        kept: the quantized weight of this step.
        recipe: quantizes and multiplies; current scaling, if the trainer does not set another one.
    """

    kept = None
    recipe = PerTensor()

    def forward(self, x, first_micro_batch=True):
        """Return [..., out_features].

        Args:
            x: [..., in_features].
            first_micro_batch: quantize the weight and keep it; otherwise, use the one that was kept.
        """
        ### BEGIN SOLUTION
        if first_micro_batch:
            self.kept = self.recipe.pair(self.weight.detach(), E4M3, "weight")
        y = Multiply.apply(x.flatten(0, -2), self.weight, self.kept, self.recipe).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias
        ### END SOLUTION

# %% tags=["driver"]
def wave(seed, *shape):
    """Return values of very different magnitudes, the same on every machine."""
    angles = torch.arange(torch.Size(shape).numel()) + float(seed)
    return ((0.37 * angles).sin() * torch.exp2(5 * (0.11 * angles).cos())).view(shape)


def fp8_layer(seed, shape, outputs, shown):
    """Return parts of an FP8 layer's output and of the gradients of its input, weight, and bias."""
    from mytrainer.fp8 import Linear

    layer = Linear(shape[-1], outputs)
    with torch.no_grad():
        layer.weight.copy_(wave(seed + 1, outputs, shape[-1]))
        layer.bias.copy_(wave(seed + 2, outputs))
    x = wave(seed, *shape).requires_grad_()
    y = layer(x)
    y.backward(wave(seed + 3, *y.shape))
    return [one.flatten()[:shown] for one in (y.detach(), x.grad, layer.weight.grad, layer.bias.grad)]


def fp8_zeros():
    """Return the sums of the magnitudes of the output and the gradients for an input and a gradient of zeros."""
    from mytrainer.fp8 import Linear

    layer, x = Linear(16, 16, bias=False), torch.zeros(16, 16, requires_grad=True)
    y = layer(x)
    y.backward(torch.zeros(16, 16))
    return [one.detach().abs().sum() for one in (y, x.grad, layer.weight.grad)]


def fp8_scale(values):
    """Return 1 / scale of a tensor in E4M3."""
    from mytrainer.fp8 import E4M3, quantize

    return float(quantize(torch.tensor(values), E4M3)[1])


def fp8_micro_batches(seed):
    """Return an output in two micro-batches of one step, and in the next step.

    The weight triples between them. Only the next step may see that.
    """
    from mytrainer.fp8 import Linear

    layer = Linear(16, 16, bias=False)
    outputs = []
    with torch.no_grad():
        layer.weight.copy_(wave(seed, 16, 16))
        for first in (True, False, True):
            outputs.append(layer(wave(seed + 1, 16, 16), first)[0, :4])
            layer.weight.mul_(3)
    return outputs


def fp8_recorded(x_amax, weight_amax, grad_amax):
    """Return the amaxes that the scales of x, the weight, and the gradient record in a step."""
    from mytrainer.fp8 import Linear, PerTensor

    class Scale:
        def __init__(self, scale):
            self.scale, self.amaxes = scale, []

        def record(self, x):
            self.amaxes.append(float(x.abs().max()))

    layer = Linear(16, 16, bias=False)
    scales = {"input": Scale(2.0), "weight": Scale(4.0), "grad": Scale(0.5)}
    layer.recipe = PerTensor(scales)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, weight_amax, 256).view(16, 16))
    x = torch.full((16, 16), x_amax, requires_grad=True)
    layer(x).backward(torch.full((16, 16), -grad_amax))
    return [scale.amaxes for scale in scales.values()]


def fp8_accumulated(seed, counts):
    """Return some of a weight's gradient in BF16 training, after each number of micro-batches.

    The weight's .grad has the type that the backward pass returns. All numbers are short integers, which FP8
    represents, so a sum in FP32 is exact.
    """
    from mytrainer.fp8 import Linear

    layer, found, dice = Linear(16, 16, bias=False, dtype=torch.bfloat16), [], torch.Generator().manual_seed(seed)
    layer.weight.grad_dtype = None
    for number in range(max(counts)):
        x, grad = (torch.randint(1, most, (64, 16), generator=dice).bfloat16() for most in (8, 4))
        layer(x.requires_grad_(), number == 0).backward(grad)
        if number + 1 in counts:
            found.append(layer.weight.grad[0, :4].tolist())
    return found


def fp8_step(width, tokens, micro_batches, layers, reuse):
    """Run the micro-batches of a step on a GPU.

    Args:
        width: inputs and outputs of each layer.
        tokens: per micro-batch.
        micro_batches: in the step.
        layers: how many.
        reuse: whether the layers may reuse the quantized weights of the first one.
    """
    from mytrainer.fp8 import Linear

    model = [nn.utils.skip_init(Linear, width, width, bias=False, device="cuda", dtype=torch.bfloat16)
             for _ in range(layers)]
    for layer in model:
        layer.weight.grad_dtype = torch.float32
    for number in range(micro_batches):
        x = torch.empty(tokens, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for layer in model:
            x = layer(x, not reuse or number == 0)
        x.backward(torch.empty_like(x))

# %% check="fp8" points=8
LARGE = {"width": 5120, "tokens": 8192, "micro_batches": 1, "layers": 4}
LONG = {"width": 2048, "tokens": 32768, "micro_batches": 1, "layers": 16}
MANY = {"width": 8192, "tokens": 1024, "micro_batches": 8, "layers": 2}
# It rounds as FP8 does, in both passes.
check.ranks(
    fp8_layer, ranks=1, rel=1e-4,
    cases=[{"seed": 0, "shape": [2, 8, 32], "outputs": 16, "shown": 3}],
    expected=[
        [[[1968.49438, 67.9165649, 1.6483326], [35.2487793, 291.977783, 440.989838],
        [-516.421631, -414.171509, -344.146637], [6.48060226, 4.31930542, 1.54018641]]]],
    hints={"The gradients have E4M3's precision, and not E5M2's range.": [
               [[[1968.49438, 67.9165649, 1.6483326], [51.7331543, 303.425293, 447.799164],
               [-525.481873, -420.755035, -344.329193], [6.48060226, 4.31930542, 1.54018641]]]],
           "The weight's gradient is computed from numbers that were not rounded.": [
               [[[1968.49438, 67.9165649, 1.6483326], [35.2487793, 291.977783, 440.989838],
               [-497.969971, -422.721375, -342.723175], [6.48060226, 4.31930542, 1.54018641]]]],
           "The scale is not a power of two, or not the largest for which nothing saturates.":
               [[[[2017.07861, 67.8025589, 1.39049911], [22.4348679, 263.175934, 411.690277],
                   [-512.513062, -432.905487, -381.645905], [6.48060226, 4.31930542, 1.54018641]]]]})
check.ranks(fp8_zeros, ranks=1, cases=[{}], expected=[[[0.0, 0.0, 0.0]]],
            hints={"The scale of a tensor of zeros is infinite, and infinity times zero is NaN.": [
                [[1e999 - 1e999] * 3]]})  # NaN
check.ranks(fp8_scale, ranks=1, cases=[{"values": [458752.03125, 1.0]}, {"values": [-458752.0, 1.0]}],
            expected=[[2048.0], [1024.0]],
            hints={"torch.log2 rounds: 458752.03125 is more than 448 x 2^10, and would saturate. torch.frexp is exact.":
                   [[1024.0], [1024.0]]})
check.ranks(fp8_recorded, ranks=1, cases=[{"x_amax": 5.0, "weight_amax": 3.0, "grad_amax": 7.0}], expected=[[[[5.0], [3.0], [7.0]]]],
            hints={"Delayed scaling has no effect. Pass `quantize` the scale of each tensor.": [[[[], [], []]]],
                   "Each tensor is rounded twice. With one scale per tensor, its transpose has the same elements.":
                       [[[[5.0, 5.0], [3.0, 3.0], [7.0, 7.0]]]],
                   "The gradient does not use its own scale. Which one of the three is it?":
                       [[[[5.0, 7.0], [3.0], []]]]})
check.ranks(fp8_micro_batches, ranks=1, rel=1e-4, cases=[{"seed": 0}],
    expected=[[[[1948.59375, 6.85742188, 8.77734375, 128.125], [1948.59375, 6.85742188, 8.77734375, 128.125],
    [17539.0938, 60.9765625, 77.484375, 1153.0]]]],
            hints={"A later micro-batch must use the weight that the first one kept.": [
                       [[[1948.59375, 6.85742188, 8.77734375, 128.125],
                       [5955.15625, 20.487793, 25.9414062, 403.125],
                       [17539.0938, 60.9765625, 77.484375, 1153.0]]]],
                   "A new step must quantize the weight again.": [
                       [[[1948.59375, 6.85742188, 8.77734375, 128.125],
                       [1948.59375, 6.85742188, 8.77734375, 128.125],
                       [1948.59375, 6.85742188, 8.77734375, 128.125]]]]})
check.ranks(fp8_accumulated, ranks=1, cases=[{"seed": 0, "counts": [1, 16, 256]}],
            expected=[[[[518.0, 515.0, 556.0, 527.0], [8398.0, 8280.0, 8202.0, 8353.0], [131635.0, 130843.0, 131755.0, 131759.0]]]],
            hints={"The weight's gradient is rounded to BF16 and summed in BF16, so the error grows with the number of "
                   "micro-batches. In which type should the GEMM write its output?": [
                       [[[520.0, 516.0, 556.0, 528.0], [8384.0, 8256.0, 8192.0, 8320.0],
                         [131072.0, 130560.0, 131072.0, 131072.0]]]],
                   "The GEMM has rounded the weight's gradient to BF16. A conversion to FP32 comes too late.": [
                       [[[520.0, 516.0, 556.0, 528.0], [8388.0, 8284.0, 8202.0, 8348.0],
                         [131620.0, 130862.0, 131736.0, 131768.0]]]]})
### BEGIN HIDDEN TESTS
import numpy as np
import torch

def sines(seed, *shape):
    angles = torch.arange(torch.Size(shape).numel()) + float(seed)
    return ((0.37 * angles).sin() * torch.exp2(5 * (0.11 * angles).cos())).view(shape)

def as_fp8(x, dtype):
    amax = x.abs().max()
    scale = torch.ldexp(torch.tensor(1.0), torch.frexp(torch.finfo(dtype).max / amax).exponent - 1)
    return (x * scale).to(dtype).double() / scale.double()

def exact_layer(ranks, seed, shape, outputs, shown):
    x, w = sines(seed, *shape), sines(seed + 1, outputs, shape[-1])
    g = sines(seed + 3, *shape[:-1], outputs)
    x8, w8 = (as_fp8(one, torch.float8_e4m3fn) for one in (x.flatten(0, -2), w))
    g8 = as_fp8(g.flatten(0, -2), torch.float8_e5m2)
    y = x8 @ w8.t() + sines(seed + 2, outputs)
    found = y, g8 @ w8, g8.t() @ x8, g.flatten(0, -2).sum(0)
    return [[np.float32(one.float().numpy()).ravel()[:shown] for one in found]]

check.ranks(fp8_layer, ranks=1, rel=2e-3, expected=exact_layer,
            cases=check.draw(2, seed=check.between(1, 500), shape=[(16, 16), (2, 16, 32), (4, 2, 8, 48)],
                             outputs=[16, 32], shown=[16]))

def in_two_steps(ranks, seed):
    x8, weight = as_fp8(sines(seed + 1, 16, 16), torch.float8_e4m3fn), sines(seed, 16, 16)
    first, later = (x8 @ as_fp8(one, torch.float8_e4m3fn).t() for one in (weight, weight * 3 * 3))
    return [[one[0, :4].tolist() for one in (first, first, later)]]

def summed_exactly(ranks, seed, counts):
    total, found, dice = 0, [], torch.Generator().manual_seed(seed)
    for number in range(max(counts)):
        x, grad = (torch.randint(1, most, (64, 16), generator=dice).double() for most in (8, 4))
        total = total + grad.t() @ x
        if number + 1 in counts:
            found.append(total[0, :4].tolist())
    return [found]

def power_of_two(ranks, values):
    amax, inverse = max(map(abs, values)), 2.0**-60
    while amax / inverse > 448:
        inverse *= 2
    return [inverse]

amax = check.between(3, 90)
check.ranks(fp8_scale, ranks=1, expected=power_of_two, cases=check.draw(
    3, values=lambda dice: [dice.uniform(-9, 9) * 2.0**dice.randint(-9, 9) for _ in range(4)]))
check.ranks(fp8_recorded, ranks=1, cases=check.draw(1, x_amax=amax, weight_amax=amax, grad_amax=amax),
            expected=lambda ranks, **amaxes: [[[one] for one in amaxes.values()]])
check.ranks(fp8_micro_batches, ranks=1, rel=2e-3, expected=in_two_steps,
            cases=check.draw(1, seed=check.between(1, 500)))
check.ranks(fp8_accumulated, ranks=1, expected=summed_exactly,
            cases=check.draw(1, seed=range(10**9), counts=[[3, 40]]))
### END HIDDEN TESTS
def bf16_step(width, tokens, micro_batches, layers):
    """Run the micro-batches of a step with layers in BF16, and the weights' gradients in FP32."""
    import torch
    from torch import nn

    model = [nn.utils.skip_init(nn.Linear, width, width, bias=False, device="cuda", dtype=torch.bfloat16)
             for _ in range(layers)]
    for layer in model:
        layer.weight.grad_dtype = torch.float32
    for _ in range(micro_batches):
        x = torch.empty(tokens, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for layer in model:
            x = layer(x)
        x.backward(torch.empty_like(x))


# It takes less time and memory than BF16 on an H100. Beside the GEMMs, it moves few bytes.
least = {"flops": 4 * 6 * 8192 * 5120**2, "dtype": "fp8"}
plain = check.baseline(bf16_step, LARGE, "h100:1")
cost = check.gpus(fp8_step, {**LARGE, "reuse": True}, "h100:1", least=least)
moved = cost.ranks[0].bytes / (4 * (2 * 8192 * 5120 + 5120**2))  # per element of all inputs, gradients, and weights
check.that(moved < 25 and cost.milliseconds < plain.milliseconds,
           f"{cost.milliseconds:.1f} ms in FP8, and {plain.milliseconds:.1f} ms in BF16; the kernels move "
           f"{moved:.0f} bytes per element of the inputs, gradients, and weights. Which of them besides the GEMMs "
           "move the most? Multiply in the tensor's own type.")
plain = check.baseline(bf16_step, LONG, "h100:1")
cost = check.gpus(fp8_step, {**LONG, "reuse": True}, "h100:1", least={"flops": 16 * 6 * 32768 * 2048**2, "dtype": "fp8"})
check.that(cost.peak_memory < 0.93 * plain.peak_memory,
           f"{cost.peak_memory:.2f} GiB at the peak in FP8, and {plain.peak_memory:.2f} GiB in BF16. "
           "What do you save for the backward pass, and in which format?")
# It quantizes a weight once per step.
least = {"flops": 8 * 2 * 6 * 1024 * 8192**2, "dtype": "fp8"}
cost = check.gpus(fp8_step, {**MANY, "reuse": True}, "h100:1", least=least)
per_weight = cost.ranks[0].bytes / (2 * 8192**2)
check.that(per_weight < 215, f"In 8 micro-batches, the kernels move {per_weight:.0f} bytes per element of the weights. About "
           "170 suffice if a weight is quantized once per step. Keep the quantized weight.")

# %% [raw] mutant="fp8" hint="not E5M2's range"
# -        rows, columns = ctx.recipe.pair(grad, E5M2, "grad")
# +        rows, columns = ctx.recipe.pair(grad, E4M3, "grad")

# %% [raw] mutant="fp8" hint="The gradient does not use its own scale"
# -        rows, columns = ctx.recipe.pair(grad, E5M2, "grad")
# +        rows, columns = ctx.recipe.pair(grad, E5M2, "input")

# %% [raw] mutant="fp8" hint="Delayed scaling has no effect"
# -        data, inverse = quantize(x, dtype, self.delayed.get(role))
# +        data, inverse = quantize(x, dtype)

# %% [raw] mutant="fp8" hint="Each tensor is rounded twice"
# -        data, inverse = quantize(x, dtype, self.delayed.get(role))
# -        return (data, inverse), (data.t().contiguous(), inverse)
# +        delayed = self.delayed.get(role)
# +        return quantize(x, dtype, delayed), quantize(x.t().contiguous(), dtype, delayed)

# %% [raw] mutant="fp8" hint="numbers that were not rounded"
# -        ctx.save_for_backward(*columns, *quantized[1])
# +        ctx.save_for_backward(x, x, *quantized[1])
# -        dw = ctx.recipe.multiply(columns, (x, x_inverse), torch.float32)
# +        dw = (grad.t() @ x).float()

# %% [raw] mutant="fp8" hint="summed in BF16"
# -        dw = ctx.recipe.multiply(columns, (x, x_inverse), torch.float32)
# +        dw = ctx.recipe.multiply(columns, (x, x_inverse), grad.dtype)

# %% [raw] mutant="fp8" hint="comes too late"
# -        dw = ctx.recipe.multiply(columns, (x, x_inverse), torch.float32)
# +        dw = ctx.recipe.multiply(columns, (x, x_inverse), grad.dtype).float()

# %% [raw] mutant="fp8" hint="The scale is not a power of two"
# -    scale = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponent), 1.0)
# +    scale = torch.where(amax > 0, torch.finfo(dtype).max / amax, 1.0)

# %% [raw] mutant="fp8" hint="infinity times zero is NaN"
# -    scale = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponent), 1.0)
# +    scale = torch.finfo(dtype).max / amax
# +    scale = torch.exp2(torch.floor(torch.log2(scale)))

# %% [raw] mutant="fp8" hint="torch.log2 rounds"
# -    scale = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponent), 1.0)
# +    scale = torch.exp2(torch.floor(torch.log2(torch.finfo(dtype).max / amax)))
# +    scale = torch.where(amax > 0, scale, 1.0)

# %% [raw] mutant="fp8" hint="must use the weight that the first one kept"
# -        if first_micro_batch:
# +        if True:

# %% [raw] mutant="fp8" hint="A new step must quantize the weight again"
# -        if first_micro_batch:
# +        if self.kept is None:

# %% [raw] mutant="fp8" hint="What do you save for the backward pass"
# -        ctx.save_for_backward(*columns, *quantized[1])
# +        ctx.save_for_backward(x, *quantized[1])
# -        x, x_inverse, *weight = ctx.saved_tensors
# +        x, *weight = ctx.saved_tensors
# +        x, x_inverse = PerTensor().pair(x, E4M3, "input")[1]

# %% [raw] mutant="fp8" hint="Keep the quantized weight."
# -        if first_micro_batch:
# -            self.kept = self.recipe.pair(self.weight.detach(), E4M3, "weight")
# +        fresh = self.recipe.pair(self.weight.detach(), E4M3, "weight")
# +        if first_micro_batch:
# +            self.kept = fresh

# %% [raw] mutant="fp8" hint="Multiply in the tensor's own type"
# -    return (x.detach() * scale.to(x.dtype)).to(dtype), scale.reciprocal()
# +    return (x.detach().float() * scale).to(dtype), scale.reciprocal()

# %% [markdown]
# ### Which layers are worth it
#
# FP8 is faster than BF16 at 8,192 x 8,192, but not at 1,024 x 1,024, as you saw at the start. The roofline explains
# why. A GEMM of $2mnk$ FLOPs reads and writes only $mk + nk + mn$ elements, so a large one is compute-bound, and FP8
# nearly halves its time. But casts have hardly any FLOPs: they are bandwidth-bound, and FP8 *adds* them. Each of the
# three tensors (input, weight, and gradient of the output) needs three kernels: an amax reads 2 bytes per element, a
# cast reads 2 and writes 1, and a copy of the FP8 transpose reads 1 and writes 1. For $m$ tokens, $k$ inputs, and $n$
# outputs, at the rates of large kernels on the virtual H100, the three GEMMs and these kernels take
#
# $$ t_\text{FP8} = \frac{6mnk}{1350\ \text{TFLOP/s}} + \frac{7\,(mk + nk + mn)\ \text{bytes}}{2.8\ \text{TB/s}},
# \qquad t_\text{BF16} = \frac{6mnk}{760\ \text{TFLOP/s}}. $$
#
# With 8,192 tokens, from which width on is a square layer faster in FP8? Guess. Then compare the formula with the
# virtual H100, which also knows that small kernels are slower than large ones:

# %% answer="guess-width"
### BEGIN SOLUTION
guess_width = 1700
### END SOLUTION

# %% tags=["explore"]
print("tokens  inputs outputs |       BF16 | FP8 GEMMs +   casts | times as fast | by the formula")
for tokens, inputs, outputs in ((8192, 8192, 8192), (8192, 4096, 4096), (8192, 2048, 2048), (8192, 1024, 1024),
                                (512, 8192, 8192), (16384, 4096, 128)):
    times = eight_bits.linear_times(tokens, inputs, outputs)
    flops, elements = 6 * tokens * inputs * outputs, tokens * inputs + inputs * outputs + tokens * outputs
    formula = flops / 760e12 / (flops / 1350e12 + 7 * elements / 2.8e12)
    ratio = f"{times.speedup:13.2f}"
    print(f"{tokens:6,} {inputs:7,} {outputs:7,} | {times.bf16:7,.0f} us | "
          f"{times.gemms:6,.0f} us + {times.casts:5,.0f} us | "
          f"{good(ratio) if times.speedup > 1 else bad(ratio)} | {formula:14.2f}")
equal = next(width for width in range(256, 8192, 64) if eight_bits.linear_times(8192, width, width).speedup > 1)
check.compare("width from which FP8 is faster (virtual H100)", guess_width, equal)

# %% [markdown]
# The weight's size is not all that matters: with few tokens, or few outputs, each element that is cast takes part in
# few multiplications. The profiler shows the same for a whole step: two layers of width 1,024 in the trainer, on one
# virtual H100. Which kernels exist only because of FP8, and how much of the step do they take?

# %% tags=["explore"] short={"--num-layers 2": "--num-layers 1"}
!sbatch --nodes=1 --gpus-per-node=1 code/virtual_v100.sh --device virtual:h100 --train-iters 4 \
    --num-layers 2 --hidden-size 1024 --num-attention-heads 8 --micro-batch-size 8 --use-flash-attn \
    --attention-dropout 0 --bf16 --fp8-format hybrid --fp8-recipe tensorwise --profile-execution yes \
    --profile-name fp8 --tensorboard-dir {os.getcwd()}/megatron/tensorboard/eight_bits

# %% tags=["explore"]
jobs.wait()
kernels.read("FP8 (virtual H100)", "megatron/tensorboard/eight_bits/run_fp8").show(12)

# %% [markdown]
# The GEMMs have their formats in their names, such as `e4m3e5m2`. The casts and transposes are `direct_copy` kernels,
# and `reduce` kernels find the amaxes (and sum the biases' gradients). At this width, they take as long as all FP8
# GEMMs.
#
# Real libraries reduce what FP8 adds. Transformer Engine fuses the cast, the transpose, and the next step's amax into
# the kernel before them, such as the layer norm. Delayed scaling makes that possible, because it needs no extra pass
# over the tensor. The rule remains: small models gain little from FP8, and neither do small batches. The virtual GPUs
# predict sixteen published FP8 speedups with a mean error of 9%; the table is in `benchmarks/results/fp8_speedups.md`
# of this course's repository.
#
# So both questions from the start have answers. FP8 nearly halves the time of the GEMMs but adds casts, so a large layer
# saves a third of its time, not half, and a small one loses. And here, eight bits train as well as sixteen as long as
# every scale follows its tensor's amax; the run that learned nothing had none.
#
# **The first sitting ends here.** Save the notebook. When you continue, first run all cells up to this point: later ones
# use your `round_to`.

# %% [markdown]
# ## One scale per block
#
# One scale per tensor has a weakness: a single outlier sets the amax, and pushes all other values down to where E4M3
# has few numbers. Large language models have such outliers in their activations. **DeepSeek-V3**
# ([2024](https://arxiv.org/abs/2412.19437), section 3.3) confines an outlier to its **block**: activations and
# gradients have one scale per 1 x 128 block of a row, weights one per 128 x 128 block. With scales this local, even
# gradients can use E4M3.
#
# ![Five matrices, whose elements share scales by tensor, by row, by blocks of 128 x 128, of 1 x 128, and of 1 x 32. The
# smaller the block, the fewer elements share the scale of an outlier.](../images/fp8_granularities.svg)
#
# ### Exercise 6: quantize blocks
#
# Write `mytrainer/blocks.py`, a recipe that your layer uses with `--fp8-recipe blockwise`. `quantize_blocks` takes any
# block size that divides the matrix. `Blocks.pair` chooses the blocks of each operand: 1 x 128 for inputs and gradients,
# 128 x 128 for weights.
#
# - A GEMM can apply a scale to a partial sum only if all products of that sum share it. So the blocks of *both* operands
#   run along the dimension that the GEMM sums over, in all three GEMMs.
# - No element is rounded from an already rounded one.
# - Where the matrix and its transpose have the same blocks, they have the same elements, too, and the tensor is rounded
#   only once.
#
# How does the hardware multiply blocks? On Hopper, kernels such as DeepSeek's
# [DeepGEMM](https://github.com/deepseek-ai/DeepGEMM) multiply 128 elements of the summed dimension in the Tensor Cores,
# scale the partial sum, and add it to FP32 registers. PyTorch has no such GEMM for CPUs, so `multiply` is given: it
# restores the values, which is exact because the scales are powers of two, and multiplies them in float64. That
# represents the rounding and not the speed, so do not time it.

# %% answer="blocks"
%%writefile mytrainer/blocks.py
"""The recipe with one scale per block of a matrix."""

import torch


def quantize_blocks(x, dtype, rows, columns):
    """Round a matrix to FP8 with one scale per block of rows x columns.

    Args:
        x: [m, k]; m is divisible by rows, and k by columns.
        dtype: a float8 type of PyTorch.

    Returns the float8 matrix [m, k], and 1 / scale for each block, float32 [m / rows, k / columns].
    A scale is the largest power of two for which nothing in the block saturates, and 1 if all of it is 0.
    """
    ### BEGIN SOLUTION
    m, k = x.shape
    tiles = x.float().reshape(m // rows, rows, k // columns, columns)
    amax = tiles.abs().amax((1, 3), keepdim=True)
    exponents = torch.frexp(torch.finfo(dtype).max / amax).exponent - 1
    scales = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponents), 1.0)
    return (tiles * scales).to(dtype).view(m, k), scales[:, 0, :, 0].reciprocal()
    ### END SOLUTION


def restore(matrix):
    """Return the values of a quantized matrix, float64."""
    data, inverse = matrix
    rows, columns = len(data) // len(inverse), data.shape[1] // inverse.shape[1]
    return data.double() * inverse.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)


class Blocks:
    """DeepSeek-V3's recipe: a quantized matrix is a tuple of its float8 elements, and 1 / scale of each block."""

    def pair(self, x, dtype, role):
        """Quantize a matrix [m, k] for GEMMs that sum over its columns, and for those over its rows.

        Args:
            x: the matrix; m and k are multiples of 128.
            dtype: E4M3 or E5M2.
            role: "input", "weight", or "grad".

        Returns the quantized matrix [m, k], and its quantized transpose [k, m].
        """
        ### BEGIN SOLUTION
        if role == "weight":
            data, inverse = quantize_blocks(x, dtype, 128, 128)
            return (data, inverse), (data.t().contiguous(), inverse.t().contiguous())
        return quantize_blocks(x, dtype, 1, 128), quantize_blocks(x.t(), dtype, 1, 128)
        ### END SOLUTION

    def multiply(self, a, b, dtype):
        """Return a @ b.T for two quantized matrices [m, k] and [n, k]."""
        return (restore(a) @ restore(b).t()).to(dtype)

# %% tags=["driver"]
def blocks_of(matrix, rows, columns, format):
    """Return the FP8 matrix as float32, 1 / scale of the blocks, and the name of the matrix's type."""
    from mytrainer.blocks import quantize_blocks

    data, inverse = quantize_blocks(torch.tensor(matrix), getattr(torch, format), rows, columns)
    return [data.float(), inverse, str(data.dtype)]


def blocks_pair(seed, role):
    """Quantize a matrix in both directions, and return the shapes of the scales and the restored outlier's row.

    Returns the shape of the matrix's scales, some of its values, and both for the transpose.
    """
    from mytrainer.blocks import Blocks

    x, found = (0.37 * torch.arange(128 * 256) + seed).sin().view(128, 256), []
    x[3, 5] = 30000.0
    for data, inverse in Blocks().pair(x, torch.float8_e4m3fn, role):
        rows, columns = len(data) // len(inverse), data.shape[1] // inverse.shape[1]
        values = data.float() * inverse.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        values = values if len(values) == 128 else values.t()  # of the transpose
        found += [list(inverse.shape), [values[3, 6], values[4, 5], values[4, 6]]]
    return found

# %% check="blocks" points=5
some = [[1.0, 0.5, 0.25, 3.0], [2.0, -4.0, 0.0, 1.1]]
check.ranks(
    blocks_of, ranks=1, cases=[(some, 1, 2, "float8_e4m3fn"), (some, 2, 2, "float8_e4m3fn"),
                               ([[0.0, 0.0, 1.0, -2.0]], 1, 2, "float8_e4m3fn"), (some, 1, 4, "float8_e5m2")],
    expected=[
        [[[[256.0, 128.0, 32.0, 384.0], [128.0, -256.0, 0.0, 288.0]], [[0.00390625, 0.0078125], [0.015625,
        0.00390625]], 'torch.float8_e4m3fn']], [[[[64.0, 32.0, 32.0, 384.0], [128.0, -256.0, 0.0, 144.0]], [[0.015625,
        0.0078125]], 'torch.float8_e4m3fn']], [[[[0.0, 0.0, 128.0, -256.0]], [[1.0, 0.0078125]],
        'torch.float8_e4m3fn']], [[[[16384.0, 8192.0, 4096.0, 49152.0], [16384.0, -32768.0, 0.0, 8192.0]],
        [[6.10351562e-05], [0.000122070312]], 'torch.float8_e5m2']]],
    hints={
        "A block of zeros needs a scale, too: without one, it becomes NaN.": [
            [], [], [[[[1e999 - 1e999, 1e999 - 1e999, 128.0, -256.0]], [[0.0, 0.0078125]], 'torch.float8_e4m3fn']], []],
        "There is one scale for the whole matrix.": [
            [[[[64.0, 32.0, 16.0, 192.0], [128.0, -256.0, 0.0, 72.0]], [[0.015625, 0.015625], [0.015625, 0.015625]],
            'torch.float8_e4m3fn']], [[[[64.0, 32.0, 16.0, 192.0], [128.0, -256.0, 0.0, 72.0]], [[0.015625,
            0.015625]], 'torch.float8_e4m3fn']], [[[[0.0, 0.0, 128.0, -256.0]], [[0.0078125, 0.0078125]],
            'torch.float8_e4m3fn']], [[[[8192.0, 4096.0, 2048.0, 24576.0], [16384.0, -32768.0, 0.0, 8192.0]],
            [[0.000122070312], [0.000122070312]], 'torch.float8_e5m2']]],
        "These are the scales. Return 1 / scale, which the GEMM multiplies by.": [
            [[[[256.0, 128.0, 32.0, 384.0], [128.0, -256.0, 0.0, 288.0]], [[256.0, 128.0], [64.0, 256.0]],
            'torch.float8_e4m3fn']], [[[[64.0, 32.0, 32.0, 384.0], [128.0, -256.0, 0.0, 144.0]], [[64.0, 128.0]],
            'torch.float8_e4m3fn']], [[[[0.0, 0.0, 128.0, -256.0]], [[1.0, 128.0]], 'torch.float8_e4m3fn']],
            [[[[16384.0, 8192.0, 4096.0, 49152.0], [16384.0, -32768.0, 0.0, 8192.0]], [[16384.0], [8192.0]],
            'torch.float8_e5m2']]],
        "The blocks run down the columns instead of along the rows.": [
            [[[[128.0, 32.0, 256.0, 384.0], [256.0, -256.0, 0.0, 144.0]], [[0.0078125, 0.015625, 0.0009765625,
            0.0078125]], 'torch.float8_e4m3fn']], [], [], []],
        "The scales are not powers of two.": [
            [[[[448.0, 224.0, 36.0, 448.0], [224.0, -448.0, 0.0, 448.0]], [[0.00223214296, 0.00669642817],
            [0.00892857183, 0.00245535723]], 'torch.float8_e4m3fn']], [[[[112.0, 56.0, 36.0, 448.0], [224.0, -448.0,
            0.0, 160.0]], [[0.00892857183, 0.00669642817]], 'torch.float8_e4m3fn']], [[[[0.0, 0.0, 224.0, -448.0]],
            [[1.0, 0.00446428591]], 'torch.float8_e4m3fn']], [[[[20480.0, 10240.0, 5120.0, 57344.0], [28672.0,
            -57344.0, 0.0, 16384.0]], [[5.23158451e-05], [6.97544674e-05]], 'torch.float8_e5m2']]],
        "448 is E4M3's largest number. Which one has `dtype`?": [
            [], [], [], [[[[128.0, 64.0, 32.0, 384.0], [128.0, -256.0, 0.0, 64.0]], [[0.0078125], [0.015625]],
            'torch.float8_e5m2']]],
    })
check.ranks(
    blocks_pair, ranks=1, cases=[{"seed": 0, "role": "input"}, {"seed": 0, "role": "weight"}],
    expected=[
        [[[128, 2], [-0.5, -0.5625, -0.8125], [256, 1], [-0.46875, -0.5, -0.8125]]], [[[1, 2], [-0.5, -0.5, -0.75],
        [2, 1], [-0.5, -0.5, -0.75]]]],
    hints={
        "The scales of the transpose run along its columns. Its GEMM sums over its rows' elements, 128 of "
        "which share a scale.": [
            [[[128, 2], [-0.5, -0.5625, -0.8125], [2, 128], [-0.5, -0.5625, -0.8125]]], []],
        "The transpose is rounded from an already rounded matrix.": [
            [[[128, 2], [-0.5, -0.5625, -0.8125], [256, 1], [-0.5, -0.5, -0.8125]]], []],
        "A weight has square blocks.": [
            [], [[[128, 2], [-0.5, -0.5625, -0.8125], [256, 1], [-0.46875, -0.5, -0.8125]]]],
        "Only a weight has square blocks. Along which dimension does an input's block run?": [
            [[[1, 2], [-0.5, -0.5, -0.75], [2, 1], [-0.5, -0.5, -0.75]]], []],
    })
### BEGIN HIDDEN TESTS
import torch


TYPES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


def by_block(x, dtype, rows, columns):
    data, inverse = torch.zeros_like(x), torch.ones(len(x) // rows, len(x[0]) // columns)
    largest = torch.finfo(dtype).max
    for i in range(0, len(x), rows):
        for j in range(0, len(x[0]), columns):
            block, scale = x[i:i + rows, j:j + columns], 2.0**-60
            while block.abs().max() and block.abs().max() * scale * 2 <= largest:
                scale *= 2
            scale = scale if block.abs().max() else 1.0
            inverse[i // rows, j // columns] = 1 / scale
            data[i:i + rows, j:j + columns] = (block * scale).to(dtype).float()
    return data, inverse


def expected_blocks(ranks, matrix, rows, columns, format):
    data, inverse = by_block(torch.tensor(matrix), TYPES[format], rows, columns)
    return [[data.numpy(), inverse.numpy(), f"torch.{format}"]]


def expected_pair(ranks, seed, role):
    x = (0.37 * torch.arange(128 * 256) + seed).sin().view(128, 256)
    x[3, 5] = 30000.0
    found, rows = [], 128 if role == "weight" else 1
    for matrix in (x, x.t()):
        data, inverse = by_block(matrix, torch.float8_e4m3fn, rows, 128)
        values = data * inverse.repeat_interleave(rows, 0).repeat_interleave(128, 1)
        values = values if len(values) == 128 else values.t()
        found += [list(inverse.shape), [float(values[3, 6]), float(values[4, 5]), float(values[4, 6])]]
    return [found]


drawn = check.draw(3, rows=[1, 2, 4], columns=[2, 4, 8], format=["float8_e4m3fn", "float8_e5m2"], matrix=lambda dice: [
    [dice.uniform(-1, 1) * 2.0**dice.randint(-9, 9) for _ in range(16)] for _ in range(8)])
drawn += [{"matrix": [[0.0] * 16] * 4 + [[458752.03125] * 16] * 4, "rows": 4, "columns": 8, "format": "float8_e4m3fn"}]
check.ranks(blocks_of, ranks=1, expected=expected_blocks, cases=drawn)
check.ranks(blocks_pair, ranks=1, expected=expected_pair, cases=check.draw(1, seed=check.between(1, 99), role=["input"])
            + check.draw(1, seed=check.between(1, 99), role=["grad"]))
### END HIDDEN TESTS

# %% [raw] mutant="blocks" hint="A block of zeros needs a scale"
# -    scales = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponents), 1.0)
# +    scales = torch.finfo(dtype).max / amax
# +    scales = torch.exp2(torch.floor(torch.log2(scales)))

# %% [raw] mutant="blocks" hint="one scale for the whole matrix"
# -    amax = tiles.abs().amax((1, 3), keepdim=True)
# +    amax = tiles.abs().amax((1, 3), keepdim=True)
# +    amax = torch.full_like(amax, amax.max())

# %% [raw] mutant="blocks" hint="These are the scales"
# -    return (tiles * scales).to(dtype).view(m, k), scales[:, 0, :, 0].reciprocal()
# +    return (tiles * scales).to(dtype).view(m, k), scales[:, 0, :, 0]

# %% [raw] mutant="blocks" hint="down the columns"
# -    m, k = x.shape
# +    m, k = x.shape
# +    rows, columns = columns, rows

# %% [raw] mutant="blocks" hint="not powers of two"
# -    scales = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponents), 1.0)
# +    scales = torch.where(amax > 0, torch.finfo(dtype).max / amax, 1.0)

# %% [raw] mutant="blocks" hint="448 is E4M3's largest number"
# -    exponents = torch.frexp(torch.finfo(dtype).max / amax).exponent - 1
# +    exponents = torch.frexp(448.0 / amax).exponent - 1

# %% [raw] mutant="blocks" hint="scales of the transpose run along"
# -        return quantize_blocks(x, dtype, 1, 128), quantize_blocks(x.t(), dtype, 1, 128)
# +        data, inverse = quantize_blocks(x, dtype, 1, 128)
# +        return (data, inverse), (data.t().contiguous(), inverse.t().contiguous())

# %% [raw] mutant="blocks" hint="rounded from an already rounded"
# -        return quantize_blocks(x, dtype, 1, 128), quantize_blocks(x.t(), dtype, 1, 128)
# +        matrix = quantize_blocks(x, dtype, 1, 128)
# +        return matrix, quantize_blocks(restore(matrix).t(), dtype, 1, 128)

# %% [raw] mutant="blocks" hint="A weight has square blocks"
# -        if role == "weight":
# +        if role == "none":

# %% [raw] mutant="blocks" hint="Only a weight has square blocks"
# -        if role == "weight":
# +        if role:

# %% [markdown]
# One outlier is enough to show what blocks are for. Between one scale per tensor and one per block lies **rowwise
# scaling**, with one scale per row of each operand, or blocks of 1 x k. torchao trains with it, and
# `torch._scaled_mm` supports it: a row's scale is the same for the whole sum, so the GEMM applies it once, to its result.

# %% tags=["explore"]
import importlib

from mytrainer import blocks

importlib.reload(blocks)  # in case you have changed the file
torch.manual_seed(0)
x = torch.randn(256, 256)
x[3, 5] = 1e5
normal = x.abs() < 1e3
for rows, columns in ((256, 256), (128, 128), (1, 256), (1, 128)):
    matrix = blocks.quantize_blocks(x, torch.float8_e4m3fn, rows, columns)
    error = (blocks.restore(matrix) - x)[normal].norm() / x[normal].norm()
    print(f"{rows:3} x {columns:3}: {matrix[1].numel():4} scales, error of the other values "
          f"{result(f'{100 * error:.1f}%')}")

# %% [markdown]
# ### Exercise 7: shared exponents
#
# Blackwell GPUs read block scales in hardware, in the **microscaling** (MX) formats ([OCP,
# 2023](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)). MXFP8 has one scale per
# 32 values of a row. The scale is a single byte in the format **E8M0**: no sign, no mantissa, only an exponent $e$
# between $-127$ and 127. An element $d$ with the shared exponent $e$ has the value $d \cdot 2^e$: here, multiplying by
# the scale gives the value back.
#
# Write `mytrainer/mx.py`, the recipe of `--fp8-recipe mxfp8`. Choose the smallest exponent for which no element of the
# block saturates, as Transformer Engine does. The OCP's MX specification subtracts 8 from the exponent of the amax
# instead. With that rule, the largest elements saturate if the amax is more than 1.75 times a power of two, because E4M3
# ends at $448 = 1.75 \cdot 2^8$. A block of zeros gets the exponent $-127$. Compute the exponents exactly, as in
# Exercise 5.
#
# `MX.pair` has the same task as before: the blocks of both operands run along the summed dimension. What does that mean
# for a weight now?

# %% answer="mx"
%%writefile mytrainer/mx.py
"""The recipe with an exponent that 32 elements of a row share."""

import torch


def mxfp8(x, dtype):
    """Round a matrix to MXFP8.

    Args:
        x: [m, k]; k is divisible by 32.
        dtype: E4M3 or E5M2.

    Returns the float8 elements [m, k], and the shared exponents [m, k / 32], int32.
    """
    ### BEGIN SOLUTION
    m, k = x.shape
    blocks = x.float().reshape(m, k // 32, 32)
    amax = blocks.abs().amax(2, keepdim=True)
    fraction, exponents = torch.frexp(amax / torch.finfo(dtype).max)
    exponents = exponents - (fraction == 0.5).int()  # the largest number times a power of two fits exactly
    exponents = torch.where(amax > 0, exponents, -127).clamp(-127, 127)
    return torch.ldexp(blocks, -exponents).to(dtype).view(m, k), exponents[:, :, 0]
    ### END SOLUTION


def restore(matrix):
    """Return the values of a quantized matrix, float64."""
    data, exponents = matrix
    return torch.ldexp(data.double(), exponents.repeat_interleave(32, 1))


class MX:
    """MXFP8: a quantized matrix is a tuple of its float8 elements, and its shared exponents."""

    def pair(self, x, dtype, role):
        """Quantize a matrix [m, k] for GEMMs that sum over its columns, and for those over its rows.

        Args:
            x: the matrix; m and k are multiples of 32.
            dtype: E4M3 or E5M2.
            role: "input", "weight", or "grad".

        Returns the quantized matrix [m, k], and its quantized transpose [k, m].
        """
        ### BEGIN SOLUTION
        return mxfp8(x, dtype), mxfp8(x.t(), dtype)
        ### END SOLUTION

    def multiply(self, a, b, dtype):
        """Return a @ b.T for two quantized matrices [m, k] and [n, k]; Blackwell's GEMMs read the exponents."""
        return (restore(a) @ restore(b).t()).to(dtype)

# %% tags=["driver"]
def mx_of(blocks, format):
    """Return the elements and shared exponents of a matrix with one row, given by its blocks' first values."""
    from mytrainer.mx import mxfp8

    x = torch.zeros(1, 32 * len(blocks))
    for number, values in enumerate(blocks):
        x[0, 32 * number:32 * number + len(values)] = torch.tensor(values)
    data, exponents = mxfp8(x, getattr(torch, format))
    shown = [data.float()[0, 32 * number:32 * number + len(values)].tolist() for number, values in enumerate(blocks)]
    return [shown, exponents.tolist(), str(data.dtype)]


def mx_pair(seed, role):
    """Quantize a matrix in both directions, and return the shapes of the exponents and some restored values."""
    from mytrainer.mx import MX

    x, found = (0.37 * torch.arange(128 * 256) + seed).sin().view(128, 256), []
    x[3, 5] = 30000.0
    for data, exponents in MX().pair(x, torch.float8_e4m3fn, role):
        values = torch.ldexp(data.float(), exponents.repeat_interleave(data.shape[1] // exponents.shape[1], 1)
                             .repeat_interleave(len(data) // len(exponents), 0))
        values = values if len(values) == 128 else values.t()  # of the transpose
        found += [list(exponents.shape), [values[3, 6], values[4, 5], values[4, 6]]]
    return found

# %% check="mx" points=4
some = [[1.0, 0.3], [448.0, 2.0], [449.0, 2.0], [0.0, 0.0], [-900.0, 0.01], [458752.03125, 2048.0]]
check.ranks(
    mx_of, ranks=1, cases=[(some, "float8_e4m3fn"), (some, "float8_e5m2")],
    expected=[
        [[[[256.0, 80.0], [448.0, 2.0], [224.0, 1.0], [0.0, 0.0], [-224.0, 0.001953125], [224.0, 1.0]], [[-8, 0, 1,
        -127, 2, 11]], 'torch.float8_e4m3fn']], [[[[32768.0, 10240.0], [57344.0, 256.0], [28672.0, 128.0], [0.0, 0.0],
        [-28672.0, 0.3125], [28672.0, 128.0]], [[-15, -7, -6, -127, -5, 4]], 'torch.float8_e5m2']]],
    hints={
        "The exponent is one too small: the largest elements saturate.": [
            [[[[256.0, 80.0], [448.0, 2.0], [448.0, 2.0], [0.0, 0.0], [-448.0, 0.005859375], [448.0, 2.0]], [[-8, 0,
            0, -127, 1, 10]], 'torch.float8_e4m3fn']], [[[[32768.0, 10240.0], [57344.0, 256.0], [57344.0, 256.0],
            [0.0, 0.0], [-57344.0, 0.625], [57344.0, 256.0]], [[-15, -7, -7, -127, -6, 3]], 'torch.float8_e5m2']]],
        "The exponent always leaves a power of two unused. 448 fits exactly.": [
            [[[[256.0, 80.0], [224.0, 1.0], [224.0, 1.0], [0.0, 0.0], [-224.0, 0.001953125], [224.0, 1.0]], [[-8, 1,
            1, -127, 2, 11]], 'torch.float8_e4m3fn']], [[[[32768.0, 10240.0], [28672.0, 128.0], [28672.0, 128.0],
            [0.0, 0.0], [-28672.0, 0.3125], [28672.0, 128.0]], [[-15, -6, -6, -127, -5, 4]], 'torch.float8_e5m2']]],
        "torch.log2 has rounded: 458752.03125 is more than 448 x 2^10, and needs the exponent 11.": [
            [[[[256.0, 80.0], [448.0, 2.0], [224.0, 1.0], [0.0, 0.0], [-224.0, 0.001953125], [448.0, 2.0]], [[-8, 0,
            1, -127, 2, 10]], 'torch.float8_e4m3fn']], []],
        "The sign of the exponents is wrong: an element times 2^e is the value.": [
            [[[[256.0, 80.0], [448.0, 2.0], [224.0, 1.0], [0.0, 0.0], [-224.0, 0.001953125], [224.0, 1.0]], [[8, 0,
            -1, 127, -2, -11]], 'torch.float8_e4m3fn']], [[[[32768.0, 10240.0], [57344.0, 256.0], [28672.0, 128.0],
            [0.0, 0.0], [-28672.0, 0.3125], [28672.0, 128.0]], [[15, 7, 6, 127, 5, -4]], 'torch.float8_e5m2']]],
        "448 is E4M3's largest number. Which one has `dtype`?": [
            [], [[[[256.0, 80.0], [448.0, 2.0], [224.0, 1.0], [0.0, 0.0], [-224.0, 0.00244140625], [224.0, 1.0]],
            [[-8, 0, 1, -127, 2, 11]], 'torch.float8_e5m2']]],
    })
check.ranks(mx_pair, ranks=1, cases=[{"seed": 0, "role": "input"}, {"seed": 0, "role": "weight"}],
    expected=[
        [[[128, 8], [-0.5, -0.5625, -0.8125], [256, 4], [-0.46875, -0.5, -0.8125]]], [[[128, 8], [-0.5, -0.5625,
        -0.8125], [256, 4], [-0.46875, -0.5, -0.8125]]]],
    hints={
        "The exponents of the transpose run along its columns. Its GEMM sums over its rows' elements, 32 of "
        "which share one.": [
            [[[128, 8], [-0.5, -0.5625, -0.8125], [8, 128], [-0.5, -0.5625, -0.8125]]], []],
        "MXFP8 has no square blocks, so a weight is rounded in each direction, too.": [
            [], [[[128, 8], [-0.5, -0.5625, -0.8125], [8, 128], [-0.5, -0.5625, -0.8125]]]],
        "The transpose is rounded from an already rounded matrix.": [
            [[[128, 8], [-0.5, -0.5625, -0.8125], [256, 4], [-0.5, -0.5, -0.8125]]], [[[128, 8], [-0.5, -0.5625,
            -0.8125], [256, 4], [-0.5, -0.5, -0.8125]]]],
    })
### BEGIN HIDDEN TESTS
import math

import torch


TYPES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


def shared(values, largest):
    amax, e = max(map(abs, values)), -127
    while amax and amax > largest * 2.0**e:
        e += 1
    return e


def expected_mx(ranks, blocks, format):
    dtype = TYPES[format]
    exponents = [shared(values, torch.finfo(dtype).max) for values in blocks]
    shown = [[torch.tensor(math.ldexp(one, -e)).to(dtype).float().item() for one in values]
             for values, e in zip(blocks, exponents)]
    return [[shown, [exponents], f"torch.{format}"]]


def expected_directions(ranks, seed, role):
    x = (0.37 * torch.arange(128 * 256) + seed).sin().view(128, 256)
    x[3, 5] = 30000.0

    def kept(row, column, along):
        block = x[row, column // 32 * 32:][:32] if along else x[row // 32 * 32:, column][:32]
        e = shared(block.tolist(), 448.0)
        return math.ldexp(torch.tensor(math.ldexp(float(x[row, column]), -e)).to(torch.float8_e4m3fn).item(), e)

    return [[size for shape, along in (([128, 8], True), ([256, 4], False))
             for size in (shape, [kept(row, column, along) for row, column in ((3, 6), (4, 5), (4, 6))])]]


drawn = check.draw(3, format=["float8_e4m3fn", "float8_e5m2"], blocks=lambda dice: [
    [dice.choice([-1, 1]) * dice.choice([dice.uniform(0.01, 9), 448.0, 448.0 + 2.0**-15, 1.75, 2.0])
     * 2.0**dice.randint(-20, 20)]
    + [dice.uniform(-0.01, 0.01) for _ in range(5)] for _ in range(8)])
check.ranks(mx_of, ranks=1, cases=drawn, expected=expected_mx)
check.ranks(mx_pair, ranks=1, expected=expected_directions, cases=check.draw(1, seed=check.between(1, 99), role=["weight"]))
### END HIDDEN TESTS

# %% [raw] mutant="mx" hint="the largest elements saturate"
# -    fraction, exponents = torch.frexp(amax / torch.finfo(dtype).max)
# +    largest = torch.finfo(dtype).max
# +    exponents = torch.frexp(amax).exponent - torch.frexp(torch.tensor(largest)).exponent
# -    return torch.ldexp(blocks, -exponents).to(dtype).view(m, k), exponents[:, :, 0]
# +    return torch.ldexp(blocks, -exponents).clamp(-largest, largest).to(dtype).view(m, k), exponents[:, :, 0]
# -    exponents = exponents - (fraction == 0.5).int()  # the largest number times a power of two fits exactly

# %% [raw] mutant="mx" hint="leaves a power of two unused"
# -    exponents = exponents - (fraction == 0.5).int()  # the largest number times a power of two fits exactly

# %% [raw] mutant="mx" hint="torch.log2 has rounded"
# -    fraction, exponents = torch.frexp(amax / torch.finfo(dtype).max)
# +    exponents = torch.ceil(torch.log2(amax / torch.finfo(dtype).max)).clamp(min=-127).int()
# -    exponents = exponents - (fraction == 0.5).int()  # the largest number times a power of two fits exactly

# %% [raw] mutant="mx" hint="The sign of the exponents is wrong"
# -    return torch.ldexp(blocks, -exponents).to(dtype).view(m, k), exponents[:, :, 0]
# +    return torch.ldexp(blocks, -exponents).to(dtype).view(m, k), -exponents[:, :, 0]

# %% [raw] mutant="mx" hint="448 is E4M3's largest number"
# -    fraction, exponents = torch.frexp(amax / torch.finfo(dtype).max)
# +    fraction, exponents = torch.frexp(amax / 448.0)

# %% [raw] mutant="mx" hint="exponents of the transpose run along"
# -        return mxfp8(x, dtype), mxfp8(x.t(), dtype)
# +        data, exponents = mxfp8(x, dtype)
# +        return (data, exponents), (data.t().contiguous(), exponents.t().contiguous())

# %% [raw] mutant="mx" hint="no square blocks"
# -        return mxfp8(x, dtype), mxfp8(x.t(), dtype)
# +        data, exponents = mxfp8(x, dtype)
# +        same = data.t().contiguous(), exponents.t().contiguous()
# +        return (data, exponents), same if role == "weight" else mxfp8(x.t(), dtype)

# %% [raw] mutant="mx" hint="rounded from an already rounded"
# -        return mxfp8(x, dtype), mxfp8(x.t(), dtype)
# +        matrix = mxfp8(x, dtype)
# +        return matrix, mxfp8(restore(matrix).t(), dtype)

# %% [markdown]
# Now your layer runs with all of your recipes, and with rowwise scaling, which needs no more than your
# `quantize_blocks`. The input has the outlier in one token. Which of the recipes protect the *other* tokens' outputs?
# The gradient of the weight sums over the tokens, so which of its columns does the outlier reach? Decide before you run
# the cell.

# %% tags=["explore"]
from mytrainer import fp8, mx


class Rowwise(blocks.Blocks):
    """One scale per row of each operand."""

    def pair(self, x, dtype, role):
        return [blocks.quantize_blocks(one, dtype, 1, one.shape[1]) for one in (x, x.t())]


fp8, mx = importlib.reload(fp8), importlib.reload(mx)
torch.manual_seed(1)  # not the seed of x, whose numbers the weight would have
weight, grad = torch.randn(256, 256) / 16, torch.randn(256, 256)
others = torch.arange(256) != 3  # tokens
usual = torch.arange(256) != 5  # inputs
print("one scale per              other tokens' outputs   other columns of dw")
for name, chosen, inputs in (
        ("tensor, but no outlier", fp8.PerTensor(), x.where(normal, 1.0)), ("tensor", fp8.PerTensor(), x),
        ("row", Rowwise(), x), ("1 x 128 and 128 x 128", blocks.Blocks(), x), ("1 x 32", mx.MX(), x)):
    layer = fp8.Linear(256, 256, bias=False)
    layer.recipe = chosen
    with torch.no_grad():
        layer.weight.copy_(weight)
    y = layer(inputs.clone().requires_grad_())
    y.backward(grad)
    exact_y, exact_dw = (inputs @ weight.t())[others], (grad.t() @ inputs)[:, usual]
    errors = [(found - exact).norm() / exact.norm() for found, exact in (
        (y.detach()[others], exact_y), (layer.weight.grad[:, usual], exact_dw))]
    print(f"{name:24} {100 * errors[0]:22.1f}% {100 * errors[1]:20.1f}%")

# %% [markdown]
# With one scale per tensor, both errors are far above those of a matrix without the outlier. With any smaller block, they
# are just as small as without it: the outlier stays in its token in the forward pass and in its column in the backward
# pass, because the scales of a transposed operand are those of the other dimension. The gradient of the weight is less
# accurate than the output in every row, because one of its operands is in E5M2, with two mantissa bits.

# %% [markdown]
# ## Gather the parameters in FP8
#
# So far, FP8 has made GEMMs faster. It can shorten communication, too. If data-parallel ranks shard the optimizer state
# (ZeRO, or PyTorch's FSDP), each rank updates its part of every weight, and an **all-gather** distributes the result. The
# layers will round these weights to FP8 anyway. If each rank rounds its own part *before* the all-gather, the other ranks
# receive the same FP8 elements in fewer bytes.
#
# But all parts of a weight must have one scale, and no rank has the whole weight. So the ranks first take the maximum of
# their amaxes, as in Exercise 4. With delayed scaling, the scale is known beforehand. Block scales are harder: a rank's
# part is rarely made of whole blocks, so this course's trainer refuses them.
#
# Sixteen H100s in two nodes gather a weight, with one scale per tensor. Guess three ratios of FP8 to BF16: the bytes of
# the all-gather, the time for a weight of 12,288 x 49,152 from the amax to the last byte, and the time for one of 1,024
# x 1,024.

# %% answer="guess-gather"
### BEGIN SOLUTION
gather_bytes, gather_large, gather_small = 0.5, 0.55, 1.5
### END SOLUTION

# %% tags=["explore"]
import time
from functools import partial

import virtualgpu


def gather_weight(elements, in_fp8):
    """Return the bytes of the gathered weight, and the virtual seconds that gathering takes."""
    dist.init_process_group("nccl")
    part = torch.randn(elements // dist.get_world_size(), dtype=torch.bfloat16, device="cuda")
    for _ in range(2):  # the first time creates NCCL's communicator
        torch.cuda.synchronize()
        begin = time.perf_counter()
        rounded = part
        if in_fp8:
            low, high = torch.aminmax(part)
            amax = torch.maximum(-low, high)
            dist.all_reduce(amax, dist.ReduceOp.MAX)
            rounded = (part * (448 / amax)).to(torch.float8_e4m3fn).view(torch.uint8)
        whole = torch.empty(elements, dtype=rounded.dtype, device="cuda")
        dist.all_gather_single(whole, rounded)
        torch.cuda.synchronize()
    return whole.nbytes, time.perf_counter() - begin


for guess, elements in ((gather_large, 12288 * 49152), (gather_small, 1024 * 1024)):
    (in_bf16,), (in_fp8,) = (virtualgpu.run(partial(gather_weight, elements, in_fp8), "h100:8", 2, present=[0])
                             for in_fp8 in (False, True))
    (bf16_bytes, bf16_seconds), (fp8_bytes, fp8_seconds) = in_bf16.value, in_fp8.value
    print(f"{elements:,} elements: BF16 {bf16_bytes:,} bytes in {1e6 * bf16_seconds:,.0f} us; FP8 {fp8_bytes:,} bytes in "
          f"{1e6 * fp8_seconds:,.0f} us (virtual H100s)")
    check.compare("of the time", guess, fp8_seconds / bf16_seconds)
check.compare("of the bytes", gather_bytes, fp8_bytes / bf16_bytes)

# %% [markdown]
# For the large weight, half of the bytes take little more than half of the time; the rest is the amax, the cast, and one
# more collective. The all-gather of the small weight is latency-bound, so fewer bytes hardly help, and the all-reduce of
# its amax takes as long again. That is why libraries do not treat weights one by one. Megatron-LM gathers buckets of many
# weights, and after the optimizer step, torchao's
# [`precompute_float8_dynamic_scale_for_fsdp`](https://docs.pytorch.org/ao/stable/generated/torchao.float8.precompute_float8_dynamic_scale_for_fsdp.html)
# finds the scales of all weights with a single all-reduce, like your `share_amaxes`. With Llama 3 70B on 128 H100s,
# [PyTorch's developers (2024)](https://dev-discuss.pytorch.org/t/enabling-float8-all-gather-in-fsdp2/2359) measured FP8 training
# 1.50 times as fast as BF16, and attribute a fifth of the gain to the all-gather.
#
# | library | setting |
# |---|---|
# | Megatron-LM, and this course's trainer | `--use-distributed-optimizer --fp8-param-gather` |
# | torchao with FSDP2 | `Float8LinearConfig(enable_fsdp_float8_all_gather=True)` |
# | Transformer Engine | [`cast_master_weights_to_fp8`](https://github.com/NVIDIA/TransformerEngine/pull/1544), for optimizers that shard their state |
#
# ## Below eight bits
#
# A B200 multiplies 4-bit numbers at twice its FP8 rate. **E2M1** has only the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, and
# 6, so scales do most of the work. **NVFP4** has three levels: E2M1 elements, an E4M3 scale for each 16 of them in a
# row, and one FP32 scale for the tensor, which brings the block scales into E4M3's range. In [NVIDIA's paper
# (2025)](https://arxiv.org/abs/2509.25149), a 12-billion-parameter model trained on 10 trillion tokens with it reached
# an MMLU-Pro accuracy of 62.58%, compared with 62.62% in FP8. It took more than a format: random Hadamard transforms
# that spread outliers, 16 x 16 blocks for weights, stochastic rounding of gradients, and some layers in BF16.
#
# ### Exercise 8: NVFP4
#
# Write `nvfp4`. It quantizes a matrix, and returns the float32 values that the quantized matrix stands for:
#
# 1. The tensor's scale is $t = \text{amax} / (448 \cdot 6)$.
# 2. The scale of each block of 16 in a row is $b = \text{amax of the block} / 6 / t$, rounded to E4M3.
# 3. Each element is $x / (b\,t)$, rounded to E2M1. Its value is the rounded element times $b\,t$. In a block whose $b$
#    is 0, all values are 0.
#
# Use your `round_to`. The cell after the check compares the error with that of MXFP4, which has E2M1 elements, blocks
# of 32, and power-of-two scales.

# %% answer="nvfp4"
def nvfp4(x):
    """Return the float32 values that NVFP4 keeps of a matrix.

    Args:
        x: [m, k], float32, not zero; k is divisible by 16.
    """
    ### BEGIN SOLUTION
    tensor_scale = x.abs().max() / (448.0 * 6.0)
    blocks = x.view(len(x), -1, 16)
    scale = round_to(blocks.abs().amax(2, keepdim=True) / 6.0 / tensor_scale, *E4M3) * tensor_scale
    values = round_to(blocks / torch.where(scale > 0, scale, 1.0), *E2M1) * scale
    return values.view_as(x)
    ### END SOLUTION

# %% tags=["driver"]
def nvfp4_of(rows):
    """Return the values that remain of a matrix."""
    return nvfp4(torch.tensor(rows))

# %% check="nvfp4" points=3
some = [[0.1 * (number + 1) for number in range(16)] + [30.0] + [0.5] * 15,
        [0.0] * 16 + [0.3 * (number + 1) for number in range(16)]]
check.function(
    nvfp4_of, cases=[(some,)], rel=1e-4,
        expected=[[[0.133928567, 0.133928567, 0.267857134, 0.401785702, 0.535714269, 0.535714269, 0.803571403,
        0.803571403, 0.803571403, 1.07142854, 1.07142854, 1.07142854, 1.07142854, 1.60714281, 1.60714281,
        1.60714281, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.401785731,
        0.401785731, 0.803571463, 1.20535719, 1.60714293, 1.60714293, 2.41071439, 2.41071439, 2.41071439,
        3.21428585, 3.21428585, 3.21428585, 3.21428585, 4.82142878, 4.82142878, 4.82142878]]],
    hints={
        "The block scales are not rounded to E4M3.": [
            [[0.13333334, 0.266666681, 0.266666681, 0.400000036, 0.533333361, 0.533333361, 0.800000072,
            0.800000072, 0.800000072, 1.06666672, 1.06666672, 1.06666672, 1.06666672, 1.60000014, 1.60000014,
            1.60000014, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.400000006,
            0.800000012, 0.800000012, 1.20000005, 1.60000002, 1.60000002, 2.4000001, 2.4000001, 2.4000001,
            3.20000005, 3.20000005, 3.20000005, 3.20000005, 4.80000019, 4.80000019, 4.80000019]]],
        "There is one scale for the whole row. Which 16 values share one?": [
            [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.5, 2.5, 2.5, 2.5, 30.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.401785731,
            0.401785731, 0.803571463, 1.20535719, 1.60714293, 1.60714293, 2.41071439, 2.41071439, 2.41071439,
            3.21428585, 3.21428585, 3.21428585, 3.21428585, 4.82142878, 4.82142878, 4.82142878]]],
        "These are the elements. Multiply them by their scales.": [
            [[0.5, 0.5, 1.0, 1.5, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0, 6.0, 6.0, 6.0, 6.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0,
            1.5, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0, 6.0, 6.0, 6.0]]],
        "Each row has a tensor scale of its own. The tensor's scale is one number for all rows.": [
            [[0.133928567, 0.133928567, 0.267857134, 0.401785702, 0.535714269, 0.535714269, 0.803571403,
            0.803571403, 0.803571403, 1.07142854, 1.07142854, 1.07142854, 1.07142854, 1.60714281, 1.60714281,
            1.60714281, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.400000036,
            0.400000036, 0.800000072, 1.20000005, 1.60000014, 1.60000014, 2.4000001, 2.4000001, 2.4000001,
            3.20000029, 3.20000029, 3.20000029, 3.20000029, 4.80000019, 4.80000019, 4.80000019]]],
        "A block of zeros is divided by its scale of 0.": [
            [[0.133928567, 0.133928567, 0.267857134, 0.401785702, 0.535714269, 0.535714269, 0.803571403,
            0.803571403, 0.803571403, 1.07142854, 1.07142854, 1.07142854, 1.07142854, 1.60714281, 1.60714281,
            1.60714281, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [1e999 - 1e999] * 16 + [0.401785731, 0.401785731, 0.803571463, 1.20535719, 1.60714293, 1.60714293,
            2.41071439, 2.41071439, 2.41071439, 3.21428585, 3.21428585, 3.21428585, 3.21428585, 4.82142878,
            4.82142878, 4.82142878]]],
    })
### BEGIN HIDDEN TESTS
import numpy as np
import torch


def to_grid(x, mantissa, smallest, largest):
    x = np.clip(x, -largest, largest)
    step = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, smallest) - mantissa)
    return np.rint(x / step) * step


def four_bits(rows):
    x = np.array(rows)
    t = np.abs(x).max() / 2688
    blocks = x.reshape(len(x), -1, 16)
    scale = torch.tensor(np.abs(blocks).max(2, keepdims=True) / 6 / t).float().to(torch.float8_e4m3fn)
    scale = scale.double().numpy() * t
    return (to_grid(blocks / np.where(scale, scale, 1), 1, 0, 6.0) * scale).reshape(x.shape)


# Values on a coarse grid, far from the ties of float32 and float64.
check.function(nvfp4_of, rel=1e-3, expected=four_bits, cases=[(case["rows"],) for case in check.draw(
    3, rows=lambda dice: [[dice.choice([-1, 1]) * dice.uniform(0.5, 1) * 2.0**dice.randint(-3, 3) for _ in range(48)]
                          for _ in range(2)])])
### END HIDDEN TESTS

# %% [raw] mutant="nvfp4" hint="not rounded to E4M3"
# -    scale = round_to(blocks.abs().amax(2, keepdim=True) / 6.0 / tensor_scale, *E4M3) * tensor_scale
# +    scale = blocks.abs().amax(2, keepdim=True) / 6.0

# %% [raw] mutant="nvfp4" hint="one scale for the whole row"
# -    blocks = x.view(len(x), -1, 16)
# +    blocks = x.view(len(x), 1, -1)

# %% [raw] mutant="nvfp4" hint="one number for all rows"
# -    tensor_scale = x.abs().max() / (448.0 * 6.0)
# +    tensor_scale = x.abs().amax(1)[:, None, None] / (448.0 * 6.0)

# %% [raw] mutant="nvfp4" hint="divided by its scale of 0"
# -    values = round_to(blocks / torch.where(scale > 0, scale, 1.0), *E2M1) * scale
# +    values = round_to(blocks / scale, *E2M1) * scale

# %% [raw] mutant="nvfp4" hint="Multiply them by their scales"
# -    values = round_to(blocks / torch.where(scale > 0, scale, 1.0), *E2M1) * scale
# +    values = round_to(blocks / torch.where(scale > 0, scale, 1.0), *E2M1)

# %% tags=["explore"]
torch.manual_seed(0)
x = torch.randn(256, 256)
blocks = x.view(256, -1, 32)
scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(2, keepdim=True) / 6.0)))
values = {"NVFP4": nvfp4(x), "MXFP4": (round_to(blocks / scale, *E2M1) * scale).view_as(x)}
for name, kept in values.items():
    print(f"{name}: relative error {result(f'{100 * ((kept - x).norm() / x.norm()):.1f}%')}")

# %% [markdown]
# Smaller blocks, and scales with a mantissa, reduce the error noticeably. It is still several times the 2.6% or so of
# E4M3 for the same matrix.

# %% [markdown]
# ## The same run in four frameworks
#
# Now you know what each setting of an FP8 run means. Here is one run in four frameworks: BF16 with hybrid FP8 and
# delayed scaling over 16 steps. You run the first two, and read the others. First, this course's trainer, whose flags
# are Megatron-LM's:
#
# ```bash
# --bf16 --fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 16 --fp8-amax-compute-algo max --fp8-margin 0
# ```
#
# The next job trains a small GPT with them, in real FP8 arithmetic, on two nodes with two ranks each. The ranks share
# amaxes, as in Exercise 4, and round weights once per step, as in Exercise 5.

# %% tags=["explore"] short={"--train-iters 20": "--train-iters 2 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/dp_two_nodes.sh --train-iters 20 --log-interval 2 --eval-iters 0 --bf16 \
    --fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 16 --fp8-amax-compute-algo max

# %% tags=["explore"]
trained = jobs.wait()
print(logs.lines(trained.log, "lm loss")[-1])

# %% [markdown]
# And what does it save at full size? Here are twelve of GPT-3's layers on 8 virtual H100s. Before you run the cell,
# guess which recipe is the fastest, and whether FP8 needs more memory or less.

# %% tags=["explore"]
GPT = ("--device virtual:h100 --world-size 8 --gpus-per-node 8 --tensor-model-parallel-size 8 --sequence-parallel "
       "--num-layers 12 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 "
       "--use-flash-attn --recompute-activations --micro-batch-size 1 --global-batch-size 8 --bf16 "
       "--attention-dropout 0 --hidden-dropout 0 ")
costs.show(costs.of({"BF16": "", "FP8, delayed": "--fp8-format hybrid",
                     "FP8, current": "--fp8-format hybrid --fp8-recipe tensorwise",
                     "FP8, blocks": "--fp8-format e4m3 --fp8-recipe blockwise"}, GPT))

# %% [markdown]
# Delayed scaling is the fastest, because it finds amaxes without an extra pass over the data. FP8 needs *more* memory
# here: in addition to the BF16 weights, each GPU keeps FP8 copies of them and of their transposes for the micro-batches
# of a step.

# %% [markdown]
# Second, [Accelerate](https://huggingface.co/docs/accelerate/usage_guides/low_precision_training), Hugging Face's
# library for training loops. `prepare` swaps the layers for Transformer Engine's, as in Exercise 9, and runs the
# forward pass in `autocast`. Here the loop trains a small Llama, first in BF16 and then in FP8 with the settings above.
# Where Transformer Engine is not installed, `stand_in` lets its name import minite. The rest is what you would run on
# an H100, without `cpu=True`.

# %% tags=["explore"] short={"batches(30)": "batches(2)"}
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import TERecipeKwargs
from transformers import LlamaConfig, LlamaForCausalLM

from lablib import transformer_engine

transformer_engine.stand_in()
fp8 = TERecipeKwargs(fp8_format="HYBRID", amax_history_len=16, amax_compute_algo="max", margin=0)
for precision, handlers in (("bf16", []), ("fp8", [fp8])):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=1,
                                         num_attention_heads=4, num_key_value_heads=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    accelerator = Accelerator(mixed_precision=precision, cpu=True, kwargs_handlers=handlers)
    model, optimizer = accelerator.prepare(model, optimizer)
    for tokens in eight_bits.batches(30):
        loss = model(input_ids=tokens.t(), labels=tokens.t()).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    swapped = sum(isinstance(module, te.Linear) for module in model.modules())
    print(f"{precision}: {swapped} layers in FP8, final loss {result(f'{loss.item():.2f}')}")
    AcceleratorState._reset_state(reset_partial_state=True)  # the next Accelerator has another precision

# %% [markdown]
# [Lightning](https://lightning.ai/docs/fabric/stable/api/generated/lightning.fabric.plugins.precision.TransformerEnginePrecision.html):
#
# ```python
# from lightning.pytorch import Trainer
# from lightning.pytorch.plugins import TransformerEnginePrecision
# from transformer_engine.common.recipe import DelayedScaling, Format
#
# recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=16, amax_compute_algo="max", margin=0)
# fp8 = TransformerEnginePrecision(weights_dtype=torch.bfloat16, recipe=recipe, replace_layers=True)
# trainer = Trainer(plugins=fp8)
# ```
#
# In Lightning's current source, the class takes the same arguments, but passes them to a separate package,
# `pytorch-lightning-enterprise`.
#
# [NeMo](https://github.com/NVIDIA/NeMo/blob/v1.23.0/examples/nlp/language_modeling/conf/megatron_gpt_config.yaml), in
# its model's YAML file:
#
# ```yaml
# transformer_engine: True
# fp8: True
# fp8_hybrid: True                   # fp8_e4m3: True for E4M3 everywhere
# fp8_margin: 0
# fp8_amax_history_len: 16
# fp8_amax_compute_algo: max
# reduce_amax: True                  # Exercise 4
# ```
#
# NeMo 2.0 [moved these
# keys](https://docs.nvidia.com/nemo-framework/user-guide/latest/nemo-2.0/migration/precision.html) to a plugin:
# `nl.MegatronMixedPrecision(precision="bf16-mixed", fp8="hybrid", fp8_amax_history_len=16, ...)`.
#
# | setting | Megatron-LM | Accelerate | Lightning | NeMo |
# |---|---|---|---|---|
# | enable FP8 | `--fp8-format` | `mixed_precision="fp8"` | `plugins=TransformerEnginePrecision(...)` | `fp8: True` |
# | format | `--fp8-format hybrid` | `fp8_format="HYBRID"` | `fp8_format=Format.HYBRID` | `fp8_hybrid: True` |
# | history | `--fp8-amax-history-len 16` | `amax_history_len=16` | `amax_history_len=16` | `fp8_amax_history_len: 16` |
# | which amax | `--fp8-amax-compute-algo max` | `amax_compute_algo="max"` | `amax_compute_algo="max"` | `fp8_amax_compute_algo: max` |
# | margin | `--fp8-margin 0` | `margin=0` | `margin=0` | `fp8_margin: 0` |
# | type of the weights | `--bf16` | the model's | `weights_dtype=torch.bfloat16` | `trainer.precision: bf16` |
# | default history, amax | 1, most recent | 1,024, most recent | 1,024, maximum | 2.0: 1, most recent |
#
# The defaults differ, so set all of them when you move a run to another framework. Lightning's are those of Transformer
# Engine, and they are good: hybrid, a history of 1,024, the maximum, no margin. Change one only when a loss curve gives
# you a reason, and look at the scales first. If a run diverges, keep the first and the last layers in BF16
# (`--first-last-layers-bf16`), or compute the weights' gradients in BF16 (`--no-fp8-wgrad`). On Blackwell, prefer
# MXFP8.
#
# To *export* a model for inference, Transformer Engine can write its layers to
# [ONNX](https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/onnx/onnx_export.html), a file
# format for graphs of operations, with the FP8 scales as constants.
# [TensorRT](https://docs.nvidia.com/deeplearning/tensorrt/) compiles such a graph into an engine for one GPU model.

# %% [markdown]
# ## How accurate is FP8?
#
# | model | training | result | source |
# |---|---|---|---|
# | language models of up to 175B parameters | hybrid, per-tensor scales; simulated: tensors were rounded to FP8 values, and the GEMMs ran in 16 bits | matches 16-bit training with unchanged hyperparameters | [Micikevicius et al., 2022](https://arxiv.org/abs/2209.05433) |
# | DeepSeek-V3's two test models, 16B and 230B | E4M3, 1 x 128 and 128 x 128 blocks | loss within 0.25% of BF16's | [DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437) |
# | 12B hybrid Mamba-Transformer, 10T tokens | NVFP4 against FP8 | MMLU-Pro 62.58% against 62.62% | [NVIDIA, 2025](https://arxiv.org/abs/2509.25149) |
# | this lab's small model, 60 steps | delayed scaling against BF16 | the first cells of this lab | |
#
# None of these is a promise for your model: compare a few thousand steps with BF16 first.

# %% [markdown]
# ## Discuss
#
# 1. **Which layers?** Your model has linear layers of 4,096 x 4,096 with 8,192 tokens per micro-batch, and adapters of
#    4,096 x 16 beside each of them. Which do you run in FP8? What changes if you split the model over 8 tensor-parallel
#    ranks?
# 2. **A spike.** A run in FP8 with delayed scaling shows a loss spike after a change of the data. The BF16 run does
#    not. What would you look at first, and which two settings could have prevented it?
# 3. **FP16 had one scale.** FP8's range is narrower than FP16's. Why does FP16 training need loss scaling, while FP8
#    training with BF16 needs none?

# %% [markdown]
# ## What you have built
#
# `mytrainer/fp8.py` is a linear layer with three FP8 GEMMs. `lab mytrainer` tests it, and `code/my_trainer.py`,
# which runs your files, uses it with `--bf16 --fp8-format hybrid`. The recipe is one of yours:
#
# | `--fp8-recipe` | your files |
# |---|---|
# | `tensorwise` | `fp8.py` |
# | `delayed` | `fp8.py`, `delayed.py`, and on several ranks `amaxes.py` |
# | `blockwise` | `fp8.py` and `blocks.py` |
# | `mxfp8` | `fp8.py` and `mx.py` |
#
# See what they have brought on the map of your trainer:

# %% tags=["explore"] short={"!lab mytrainer": "!true"}
!lab mytrainer

# %% [markdown]
# This lab leaves no jobs behind.
#
# - A scale moves a tensor into a format's range, where the relative precision hardly depends on the magnitude.
# - The scale comes from an amax: of the tensor itself, of its history, or of a block. Ranks must agree on it.
# - FP8 nearly halves the time of large GEMMs but adds casts, so large layers gain, and small ones lose.
# - Blocks confine outliers, and scaling by a power of two is exact.
# - A model can be served from FP8 weights alone. Training keeps master weights.

# %% [markdown]
# ## Appendix: a whole model
#
# The rest of this lab is about FP8 layers that others wrote. You do not have to rewrite a model to train it in FP8.
# Transformer Engine's layers have the same parameters as PyTorch's, and a context manager decides what runs in FP8:
#
# ```python
# import minite as te                              # or transformer_engine.pytorch
#
# with te.autocast(recipe=recipe.DelayedScaling()):  # older code: te.fp8_autocast(fp8_recipe=...)
#     loss = model(tokens)
# loss.backward()                                  # outside, with the recipe of the forward pass
# ```
#
# FP8 GEMMs restrict sizes: the last dimension of every operand must be a multiple of 16, and the product of the others
# a multiple of 8. The backward pass transposes the weight, so the simplest rule is that a layer's inputs and outputs are
# both multiples of 16. The usual obstacle is the **LM head**, which has one output per token of the vocabulary: GPT-2's
# 50,257 is odd. That is one reason why Megatron pads vocabularies.
#
# ### Exercise 9: swap the layers of a Hugging Face model
#
# Write `swap`. It replaces every `nn.Linear` in a model with a `te.Linear`, at any depth, except those whose inputs or
# outputs are not multiples of 16. The new layers hold the *same* parameter objects, so tied embeddings and an existing
# optimizer keep working, and every parameter keeps its name. Layers keep their training or evaluation mode. Return the
# sorted names of the replaced layers, such as `model.layers.0.mlp.up_proj`.
#
# The state dict has one more key per replaced layer, `_extra_state`, for amax histories and scales. The cells after the
# exercise show what that means for checkpoints.

# %% answer="swap"
def swap(model):
    """Replace linear layers by te.Linear, in place; return the sorted names of those replaced."""
    ### BEGIN SOLUTION
    swapped = []
    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or module.in_features % 16 or module.out_features % 16:
            continue
        layer = te.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
        layer.weight = module.weight
        if module.bias is not None:
            layer.bias = module.bias
        layer.train(module.training)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)
        swapped.append(name)
    return sorted(swapped)
    ### END SOLUTION

# %% tags=["driver"]
def swapped_llama(vocabulary, intermediate, tied):
    """Swap the layers of a small Llama, and return what has changed.

    Returns the number of te.Linear layers, the names of the linear layers that remain, whether swap()
    returned the right names, whether the parameters still have their names in order, whether all
    parameters are the same objects, whether all modules are in evaluation mode, and whether the logits
    outside of autocast are the same.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=intermediate, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, attention_bias=True, tie_word_embeddings=tied)).eval()
    tokens = torch.arange(8)[None] % vocabulary
    with torch.no_grad():
        keys, before = [name for name, _ in model.named_parameters()], model(tokens).logits
        parameters = [id(parameter) for parameter in model.parameters()]
        names = swap(model)
        difference = (model(tokens).logits - before).abs().max().item()
    now = sorted(name for name, one in model.named_modules() if isinstance(one, te.Linear))
    return [len(now), sorted(name for name, one in model.named_modules() if type(one) is nn.Linear),
            names == now, [name for name, _ in model.named_parameters()] == keys,
            [id(parameter) for parameter in model.parameters()] == parameters,
            not any(one.training for one in model.modules()), difference < 1e-5]

# %% check="swap" points=4
check.function(
    swapped_llama, cases=[(96, 128, False), (104, 128, True), (96, 136, True)],
    expected=[[8, [], True, True, True, True, True], [7, ["lm_head"], True, True, True, True, True],
              [5, ["model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"],
               True, True, True, True, True]],
    hints={
        "Layers whose sizes are not multiples of 16 must stay. Which of the sizes do you check?": [
            [8, [], True, True, True, True, True], [8, [], True, True, True, True, True],
            [8, [], True, True, True, True, True]],
        "A layer has two sizes. One of them is not a multiple of 16.": [
            [], [8, [], True, True, True, True, True],
            [6, ["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"], True, True, True, True, True]],
        "The parameters are copies. An optimizer that was created before would update the old ones.": [
            [8, [], True, True, False, True, True], [7, ["lm_head"], True, True, False, True, True], []],
        "The model was in evaluation mode, and now some of its layers are not.": [
            [8, [], True, True, True, False, True], [7, ["lm_head"], True, True, True, False, True], []],
        "Only the direct children of the model were replaced.": [
            [1, ["model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                 "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.o_proj",
                 "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"],
             True, True, True, True, True], [], []],
    })
### BEGIN HIDDEN TESTS
def remaining(vocabulary, intermediate, tied):
    left = (["lm_head"] if vocabulary % 16 else []) + [
        f"model.layers.0.mlp.{name}_proj" for name in ("down", "gate", "up") if intermediate % 16]
    return [8 - len(left), left] + [True] * 5


check.function(swapped_llama, expected=remaining, cases=[tuple(case.values()) for case in check.draw(
    2, vocabulary=range(64, 513, 8), intermediate=range(64, 257, 8), tied=[True, False])])
### END HIDDEN TESTS

# %% [raw] mutant="swap" hint="must stay"
# -        if type(module) is not nn.Linear or module.in_features % 16 or module.out_features % 16:
# +        if type(module) is not nn.Linear:

# %% [raw] mutant="swap" hint="must stay"
# -        if type(module) is not nn.Linear or module.in_features % 16 or module.out_features % 16:
# +        if type(module) is not nn.Linear or module.in_features % 8 or module.out_features % 8:

# %% [raw] mutant="swap" hint="A layer has two sizes"
# -        if type(module) is not nn.Linear or module.in_features % 16 or module.out_features % 16:
# +        if type(module) is not nn.Linear or module.out_features % 16:

# %% [raw] mutant="swap" hint="The parameters are copies"
# -        layer.weight = module.weight
# +        layer.weight = nn.Parameter(module.weight.detach().clone())

# %% [raw] mutant="swap" hint="evaluation mode"
# -        layer.train(module.training)

# %% [raw] mutant="swap" hint="Only the direct children"
# -    for name, module in list(model.named_modules()):
# +    for name, module in list(model.named_children()):

# %% [markdown]
# Now load a checkpoint of the BF16 model into the swapped one. PyTorch's loading is **strict**: both sides must have
# the same keys.

# %% tags=["explore"]
plain, fp8 = nn.Linear(16, 16), te.Linear(16, 16)
try:
    fp8.load_state_dict(plain.state_dict())
except RuntimeError as error:
    print(bad(str(error)))
print(fp8.load_state_dict(plain.state_dict(), strict=False))

# %% [markdown]
# That is what Transformer Engine does, too, and why its users load 16-bit checkpoints with `strict=False`. It is then
# up to you to check that *nothing but* `_extra_state` is missing. What if a checkpoint of an FP8 run loses it? Here the
# run from the start is saved before step 40 and resumed, with and without it:

# %% tags=["explore"] short={"resumed(40": "resumed(2", "45": "4", "39:43": "1:4", "step 40": "step 2"}
for extra_state in (True, False):
    training = eight_bits.train(recipe.DelayedScaling(amax_history_len=16), 45,
                                eight_bits.resumed(40, extra_state), micro_batches=1024)
    norms = ", ".join(f"{norm:.3f}" for norm in training.gradient_norms[39:43])
    print(f"{'with' if extra_state else 'without'} _extra_state: gradient norms around step 40 are {norms}")

# %% [markdown]
# Without `_extra_state`, all scales are 1 again. For one step, most gradients underflow, and nothing reports it: the
# loss of that step was computed before. One step later, the amaxes are back. A single lost step is cheap; a scale that
# is wrong in every step is not.
#
# ### Exercise 10: from GPT-2's block to a TransformerLayer
#
# Swapping keeps the model's own code, so its norms, activations, and residual connections remain separate kernels. On a
# GPU, `te.TransformerLayer` replaces a whole block, and fuses many of them. For that, every parameter needs its place
# in the new layer. GPT-2's block has these parameters, with hidden size $h$:
#
# | GPT-2 ([Hugging Face](https://github.com/huggingface/transformers/blob/main/src/transformers/models/gpt2/modeling_gpt2.py)) | shape | what it computes |
# |---|---|---|
# | `ln_1.weight`, `ln_1.bias` | h | norm before the attention |
# | `attn.c_attn.weight`, `.bias` | h x 3h, 3h | queries, keys, and values, in this order |
# | `attn.c_proj.weight`, `.bias` | h x h, h | output projection of the attention |
# | `ln_2.weight`, `ln_2.bias` | h | norm before the MLP |
# | `mlp.c_fc.weight`, `.bias` | h x 4h, 4h | first layer of the MLP |
# | `mlp.c_proj.weight`, `.bias` | 4h x h, h | second layer |
#
# GPT-2's weights are stored as inputs x outputs, PyTorch's and Transformer Engine's as outputs x inputs. The next cell
# prints what the new layer expects. Write `to_transformer_layer`, which turns one state dict into the other.

# %% tags=["explore"]
for name, tensor in te.TransformerLayer(64, 256, 4).named_parameters():
    print(f"{name:45} {' x '.join(map(str, tensor.shape))}")

# %% answer="to-transformer-layer"
def to_transformer_layer(state):
    """Return the parameters of a te.TransformerLayer, by name, for the state dict of a GPT-2 block."""
    ### BEGIN SOLUTION
    hidden = len(state["ln_1.weight"])
    mapped = {}
    for old, new in (("ln_1", "self_attention.layernorm_qkv.layer_norm_"), ("ln_2", "layernorm_mlp.layer_norm_"),
                     ("attn.c_proj", "self_attention.proj."), ("mlp.c_fc", "layernorm_mlp.fc1_"),
                     ("mlp.c_proj", "layernorm_mlp.fc2_")):
        mapped[f"{new}weight"] = state[f"{old}.weight"].t().contiguous()
        mapped[f"{new}bias"] = state[f"{old}.bias"]
    for kind in ("weight", "bias"):
        parts = state[f"attn.c_attn.{kind}"].t().split(hidden)
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            mapped[f"self_attention.layernorm_qkv.{name}_{kind}"] = part.contiguous()
    return mapped
    ### END SOLUTION

# %% tags=["driver"]
def block_output(seed, hidden, heads, tokens, shown):
    """Load GPT-2's parameters into a TransformerLayer, and return its output."""
    shapes = {"ln_1": [hidden], "attn.c_attn": [hidden, 3 * hidden], "attn.c_proj": [hidden, hidden],
              "ln_2": [hidden], "mlp.c_fc": [hidden, 4 * hidden], "mlp.c_proj": [4 * hidden, hidden]}
    state = {}
    for number, (name, shape) in enumerate(shapes.items()):
        for kind, size in (("weight", shape), ("bias", shape[-1:])):
            angles = 0.7 * torch.arange(torch.Size(size).numel()) ** 1.1 + seed + 3 * number + len(kind)
            state[f"{name}.{kind}"] = angles.sin().view(size) / hidden**0.5
    layer = te.TransformerLayer(hidden, 4 * hidden, heads, hidden_dropout=0, attention_dropout=0)
    missing, unexpected = layer.load_state_dict(to_transformer_layer(state), strict=False)
    if unexpected or any(not name.endswith("_extra_state") for name in missing):
        raise KeyError(f"missing: {missing}; not of this layer: {unexpected}")
    x = (0.3 * torch.arange(tokens * hidden) + seed).sin().view(tokens, 1, hidden)
    with torch.no_grad():
        return layer(x).flatten()[-shown:]

# %% check="to-transformer-layer" points=4
check.function(
    block_output, cases=[(0, 8, 2, 3, 4), (1, 4, 1, 2, 3)], rel=1e-3,
    expected=[[0.160995841, -0.25416261, -0.317868352, 0.277540356], [0.320274919, 0.412674069, 0.515987873]],
    hints={
        "A square weight can be loaded without its transpose, and is wrong. Transpose all of them.": [
            [-0.886781514, 0.665358365, -0.571797132, 0.888474584], [0.743098021, 1.06683731, 0.0989262536]],
        "Queries, keys, and values are in another order.": [
            [0.160716504, -0.25989458, -0.324690521, 0.276158303], [0.323074281, 0.411844641, 0.513120711]],
        "The two norms have changed places.": [
            [-0.134813488, 0.0922660828, 0.242435515, 0.462481767], [0.855261445, 0.489791304, 0.085467428]],
    })
### BEGIN HIDDEN TESTS
import torch
import torch.nn.functional as F


def gpt2_block(seed, hidden, heads, tokens, shown):
    def made(number, kind, *shape):
        angles = 0.7 * torch.arange(torch.Size(shape).numel()) ** 1.1 + seed + 3 * number + len(kind)
        return angles.sin().view(shape) / hidden**0.5

    def affine(x, number, inputs, outputs):
        return x @ made(number, "weight", inputs, outputs) + made(number, "bias", outputs)

    def norm(x, number):
        return F.layer_norm(x, [hidden], made(number, "weight", hidden), made(number, "bias", hidden))

    x = (0.3 * torch.arange(tokens * hidden) + seed).sin().view(tokens, hidden)
    parts = affine(norm(x, 0), 1, hidden, 3 * hidden).split(hidden, 1)
    q, k, v = (one.view(tokens, heads, -1).transpose(0, 1) for one in parts)
    attention = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).reshape(tokens, hidden)
    x = x + affine(attention, 2, hidden, hidden)
    inner = F.gelu(affine(norm(x, 3), 4, hidden, 4 * hidden), approximate="tanh")
    return (x + affine(inner, 5, 4 * hidden, hidden)).flatten()[-shown:].numpy()


check.function(block_output, rel=1e-3, expected=gpt2_block, cases=[
    (case["seed"], case["size"][0], case["size"][1], case["tokens"], 12)
    for case in check.draw(3, seed=check.between(2, 99), size=[(8, 2), (12, 3), (16, 4)], tokens=range(2, 6))])
### END HIDDEN TESTS

# %% [raw] mutant="to-transformer-layer" hint="Transpose all of them"
# -        mapped[f"{new}weight"] = state[f"{old}.weight"].t().contiguous()
# +        weight = state[f"{old}.weight"]
# +        mapped[f"{new}weight"] = weight if weight.dim() > 1 and len(weight) == len(weight[0]) else weight.t().contiguous()

# %% [raw] mutant="to-transformer-layer" hint="in another order"
# -        for name, part in zip(("query", "key", "value"), parts, strict=True):
# +        for name, part in zip(("key", "query", "value"), parts, strict=True):

# %% [raw] mutant="to-transformer-layer" hint="changed places"
# -    for old, new in (("ln_1", "self_attention.layernorm_qkv.layer_norm_"), ("ln_2", "layernorm_mlp.layer_norm_"),
# +    for old, new in (("ln_2", "self_attention.layernorm_qkv.layer_norm_"), ("ln_1", "layernorm_mlp.layer_norm_"),

# %% [markdown]
# ## Appendix: inference
#
# A model that was trained in BF16 can be *served* in FP8: its weights take half the memory, and the GEMMs run at twice
# the peak rate. But it has no amax history, and computing an amax for every request takes time. So a short
# **calibration** runs the model on typical inputs, in 16 bits, and records the amax of each layer's input. The
# checkpoint for serving then has FP8 weights, and two scales per layer. In Transformer Engine, calibration is
# `te.autocast(enabled=False, calibrating=True)`.
#
# A single outlier in the calibration data can waste range. **Percentile clipping** uses, for example, the 99.9th
# percentile of the magnitudes instead of their maximum. INT8, whose numbers are evenly spaced, often needs it. FP8
# often does not, because its spacing grows with the magnitude, as you will see below.
#
# ### Exercise 11: calibrate
#
# Write `calibrate`. It runs the model on every batch, without gradients, and returns a scale for the input of each
# `nn.Linear`: 448 divided by the given percentile of the magnitudes of *all* batches together. Register a **forward
# pre-hook** (`handle = module.register_forward_pre_hook(hook)`, where `hook(module, inputs)` gets a tuple of the
# inputs), and remove it at the end (`handle.remove()`). `torch.quantile(x, 0.999)` interpolates between values, which
# is fine.

# %% answer="calibrate"
def calibrate(model, batches, percentile=100.0):
    """Return the scale of each linear layer's input, by the layer's name, as floats.

    Args:
        model: called with each batch.
        batches: tensors.
        percentile: of the magnitudes that become E4M3's largest number; 100 is the amax.
    """
    ### BEGIN SOLUTION
    seen, handles = {}, []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            def hook(module, inputs, name=name):
                seen.setdefault(name, []).append(inputs[0].detach().abs().flatten())

            handles.append(module.register_forward_pre_hook(hook))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    for handle in handles:
        handle.remove()
    return {name: 448.0 / torch.quantile(torch.cat(parts), percentile / 100).item() for name, parts in seen.items()}
    ### END SOLUTION

# %% tags=["driver"]
def calibrated(batches, percentile):
    """Calibrate two linear layers, one of them inside another module.

    Returns the scales, whether all hooks are gone, and whether autograd was off in all forward passes.
    """
    from collections import OrderedDict

    class ReLU(nn.ReLU):
        gradients = False

        def forward(self, x):
            ReLU.gradients |= torch.is_grad_enabled()
            return super().forward(x)

    model = nn.Sequential(OrderedDict(first=nn.Linear(4, 6), rest=nn.Sequential(ReLU(), nn.Linear(6, 4))))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_((1.1 * torch.arange(parameter.numel()) + number).cos().view_as(parameter))
    scales = calibrate(model, [torch.tensor(batch) for batch in batches], percentile)
    hooks = any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    return [scales, not hooks, not ReLU.gradients]

# %% check="calibrate" points=3
some = [[[1.0, -2.0, 0.5, 4.0]], [[0.5, -0.25, 7.0, 1.0]], [[-1.0, 1.0, 0.0, 0.5]]]
check.function(
    calibrated, cases=[(some, 100.0), (some, 90.0)], rel=1e-4,
    expected=[
        [{'first': 64.0, 'rest.1': 75.0504088}, True, True],
        [{'first': 117.894761, 'rest.1': 84.5274015}, True, True]],
    hints={
        "The forward passes build a graph for autograd, and keep its activations. Switch it off.": [
            [{'first': 64.0, 'rest.1': 75.0504088}, True, False],
            [{'first': 117.894761, 'rest.1': 84.5274015}, True, False]],
        "Only the last batch counts. A scale must fit all of them.": [
            [{'first': 448.0, 'rest.1': 221.356867}, True, True],
            [{'first': 448.0, 'rest.1': 288.945155}, True, True]],
        "Negative inputs have magnitudes, too.": [
            [{'first': 64.0, 'rest.1': 75.0504088}, True, True],
            [{'first': 121.081119, 'rest.1': 84.5274015}, True, True]],
        "The average of the batches' percentiles is not the percentile of all values.": [
            [{'first': 112.0, 'rest.1': 102.570329}, True, True],
            [{'first': 140.000022, 'rest.1': 114.539883}, True, True]],
        "The hooks are still there, and would run in every later forward pass.": [
            [{'first': 64.0, 'rest.1': 75.0504088}, False, True],
            [{'first': 117.894761, 'rest.1': 84.5274015}, False, True]],
    })
### BEGIN HIDDEN TESTS
import numpy as np


def quantile_scales(batches, percentile):
    def made(number, *shape):
        return np.cos(1.1 * np.arange(np.prod(shape)) + number).reshape(shape)

    x = np.concatenate([np.array(batch) for batch in batches])
    inner = np.maximum(x @ made(0, 6, 4).T + made(1, 6), 0)
    return [{name: 448.0 / float(np.quantile(np.abs(values), percentile / 100))
             for name, values in (("first", x), ("rest.1", inner))}, True, True]


check.function(calibrated, rel=1e-3, expected=quantile_scales, cases=[(case["batches"], case["percentile"]) for case in
    check.draw(4, percentile=[100.0, 99.0, 75.0],
               batches=lambda dice: [[[dice.uniform(-5, 5) for _ in range(4)] for _ in range(3)] for _ in range(4)])])
### END HIDDEN TESTS

# %% [raw] mutant="calibrate" hint="Only the last batch counts"
# -                seen.setdefault(name, []).append(inputs[0].detach().abs().flatten())
# +                seen[name] = [inputs[0].detach().abs().flatten()]

# %% [raw] mutant="calibrate" hint="Negative inputs have magnitudes"
# -                seen.setdefault(name, []).append(inputs[0].detach().abs().flatten())
# +                seen.setdefault(name, []).append(inputs[0].detach().flatten())

# %% [raw] mutant="calibrate" hint="The average of the batches' percentiles"
# -    return {name: 448.0 / torch.quantile(torch.cat(parts), percentile / 100).item() for name, parts in seen.items()}
# +    return {name: 448.0 * len(parts) / sum(torch.quantile(part, percentile / 100).item() for part in parts)
# +            for name, parts in seen.items()}

# %% [raw] mutant="calibrate" hint="build a graph for autograd"
# -    with torch.no_grad():
# +    with torch.enable_grad():

# %% [raw] mutant="calibrate" hint="The hooks are still there"
# -        handle.remove()
# +        pass

# %% [markdown]
# Now serve the small language model with FP8 weights. Its checkpoint has no 16-bit copy of them: each matrix is a
# float8 tensor with one scale per row. The next cell measures the perplexity on batches that the model has not seen.
# For comparison, it also rounds the weights to four bits, but does not save those: that would mean packing two numbers
# into each byte.

# %% tags=["explore"] short={"train(None, 60)": "train(None, 4)"}
import io

model = eight_bits.train(None, 60).model
held_out = list(eight_bits.batches(70))[60:]


def perplexity(model):
    """Return exp(mean loss) on the held-out batches."""
    with torch.no_grad():
        return torch.stack([eight_bits.loss_of(model, tokens) for tokens in held_out]).mean().exp().item()


def size_of_checkpoint(state):
    """Return the bytes of the file that torch.save writes for a state dict."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.tell()


original = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
print(f"BF16: perplexity {perplexity(model):.3f}, checkpoint of {size_of_checkpoint(original):,} bytes")
for name, numbers in (("E4M3", E4M3), ("E2M1", E2M1)):
    saved = dict(original)
    for key, tensor in original.items():
        if tensor.dim() == 2:
            scale = numbers[2] / tensor.float().abs().amax(1, keepdim=True)
            saved[key], saved[f"{key}_scale"] = round_to(tensor.float() * scale, *numbers), scale
            if name == "E4M3":
                saved[key] = saved[key].to(torch.float8_e4m3fn)
    size = f", checkpoint of {size_of_checkpoint(saved):,} bytes" if name == "E4M3" else ""
    model.load_state_dict({key: (saved[key].float() / saved[f"{key}_scale"]).bfloat16()
                           if f"{key}_scale" in saved else saved[key] for key in original}, strict=False)
    print(f"{name}: perplexity {result(f'{perplexity(model):.3f}')}{size}")

# %% [markdown]
# Eight bits hardly raise the perplexity; four bits with one scale per row raise it more. Does clipping help E4M3? A
# tensor with an outlier, rounded with three percentiles:

# %% tags=["explore"]
torch.manual_seed(0)
x = torch.randn(100_000)
x[0] = 300.0
for percentile in (100.0, 99.99, 99.0):
    clip = torch.quantile(x.abs(), percentile / 100)
    back = round_to(x * 448 / clip, *E4M3) * clip / 448
    print(f"{percentile:6}: error of usual values {100 * ((back - x)[1:].norm() / x[1:].norm()):.2f}%, "
          f"the outlier becomes {back[0]:.0f}")

# %% [markdown]
# With the amax as the limit, the usual values are about as precise as with any percentile, and the outlier survives.
# The 99th percentile also clips usual values, and is worse. Only outliers that are some ten powers of two larger push
# usual values into the subnormal numbers, as in the 256 x 256 block above.

# %% [markdown]
# ## Read next
#
# - [FP8 Formats for Deep Learning](https://arxiv.org/abs/2209.05433) (Micikevicius et al., 2022): the two formats, and
#   why there are two.
# - [DeepSeek-V3](https://arxiv.org/abs/2412.19437) (2024), section 3.3: block scales, and how many bits H100s
#   really accumulate.
# - [Transformer Engine's user guide](https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/): every name
#   in this lab, and its FP8 primer.
# - [Pretraining Large Language Models with NVFP4](https://arxiv.org/abs/2509.25149) (NVIDIA, 2025): what four bits need
#   besides a format.
# - [torchao's float8 training](https://github.com/pytorch/ao/tree/main/torchao/float8): the same ideas in plain
#   PyTorch, with `torch.compile` to fuse the casts.
# - The source of `minite`, in `code/minite` of this course's repository: short enough to read in one sitting.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your files of
# `mytrainer/` are in it.
