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
# # Precision, memory, and the bill
#
# Your training runs on several nodes, and now somebody asks what it costs. Mixed precision makes it
# cheaper, because 16-bit numbers take less time and memory, but a bad loss scale silently stops the training. In
# this lab you measure what it buys and what you pay for it. At the end you estimate the days,
# GPU-hours, and dollars of a training run, up to a model with a trillion parameters.
#
# **You will be able to**
#
# - train in mixed precision, with an optimizer of your own, and read from the log what the loss scale does;
# - say when fp16 saves memory, and when it needs more;
# - count a transformer's parameters and FLOPs, and compute the MFU of a run;
# - estimate days, GPU-hours, dollars, and the number of GPUs that a deadline requires.
#
# **How it works.** Run the cells with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where a cell
# says *Your turn*, replace that line with your answer; the cell below checks it at once. Where you are asked
# to guess, guess *before* you run. Guesses are not graded.
#
# **Real and virtual.** What the loss scale does is real here: your CPU computes with real fp16 numbers. Time
# and memory on GPUs are **virtual**: modeled from data sheets and published measurements, and the same on
# every machine.

# %% tags=["setup"]
import math
import os

import torch

from labcore import workspace
from virtualgpu.core.cards import CARDS

os.chdir(workspace.home())  # all paths in this lab begin at the workspace
PEAKS = {name: card.tflops for name, card in CARDS.items()}  # TFLOP/s by GPU and precision

# %% tags=["check-setup"]
from labkit import check
from minimegatron import formulas
from virtualgpu.core.cards import CARDS

# Answers cannot import these, because they contain the solutions.
check.mask("job_monitor.kernels", "job_monitor.logs", "layout_estimator", "minimegatron",
           "pipeline_schedules")

# %% tags=["explore"]
from job_monitor import kernels, logs
from lab import tensorboard
from labcore.colors import bad, good, mark, result
from lablib import jobs, plots
from layout_estimator import costs

jobs.connect()

# %% [markdown]
# ## Mixed precision
#
# A number in **fp32** has 32 bits. In **fp16**, half precision, it has 16. It takes half the memory, and a GPU's
# **Tensor Cores** multiply fp16 matrices several times faster than fp32 ones. But fp16 has a narrow range and few
# significant digits. Look at what happens to some numbers:

# %% tags=["explore"]
for number in (1.0, 0.1, 1e-6, 1e-9, 65_504.0, 100_000.0):
    kept = torch.tensor(number).half().item()
    print(f"{number:>10g} in fp16: {bad(kept) if kept in (0, math.inf) else f'{kept:g}'}")

# %% [markdown]
# Two things go wrong, shown in red. A number that is too large becomes `inf`, which is an **overflow**. One that
# is too small becomes 0, which is an **underflow**.
#
# A third thing happens to almost every number: it is rounded, so 0.1 becomes 0.0999756. fp16 has 11 significant
# bits, about three decimal digits; fp32 has 24, about seven. When an update is smaller than the last digit of its
# weight, the weight does not change at all. So the trainer applies updates to a copy of the weights in fp32, the
# **master weights**. You will meet them again in Exercise 4.
#
# The narrow range is a problem for gradients. They are often tiny, so many of them would underflow to zero.
# **Loss scaling** prevents this: the loss is multiplied by a large factor before the backward pass, which
# multiplies every gradient by the same factor. The gradients are divided by it again in fp32, where they no
# longer underflow, before the optimizer step. Training with fp16 matrix multiplications, fp32 master weights, and
# loss scaling is called **mixed precision** ([Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740)).

# %% [markdown]
# ### Exercise 1: what happens to a gradient?
#
# What does a gradient become in fp16 when the loss is multiplied by `scale`? The largest fp16 number is 65504,
# and the smallest above 0 is `2**-24`. Ignore rounding: anything smaller becomes 0, and anything larger becomes
# infinite.

# %% nbgrader={"grade": false, "grade_id": "fate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fate(gradient, scale):
    """Return what the scaled gradient is in fp16: "zero", "fine", or "inf". It may be negative."""
    ### BEGIN SOLUTION
    size = abs(gradient * scale)
    if size > 65504:
        return "inf"
    return "fine" if size >= 2**-24 else "zero"
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "fate-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    fate,
    cases=[(70000.0, 2.0), (1e-9, 1.0), (1e-9, 1024.0), (0.5, 1048576.0), (0.5, 1.0),
           (-0.5, 1048576.0)],
    expected=["inf", "zero", "fine", "inf", "fine", "inf"],
    hints={
        "A large negative number is not small: look at the magnitude.":
            ["inf", "zero", "fine", "inf", "fine", "zero"],
        "That ignores the scale: it multiplies every gradient.":
            ["inf", "zero", "zero", "fine", "fine", "fine"],
        "The gradient is multiplied by the scale in fp16, and divided by it later, in fp32.":
            ["fine", "zero", "zero", "fine", "fine", "fine"],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(24, power=[*range(-60, -26), *range(-23, 15), *range(17, 40)],
                   scale=range(0, 33), mantissa=lambda dice: dice.choice([-1, 1]) * dice.uniform(1, 2))
check.function(
    fate,
    cases=[(case["mantissa"] * 2.0**(case["power"] - case["scale"]), 2.0**case["scale"])
           for case in drawn],
    expected=["inf" if case["power"] > 15 else "zero" if case["power"] < -24 else "fine"
              for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="fate" hint="look at the magnitude"
# def fate(gradient, scale):
#     size = gradient * scale
#     return "inf" if size > 65504 else "fine" if size >= 2**-24 else "zero"

# %% [raw] tags=["mutant"] answer="fate" hint="ignores the scale"
# def fate(gradient, scale):
#     size = abs(gradient)
#     return "inf" if size > 65504 else "fine" if size >= 2**-24 else "zero"

# %% [raw] tags=["mutant"] answer="fate" hint="divided by it later"
# def fate(gradient, scale):
#     size = abs(gradient / scale)
#     return "inf" if size > 65504 else "fine" if size >= 2**-24 else "zero"

# %% [markdown]
# ### Which scale is right?
#
# Nobody knows in advance. The right scale depends on the model, the data, and how far training has come, so the
# trainer searches for it. This is called **dynamic loss scaling**. The scale starts far too high. Whenever a
# gradient overflows, the trainer discards the step (a **skipped iteration**) and halves the scale. After a
# number of good steps in a row, the *window*, it doubles the scale again.
#
# The next job trains the small GPT in fp16 and starts at a scale of 2^30. At which power of 2 will the first
# step succeed? Guess.

# %% nbgrader={"grade": false, "grade_id": "guess-power", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_power = 15
### END SOLUTION

# %% tags=["explore"] short={"--global-batch-size 4": "--global-batch-size 4 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/fp16.sh --train-iters 24 --log-interval 1 --eval-iters 0 --global-batch-size 4 \
    --initial-loss-scale 1073741824 --loss-scale-window 6

# %% tags=["explore"]
job = jobs.wait()

# %% tags=["explore"]
log = logs.read(job.log)
made = [one for one in log.iterations if not one.skipped]
if made:
    check.compare("power of 2 of the first good scale", guess_power,
                  math.log2(made[0].loss_scale), power=2)
plots.loss_scale(log)

# %% [markdown]
# TensorBoard shows the same curve under `loss-scale`, for every fp16 run:

# %% tags=["explore"]
tensorboard.link()

# %% [markdown]
# Every cross is a step that was computed and then discarded. Compare the log line of such a step with that of the
# first good step. The skipped one has no loss and no gradient norm, and its learning rate did not advance. The
# loss scale in a line is the one in effect after that step.

# %% tags=["explore"]
lines = logs.lines(job.log, "elapsed time")
for line in [lines[0], *(lines[log.iterations.index(one)] for one in made[:1])]:
    print(mark(line, r"loss scale: [^ |]+", r"number of skipped iterations: +\d+"))

# %% [markdown]
# ### Exercise 2: a dynamic loss scaler
#
# Implement these rules. The function is called after every step. It returns the scale for the next step, and the
# number of consecutive good steps since the scale last changed.
#
# - After an overflow, halve the scale, but never below 1, and reset the count to 0.
# - After a good step, add one to the count. When it reaches `window`, double the scale and reset the count.

# %% nbgrader={"grade": false, "grade_id": "next-scale", "locked": false, "schema_version": 3, "solution": true, "task": false}
def next_scale(scale, good_steps, overflow, window):
    """Return the next scale (a float) and the number of consecutive good steps (an int).

    Args:
        scale: the loss scale of this step.
        good_steps: consecutive good steps before this one.
        overflow: whether this step overflowed.
        window: consecutive good steps after which the scale doubles.
    """
    ### BEGIN SOLUTION
    if overflow:
        return max(scale / 2, 1.0), 0
    if good_steps + 1 == window:
        return scale * 2, 0
    return scale, good_steps + 1
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "next-scale-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    next_scale,
    cases=[(65536.0, 3, True, 6), (65536.0, 3, False, 6), (65536.0, 5, False, 6),
           (1.0, 0, True, 6)],
    expected=[(32768.0, 0), (65536.0, 4), (131072.0, 0), (1.0, 0)],
    hints={
        "Consecutive good steps: what happens to the count after an overflow?":
            [(32768.0, 3), (65536.0, 4), (131072.0, 0), (1.0, 0)],
        "Your count continues after the scale doubles, so it never reaches the window again.":
            [(32768.0, 0), (65536.0, 4), (131072.0, 6), (1.0, 0)],
        "Your scale falls below 1.": [(32768.0, 0), (65536.0, 4), (131072.0, 0), (0.5, 0)],
        "One step late: this step counts as a good one, too.":
            [(32768.0, 0), (65536.0, 4), (65536.0, 6), (1.0, 0)],
    })
### BEGIN HIDDEN TESTS
def right(scale, good_steps, overflow, window):
    if overflow:
        return max(scale / 2, 1.0), 0
    return (scale * 2, 0) if good_steps + 1 == window else (scale, good_steps + 1)


drawn = check.draw(30, power=range(0, 33), window=range(2, 1001), before=range(1000),
                   overflow=[True, False, False])
cases = [(2.0**case["power"],
          case["window"] - 1 if case["before"] % 3 else case["before"] % case["window"],
          case["overflow"], case["window"]) for case in drawn]
check.function(next_scale, cases=cases, expected=[right(*case) for case in cases])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="next-scale" hint="after an overflow?"
# -        return max(scale / 2, 1.0), 0
# +        return max(scale / 2, 1.0), good_steps

# %% [raw] tags=["mutant"] answer="next-scale" hint="never reaches the window again"
# -        return scale * 2, 0
# +        return scale * 2, good_steps + 1

# %% [raw] tags=["mutant"] answer="next-scale" hint="falls below 1"
# -        return max(scale / 2, 1.0), 0
# +        return scale / 2, 0

# %% [raw] tags=["mutant"] answer="next-scale" hint="One step late"
# -    if good_steps + 1 == window:
# +    if good_steps == window:

# %% [markdown]
# ### Exercise 3: how many steps are lost?
#
# Suppose that nothing overflows at `highest_good`, and everything does at twice that scale. How many steps are
# skipped before the first good one? There is one more rule. With `--hysteresis 2` the first overflow skips its
# step but leaves the scale as it is; with `--hysteresis 3` the first two do, and so on. After that, every
# overflow halves the scale.

# %% nbgrader={"grade": false, "grade_id": "skipped-steps", "locked": false, "schema_version": 3, "solution": true, "task": false}
def skipped_steps(initial_scale, highest_good, hysteresis=1):
    """Return the number of steps skipped before the first good one. Scales are powers of 2."""
    ### BEGIN SOLUTION
    if initial_scale <= highest_good:
        return 0
    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "skipped-steps-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    skipped_steps,
    cases=[{"initial_scale": 1073741824.0, "highest_good": 131072.0},
           {"initial_scale": 4294967296.0, "highest_good": 131072.0, "hysteresis": 2},
           {"initial_scale": 4096.0, "highest_good": 131072.0, "hysteresis": 2}],
    expected=[13, 16, 0],
    hints={
        "Hysteresis keeps the scale, but the step is still skipped.": [13, 15, 0],
        "Hysteresis applies only to the first overflows; after those, each one halves the scale.":
            [13, 30, 0],
        "A scale that starts low enough skips no steps.": [13, 16, -4],
        "That is the ratio of the two scales. How many times must the scale be halved?":
            [8192, 32769, 0],
        "One too many: at the last of these scales the step succeeds.": [14, 17, 0],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, initial=range(33), good=range(20), hysteresis=range(1, 100))
check.function(
    skipped_steps,
    cases=[(2.0**case["initial"], 2.0**case["good"], case["hysteresis"]) for case in drawn],
    expected=[case["initial"] - case["good"] + case["hysteresis"] - 1
              if case["initial"] > case["good"] else 0 for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="still skipped"
# -    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
# +    return round(math.log2(initial_scale / highest_good))

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="only to the first overflows"
# -    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
# +    return round(math.log2(initial_scale / highest_good)) * hysteresis

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="starts low enough"
# def skipped_steps(initial_scale, highest_good, hysteresis=1):
#     return round(math.log2(initial_scale / highest_good)) + hysteresis - 1

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="must the scale be halved"
# -    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
# +    return round(initial_scale / highest_good) + hysteresis - 1

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="One too many"
# -    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
# +    return round(math.log2(initial_scale / highest_good)) + hysteresis

# %% [markdown]
# Does your function agree with the log of your own job?

# %% tags=["explore"]
if made:
    print("your function:", result(skipped_steps(2.0**30, made[0].loss_scale)))
print("the log:      ", result(sum(one.skipped for one in log.iterations)))

# %% [markdown]
# If the log shows more skipped steps than your function predicts, the scale was doubled later and overflowed
# again. This goes on for the whole training run, and costs a step now and then.

# %% [markdown]
# ### A scale that stays too high
#
# > **The next job goes wrong on purpose, and nothing will tell you.** `--loss-scale` fixes the scale. This
# > one is too high, and nothing lowers it.

# %% tags=["explore"] short={"--fp16": "--fp16 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/dp_single_node.sh --train-iters 6 --log-interval 2 --eval-iters 0 --global-batch-size 4 \
    --fp16 --loss-scale 1073741824

# %% tags=["explore"]
silent = jobs.wait()

# %% tags=["explore"]
for one in logs.read(silent.log).iterations:
    skipped = f"{one.skipped} of 2 steps skipped"
    print(f"iteration {one.iteration}: {bad(skipped) if one.skipped else good(skipped)}, "
          f"loss {one.loss}")

# %% [markdown]
# The job is `COMPLETED`, so Slurm reports no problem, but the model has learned nothing: every step was
# skipped. This is why every log line includes the number of skipped iterations. **A few at the beginning are
# healthy. Many of them, or a scale that keeps falling, mean that something is wrong.**
#
# **bf16** is another 16-bit format. It has the range of fp32 and even fewer significant digits than fp16. It
# needs no loss scaling. GPUs support it since the A100; a V100 does not.

# %% [markdown]
# ## What mixed precision buys
#
# Now look at time and memory on a **virtual** V100, with GPT-2 small: 12 layers, 12 heads, a hidden size of 768,
# and 1,024 positions. This is what the data sheet promises:

# %% tags=["explore"]
for precision, peak in PEAKS["v100-sxm2-16gb"].items():
    print(f"data sheet, V100, {precision}: {peak:g} TFLOP/s")

# %% [markdown]
# How many times faster will a step in fp16 be, at the same micro-batch size? Guess.

# %% nbgrader={"grade": false, "grade_id": "guess-speedup", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_speedup = 5
### END SOLUTION

# %% tags=["explore"]
GPT2 = ("--device virtual:v100 --num-layers 12 --hidden-size 768 --num-attention-heads 12 "
        "--seq-length 1024 --max-position-embeddings 1024 ")
precisions = costs.of({"fp32, micro-batch 2": "--micro-batch-size 2",
                       "fp16, micro-batch 2": "--micro-batch-size 2 --fp16",
                       "fp16, micro-batch 4": "--micro-batch-size 4 --fp16",
                       "fp32, micro-batch 4": "--micro-batch-size 4"}, GPT2)
costs.show(precisions)
fp32, fp16 = precisions[:2]
check.compare("times as fast (virtual V100)", guess_speedup, fp32.milliseconds / fp16.milliseconds)

# %% [markdown]
# Read the first two rows slowly, because they hold three surprises. (The column `waiting` comes later.)
#
# - **Step time.** It is faster, but nowhere near what the data sheet promises. You will see why below.
# - **Share of the peak** (`of peak`). It *falls*, although everything is faster: the peak grew by more than
#   the speed did.
# - **Memory.** The activations (`activ.`) shrink, but not quite to half: dropout masks still take one byte
#   each, and the loss is computed in fp32. `states`, which are weights, gradients, and optimizer state, do not
#   shrink *at all*. And the optimizer step allocates memory of its own (`update`). The activations are freed by
#   then, so `all` counts only the larger of the two. (It also includes the memory of the CUDA context.)

# %% [markdown]
# ### What runs on Tensor Cores?
#
# A program that runs on a GPU is called a **kernel**. A matrix multiplication (a **GEMM**) is one kernel, and a
# softmax is another. The **profiler** records when each kernel starts and ends. Profile the first two rows of the
# table: the same model on one virtual V100, first in fp32, then in fp16.

# %% tags=["explore"]
PROFILE = ("--nodes=1 --gpus-per-node=1 code/virtual_v100.sh --device virtual:v100 --train-iters 4 "
           f"--profile-execution yes --tensorboard-dir {os.getcwd()}/megatron/tensorboard/precision")
!sbatch {PROFILE} --profile-name fp32

# %% tags=["explore"]
in_fp32 = jobs.wait()

# %% tags=["explore"]
!sbatch {PROFILE} --profile-name fp16 --fp16

# %% tags=["explore"]
in_fp16 = jobs.wait()

# %% [markdown]
# In fp32 no kernel of a V100 uses Tensor Cores. In fp16 all matrix multiplications do. What **percentage** of the
# kernels' time will that be? Guess.

# %% nbgrader={"grade": false, "grade_id": "guess-tensor-cores", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_tensor_cores = 80
### END SOLUTION

# %% tags=["explore"]
single = kernels.read("fp32 (virtual V100)", "megatron/tensorboard/precision/run_fp32")
half = kernels.read("fp16 (virtual V100)", "megatron/tensorboard/precision/run_fp16")
check.compare("percentage of kernel time on Tensor Cores", guess_tensor_cores,
              100 * half.tensor_core_share)
single.show()
half.show()
kernels.plot(single, half)

# %% [markdown]
# (`gemm` in a kernel's name means matrix multiplication: `sgemm` in fp32, `s884gemm` on a V100's Tensor Cores.)
#
# So this is where the promised speedup went. The matrix multiplications became much faster, but they are only
# part of the step. The other kernels (dropout, softmax, masks) are **memory-bound**: they wait for the memory, and
# because they now move half as many bytes, they take about half as long and no less. How much could even
# infinitely fast Tensor Cores gain? This is Amdahl's law.

# %% tags=["explore"]
rest, whole = half.milliseconds_of("rest"), single.total
for what, factor in {"the matrix multiplications": (single.milliseconds_of("other")
                                                       / half.milliseconds_of("tensor")),
                     "everything else": single.milliseconds_of("rest") / rest,
                     "all kernels together": whole / half.total,
                     "all, if GEMMs took no time": whole / rest}.items():
    print(f"{what:30} {result(f'{factor:.1f}')} x as fast (virtual)")

# %% [markdown]
# The profiler's own pages show the same. Open the link, and choose `precision/run_fp16` under *Runs*. The
# last line of *GPU Summary* (scroll down in that box) is *Kernel Time using Tensor Cores*. Then choose *GPU
# Kernel* under *Views*. The pie chart on the right shows the same share, and in the table below it, the column
# *Tensor Cores Used* says Yes or No for every kernel. Compare with `precision/run_fp32`, whose first page also
# has advice for you under *Performance Recommendation*.

# %% tags=["explore"]
tensorboard.link("profiler")

# %% [markdown]
# ### Exercise 4: the mixed-precision optimizer
#
# Why do the states not shrink? This is what the trainer stores for **each parameter**, as Megatron-LM did in 2021:
#
# | | fp32 | fp16 | bf16 |
# |---|---|---|---|
# | the weight used in the forward and backward pass | 4 bytes | 2 bytes | 2 bytes |
# | its gradient | 4 bytes | 2 bytes | 4 bytes, because sums need digits |
# | a **master weight** in fp32, because updates are too small for 16 bits | none | 4 bytes | 4 bytes |
# | Adam's two moments in fp32 | 8 bytes | 8 bytes | 8 bytes |
# | **during the passes** | **16 bytes** | **16 bytes** | **18 bytes** |
# | in the optimizer step, a copy of the gradient in fp32, unscaled | none | 4 bytes | none: it is fp32 already |
# | **during the optimizer step** | **16 bytes** | **20 bytes** | **18 bytes** |
#
# The copy (the **main gradient**) is the column `update`. It must not survive until the next forward pass, whose
# activations need the memory, so Megatron-LM's `zero_grad` frees it. Write such an optimizer for fp16. PyTorch's Adam
# updates the master weights; with `fused=True` it does so in one kernel, without temporary tensors. `zero_grad` frees
# the gradients of both kinds of weights by setting them to `None`. `step` unscales the gradients into those of the
# master weights, updates, and rounds the result to the model's weights. Everything in the table stays on the GPU:
# offloading the states to the host's memory is another technique, and the check does not accept it.

# %% nbgrader={"grade": false, "grade_id": "mixed-adam", "locked": false, "schema_version": 3, "solution": true, "task": false}
class MixedPrecisionAdam:
    """Adam for a model in fp16, with fp32 master weights."""

    def __init__(self, parameters, lr):
        """Create the master weights.

        Args:
            parameters: of the model, in fp16.
            lr: the learning rate.
        """
        ### BEGIN SOLUTION
        self.weights = list(parameters)
        self.master = [weight.detach().float() for weight in self.weights]
        self.adam = torch.optim.Adam(self.master, lr=lr, fused=True)
        ### END SOLUTION

    def zero_grad(self):
        """Free all gradients, before a forward pass."""
        ### BEGIN SOLUTION
        for weight in (*self.weights, *self.master):
            weight.grad = None
        ### END SOLUTION

    def step(self, scale):
        """Update the model's weights once, from gradients that are multiplied by the loss scale."""
        ### BEGIN SOLUTION
        for master, weight in zip(self.master, self.weights, strict=True):
            master.grad = weight.grad.float() / scale
        self.adam.step()
        with torch.no_grad():
            for master, weight in zip(self.master, self.weights, strict=True):
                weight.copy_(master)
        ### END SOLUTION

# %% tags=["driver"]
def updated(weight, gradients, lr, scale):
    """Update one fp16 weight with several gradients, one per step; return it."""
    parameter = torch.nn.Parameter(torch.tensor([weight], dtype=torch.float16))
    optimizer = MixedPrecisionAdam([parameter], lr)
    for gradient in gradients:
        optimizer.zero_grad()
        (parameter.float() * (scale * gradient)).sum().backward()
        optimizer.step(scale)
    return parameter.item()


def fp16_steps(width, layers, samples, steps):
    """Train a stack of linear layers in fp16 on a GPU."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False, device="cuda", dtype=torch.float16)
                                  for _ in range(layers)))
    optimizer = MixedPrecisionAdam(model.parameters(), 1e-3)
    inputs = torch.zeros(samples, width, device="cuda", dtype=torch.float16)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step(1024.0)

# %% nbgrader={"grade": true, "grade_id": "mixed-adam-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
# Real numbers, on the CPU.
check.function(
    updated, rel=1e-3,
    cases=[(1.0, [1.0, -1.0], 1e-2, 1024.0), (1.0, [1.0] * 40, 1e-4, 1024.0), (1.0, [1e-8], 1e-2, 65536.0)],
    expected=[0.9905, 0.996, 0.995],
    hints={
        "The model never changes: round the master weights to the model's.": [1.0, 2.0, 2.0],
        "The gradients of all steps add up: does zero_grad free the model's gradients?": [0.9834, 2.0, 2.0],
        "40 small updates are lost: each is less than half of the distance between two fp16 numbers. "
        "Adam must update fp32 weights.": [2.0, 1.0, 2.0],
        "The small gradient is lost. Divided by the scale in fp16, it underflows to zero: convert it to fp32 first, and "
        "unscale it then.": [2.0, 2.0, 1.0],
        "Adam's epsilon is added to the true gradient: divide by the loss scale, in fp32.": [2.0, 2.0, 0.99],
    })
# Memory, on a virtual GPU: 2**27 parameters, with 12.4 bytes of activations for each.
case = {"width": 4096, "layers": 8, "samples": 22_528, "steps": 3}
cost = check.gpus(fp16_steps, case, "h100:1",  # where memory was compared with a real GPU's
                  least={"flops": 3 * 23 * 2 * 22_528 * 4096**2, "dtype": "fp16",
                         "live": 14 * 2**27 + 9 * 2 * 22_528 * 4096})
# The reference needs 3.42 GiB, and answers that keep something allocated need 3.92 GiB: 3.65 is
# at least twice the error (3.3%) away from the reference, which 3.6 is not.
check.pass_mark(cost.peak_memory, error=cost.memory_error, below=3.65, hint=f"{cost.peak_memory:.2f} GiB at the peak: something that only the "
           "optimizer step needs is still allocated in the next forward pass.")
### BEGIN HIDDEN TESTS
def adam(weight, gradients, lr, scale):
    first = second = 0.0
    for count, gradient in enumerate(gradients, 1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        root = (second / (1 - 0.999**count)) ** 0.5
        weight -= lr * first / (1 - 0.9**count) / (root + 1e-8)
    return weight


def any_gradients(dice):
    least, most = dice.choice([(0.1, 2), (2e-8, 9e-8)])  # the latter underflow in fp16
    return [dice.choice([-1, 1]) * dice.uniform(least, most) for _ in range(dice.randint(1, 4))]


check.function(
    updated, rel=1e-3, expected=adam,
    cases=check.draw(6, weight=lambda dice: dice.randint(512, 1536) / 1024,  # which fp16 represents
                     lr=check.between(0.005, 0.02), scale=[8192.0, 16384.0], gradients=any_gradients))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="mixed-adam" hint="tensors in the host's memory do not count"
# -        self.master = [weight.detach().float() for weight in self.weights]
# +        self.master = [weight.detach().float().cpu() for weight in self.weights]
# -            master.grad = weight.grad.float() / scale
# +            master.grad = weight.grad.float().cpu() / scale

# %% [raw] tags=["mutant"] answer="mixed-adam" hint="The model never changes"
# -        with torch.no_grad():
# -            for master, weight in zip(self.master, self.weights, strict=True):
# -                weight.copy_(master)
# +        pass

# %% [raw] tags=["mutant"] answer="mixed-adam" hint="gradients of all steps add up"
# -        for weight in (*self.weights, *self.master):
# +        for weight in self.master:

# %% [raw] tags=["mutant"] answer="mixed-adam" hint="40 small updates are lost"
# class MixedPrecisionAdam:
#     def __init__(self, parameters, lr):
#         self.weights = list(parameters)
#         self.adam = torch.optim.Adam(self.weights, lr=lr)
#     def zero_grad(self):
#         self.adam.zero_grad()
#     def step(self, scale):
#         for weight in self.weights:
#             weight.grad /= scale
#         self.adam.step()

# %% [raw] tags=["mutant"] answer="mixed-adam" hint="it underflows to zero"
# -            master.grad = weight.grad.float() / scale
# +            master.grad = (weight.grad / scale).float()

# %% [raw] tags=["mutant"] answer="mixed-adam" hint="divide by the loss scale"
# -            master.grad = weight.grad.float() / scale
# +            master.grad = weight.grad.float()

# %% [raw] tags=["mutant"] answer="mixed-adam" hint="still allocated in the next forward pass"
# -        for weight in (*self.weights, *self.master):
# +        for weight in self.weights:

# %% [raw] tags=["mutant"] answer="mixed-adam" hint="still allocated in the next forward pass"
# -        for master, weight in zip(self.master, self.weights, strict=True):
# -            master.grad = weight.grad.float() / scale
# -        self.adam.step()
# +        if not hasattr(self, "copies"):
# +            self.copies = [torch.empty_like(master) for master in self.master]
# +        for copy, master, weight in zip(self.copies, self.master, self.weights, strict=True):
# +            master.grad = copy.copy_(weight.grad).div_(scale)
# +        self.adam.step()

# %% [markdown]
# The trainer has one flat buffer for the gradients of the passes, as Megatron-LM has, and keeps it: only the main
# gradients are freed. Yours frees both, and needs 14 bytes per parameter in the forward pass.
#
# Other recipes need other numbers of bytes. ZeRO ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054))
# counts 16 for fp16, because it has no copy of the gradient in fp32. PyTorch's `torch.autocast` keeps the
# weights and their gradients in fp32 and casts the weights for each matrix multiplication, so its states also
# take 16 bytes, exactly as in fp32. When you read a number of bytes per parameter, ask for the recipe, and for the
# moment.

# %% [markdown]
# ### Exercise 5: the memory went up
#
# A colleague adds `--fp16` to a job on one V100, changes nothing else, and reports that its peak memory **rose by
# 10%**. Can that be? For $P$ parameters, and activations that take $A$ bytes in fp32 and roughly half of that in fp16, the
# peaks are
#
# $$M_\text{fp32} = 16P + A \qquad M_\text{fp16} = 16P + \max(A/2,\ 4P)$$
#
# because the main gradients exist only when the activations are gone. (To both, CUDA adds 1.2 GiB.)
# Reconstruct the job: fill in `SIZE` with a model and a batch whose peak in fp16 is at least 10% higher than in fp32.
# Both have to fit into the 16 GB of the V100. The vocabulary is GPT-2's, and its logits are activations, too. The check
# estimates your job twice, with and without `--fp16`.

# %% nbgrader={"grade": false, "grade_id": "more-memory", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/more_memory.sh
#!/bin/bash
#SBATCH --job-name=more_memory
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=1
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
### BEGIN SOLUTION
SIZE="--num-layers 24 --hidden-size 1280 --num-attention-heads 20 --seq-length 128 --max-position-embeddings 128 \
      --micro-batch-size 1 --global-batch-size 1"
### END SOLUTION
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 1 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 --fp16 $SIZE $TEXT --lr 1.5e-4 --train-iters 4 --log-interval 2 --eval-iters 0 "$@"

# %% nbgrader={"grade": true, "grade_id": "more-memory-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from dataclasses import replace

from virtualgpu.core.accuracy import ALLOCATED

script = check.script("code/more_memory.sh", only=[
    "--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--max-position-embeddings",
    "--micro-batch-size", "--global-batch-size", "--recompute-granularity", "--recompute-method",
    "--recompute-num-layers"])
in_fp32 = replace(script, runs=(replace(script.run, flags=replace(script.flags, fp16=False)),))
half, single = [check.figures(job, "virtual:v100") for job in (script, in_fp32)]
rise = half.peak_memory / single.peak_memory - 1
check.that(half.fits and single.fits, "It does not fit in both precisions: how many parameters fit at 20 bytes each?")
# The rise is that of tensors, whose memory was compared with a real GPU's on an H100 only.
check.pass_mark(1 + rise, error=ALLOCATED["h100-80gb"], above=1.1, hint=(
    f"In fp16 it needs only {rise:.0%} more: without activations, and without what CUDA needs, it would be a quarter. "
    "Make them smaller still, or the model larger." if rise > 0 else
    f"In fp16 it needs {-rise:.0%} less: the activations outweigh the copy of the gradients. Which flags change them "
    "without changing the number of parameters?"))

# %% [raw] tags=["mutant"] answer="more-memory" hint="the activations outweigh the copy"
# -SIZE="--num-layers 24 --hidden-size 1280 --num-attention-heads 20 --seq-length 128 --max-position-embeddings 128 \
# -      --micro-batch-size 1 --global-batch-size 1"
# +SIZE="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
# +      --micro-batch-size 1 --global-batch-size 1"

# %% [raw] tags=["mutant"] answer="more-memory" hint="the activations outweigh the copy"
# -      --micro-batch-size 1 --global-batch-size 1"
# +      --micro-batch-size 8 --global-batch-size 8"

# %% [raw] tags=["mutant"] answer="more-memory" hint="In fp16 it needs only"
# -SIZE="--num-layers 24 --hidden-size 1280 --num-attention-heads 20 --seq-length 128 --max-position-embeddings 128 \
# +SIZE="--num-layers 24 --hidden-size 1280 --num-attention-heads 20 --seq-length 448 --max-position-embeddings 448 \

# %% [raw] tags=["mutant"] answer="more-memory" hint="does not fit in both"
# -SIZE="--num-layers 24 --hidden-size 1280 --num-attention-heads 20 --seq-length 128 --max-position-embeddings 128 \
# +SIZE="--num-layers 48 --hidden-size 1280 --num-attention-heads 20 --seq-length 128 --max-position-embeddings 128 \

# %% [raw] tags=["mutant"] answer="more-memory" hint="--accumulate-allreduce-grads-in-fp32"
# -      --micro-batch-size 1 --global-batch-size 1"
# +      --micro-batch-size 1 --global-batch-size 1 --accumulate-allreduce-grads-in-fp32"

# %% [markdown]
# Most reports that memory *increased* with fp16 have a simpler cause. Look at the first table again. Which two of its
# rows would lead somebody to that conclusion, and which two should be compared?

# %% tags=["explore"]
larger = precisions[2]
print(f"same micro-batch:   {fp32.total:.2f} -> {result(f'{fp16.total:.2f}')} GiB (virtual)")
print(f"twice the samples:  {fp32.total:.2f} -> {result(f'{larger.total:.2f}')} GiB (virtual)")

# %% [markdown]
# Both lines are true, but the second changes two things at once. People turn fp16 on, notice the free memory,
# double the micro-batch size, and only then read the peak memory. **Change one thing at a time**, and state the
# batch size with every measurement.

# %% [markdown]
# ## The math
#
# So far you have measured what a run costs. Now work it out on paper, so that you know it before anything runs.
# Start with the model.

# %% [markdown]
# ### Exercise 9: the padded vocabulary
#
# A vocabulary can have any size. GPT-2's has 50257 entries, which is not even divisible by 2. This makes the
# embedding an awkward matrix, both for Tensor Cores and for tensor parallelism. So the trainer **pads** the
# vocabulary to the next multiple of `--make-vocab-size-divisible-by` *times* the tensor-parallel size.

# %% nbgrader={"grade": false, "grade_id": "padded", "locked": false, "schema_version": 3, "solution": true, "task": false}
def padded(vocabulary, divisible_by=128, tensor_parallel=1):
    """Return the size of the padded vocabulary (an int)."""
    ### BEGIN SOLUTION
    multiple = divisible_by * tensor_parallel
    return -(-vocabulary // multiple) * multiple
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "padded-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    padded,
    cases=[{"vocabulary": 50257}, {"vocabulary": 50257, "tensor_parallel": 8},
           {"vocabulary": 4096}],
    expected=[50304, 51200, 4096],
    hints={
        "Each tensor-parallel rank's shard has to be a multiple.": [50304, 50304, 4096],
        "That is smaller than the vocabulary: some tokens would have no row.":
            [50176, 50176, 4096],
        "A vocabulary that already is a multiple does not change.": [50304, 51200, 4224],
    })
### BEGIN HIDDEN TESTS
check.function(
    padded, cases=check.draw(20, vocabulary=range(1, 300_000), divisible_by=[1, 8, 64, 128],
                             tensor_parallel=[1, 2, 4, 8]),
    expected=lambda vocabulary, divisible_by, tensor_parallel:
        -(-vocabulary // (divisible_by * tensor_parallel)) * divisible_by * tensor_parallel)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="padded" hint="rank's shard"
# def padded(vocabulary, divisible_by=128, tensor_parallel=1):
#     return -(-vocabulary // divisible_by) * divisible_by

# %% [raw] tags=["mutant"] answer="padded" hint="no row"
# def padded(vocabulary, divisible_by=128, tensor_parallel=1):
#     return vocabulary // (divisible_by * tensor_parallel) * divisible_by * tensor_parallel

# %% [raw] tags=["mutant"] answer="padded" hint="does not change"
# def padded(vocabulary, divisible_by=128, tensor_parallel=1):
#     multiple = divisible_by * tensor_parallel
#     return (vocabulary // multiple + 1) * multiple

# %% [markdown]
# ### Exercise 10: the parameters of our model
#
# Count the parameters of a GPT from the arguments of its script. With the hidden size `h`, the padded
# vocabulary `V` and the sequence length `s` (each position has a learned embedding):
#
# | part | weights | biases |
# |---|---|---|
# | in each layer: query, key and value | `h` x `3h` | `3h` |
# | the attention's projection | `h` x `h` | `h` |
# | MLP, in and out | `h` x `4h` and `4h` x `h` | `4h` and `h` |
# | two layer norms | `h` each | `h` each |
# | once: word embedding (tied with the output matrix: the *same* parameters) | `V` x `h` | |
# | positions | `s` x `h` | |
# | the last layer norm | `h` | `h` |

# %% nbgrader={"grade": false, "grade_id": "gpt-parameters", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpt_parameters(layers, hidden, sequence, vocabulary):
    """Return the number of parameters of a GPT; pad `vocabulary` to a multiple of 128 first."""
    ### BEGIN SOLUTION
    attention = 4 * hidden**2 + 4 * hidden
    mlp = 8 * hidden**2 + 5 * hidden
    norms = 4 * hidden
    embeddings = (padded(vocabulary) + sequence) * hidden
    return layers * (attention + mlp + norms) + embeddings + 2 * hidden
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "gpt-parameters-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    gpt_parameters,
    cases=[{"layers": 4, "hidden": 256, "sequence": 256, "vocabulary": 4096},
           {"layers": 12, "hidden": 768, "sequence": 1024, "vocabulary": 50257},
           {"layers": 2, "hidden": 64, "sequence": 128, "vocabulary": 1000}],
    expected=[4_273_664, 124_475_904, 173_824],
    hints={
        "The vocabulary is padded: the embedding has more rows than the vocabulary has tokens.":
            [4_273_664, 124_439_808, 172_288],
        "Those are the large matrices only. Add the biases and norms.":
            [4_259_840, 124_354_560, 172_032],
        "The output matrix is the word embedding: count tied parameters once.":
            [5_322_240, 163_109_376, 239_360],
        "The position embeddings are missing.": [4_208_128, 123_689_472, 165_632],
        "One more layer norm follows the last layer.": [4_273_152, 124_474_368, 173_696],
    })
### BEGIN HIDDEN TESTS
check.function(
    gpt_parameters,
    cases=check.draw(20, layers=range(1, 129), hidden=range(64, 16_384, 64),
                     sequence=[128, 512, 2048], vocabulary=range(1000, 60_000)),
    expected=lambda layers, hidden, sequence, vocabulary:
        formulas.parameters(formulas.Gpt(layers, hidden, 1, sequence, -(-vocabulary // 128) * 128)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="more rows than the vocabulary"
# -    embeddings = (padded(vocabulary) + sequence) * hidden
# +    embeddings = (vocabulary + sequence) * hidden

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="Add the biases and norms"
# -    return layers * (attention + mlp + norms) + embeddings + 2 * hidden
# +    return layers * 12 * hidden**2 + embeddings

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="count tied parameters once"
# -    embeddings = (padded(vocabulary) + sequence) * hidden
# +    embeddings = (2 * padded(vocabulary) + sequence) * hidden

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="position embeddings are missing"
# -    embeddings = (padded(vocabulary) + sequence) * hidden
# +    embeddings = padded(vocabulary) * hidden

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="One more layer norm"
# -    return layers * (attention + mlp + norms) + embeddings + 2 * hidden
# +    return layers * (attention + mlp + norms) + embeddings

# %% [markdown]
# Does the trainer's count agree? These are the arguments of your first job of this lab, whose vocabulary has 4096
# entries, and this is the number of parameters that the job printed:

# %% tags=["explore"]
!grep --after-context=1 "^MODEL" code/fp16.sh
counted = gpt_parameters(layers=4, hidden=256, sequence=256, vocabulary=4096)
print("your function:", result(counted))
print("the trainer:  ", mark(logs.lines(job.log, "number of parameters")[0], r"\d+ *$"))

# %% [markdown]
# ### Exercise 11: FLOPs per step
#
# Almost all of the computation is in matrix multiplications. Multiplying an `m` x `k` matrix by a `k` x `n` matrix
# takes `2 m k n` FLOPs: a multiplication and an addition each time. So in the **forward pass** each token takes
#
# - two FLOPs for each of the `12 h^2` weights in a layer's matrices;
# - in each layer's attention, `2 s h` for the dot products of its query with all keys, and `2 s h` for the
#   weighted sum of all values;
# - once, two FLOPs for each entry of the output matrix, `V` x `h`.
#
# The **backward pass** takes twice as much as the forward pass, because it computes the gradients of both the
# weights and the inputs. With (full) **recomputation**, the layers' forward pass runs once more; the output matrix is
# not part of a layer.

# %% nbgrader={"grade": false, "grade_id": "iteration-flops", "locked": false, "schema_version": 3, "solution": true, "task": false}
def iteration_flops(layers, hidden, sequence, vocabulary, batch, recompute=False):
    """Return the FLOPs of one step over `batch` samples of `sequence` tokens, on all GPUs together.

    Args:
        layers: number of layers.
        hidden: hidden size.
        sequence: tokens per sample.
        vocabulary: size of the padded vocabulary.
        batch: samples per step.
        recompute: whether all layers are recomputed.
    """
    ### BEGIN SOLUTION
    layer = 2 * 12 * hidden**2 + 4 * sequence * hidden
    output = 2 * vocabulary * hidden
    token = layers * layer * (4 if recompute else 3) + 3 * output
    return batch * sequence * token
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "iteration-flops-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    iteration_flops,
    cases=[{"layers": 4, "hidden": 256, "sequence": 256, "vocabulary": 4096, "batch": 8},
           {"layers": 12, "hidden": 768, "sequence": 1024, "vocabulary": 50304, "batch": 16},
           {"layers": 12, "hidden": 768, "sequence": 1024, "vocabulary": 50304, "batch": 16,
            "recompute": True}],
    expected=[57982058496.0, 14002667126784.0, 17404281225216.0],
    hints={
        "That is the forward pass only. The backward pass takes twice as much.":
            [19327352832.0, 4667555708928.0, 8069169807360.0],
        "A multiplication and an addition are two FLOPs.":
            [28991029248.0, 7001333563392.0, 8702140612608.0],
        "Attention is missing: every token attends to all the others.":
            [51539607552.0, 12147241254912.0, 14930380062720.0],
        "Only the layers are recomputed, and the output matrix is not part of a layer.":
            [57982058496.0, 14002667126784.0, 18670222835712.0],
        "The output matrix is missing: it has a row for every token of the vocabulary.":
            [45097156608.0, 10204842295296.0, 13606456393728.0],
        "Recomputation takes FLOPs, too.":
            [57982058496.0, 14002667126784.0, 14002667126784.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    iteration_flops,
    cases=check.draw(20, layers=range(1, 129), hidden=range(64, 8192, 64), sequence=[128, 512, 2048],
                     vocabulary=range(1024, 60_000, 128), batch=range(1, 2049),
                     recompute=[True, False]),
    expected=lambda layers, hidden, sequence, vocabulary, batch, recompute: float(
        formulas.step_flops(formulas.Gpt(layers, hidden, 1, sequence, vocabulary), batch,
                            "full" if recompute else None)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="forward pass only"
# -    token = layers * layer * (4 if recompute else 3) + 3 * output
# +    token = layers * layer * (2 if recompute else 1) + output

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="are two FLOPs"
# -    return batch * sequence * token
# +    return batch * sequence * token / 2

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="Attention is missing"
# -    layer = 2 * 12 * hidden**2 + 4 * sequence * hidden
# +    layer = 2 * 12 * hidden**2

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="Only the layers are recomputed"
# -    token = layers * layer * (4 if recompute else 3) + 3 * output
# +    token = (layers * layer + output) * (4 if recompute else 3)

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="The output matrix is missing"
# -    token = layers * layer * (4 if recompute else 3) + 3 * output
# +    token = layers * layer * (4 if recompute else 3)

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="takes FLOPs, too"
# -    token = layers * layer * (4 if recompute else 3) + 3 * output
# +    token = layers * layer * 3 + 3 * output

# %% [markdown]
# ### Exercise 12: MFU and HFU
#
# Divide the FLOPs by the step time and by the number of GPUs, and you have the FLOP/s that each GPU achieves. As a
# share of the data sheet's peak, this is the figure that compares runs on different machines. When the FLOPs
# are the model's, without recomputation, it is called **MFU** (*model FLOPs utilization*,
# [Chowdhery et al. 2022](https://arxiv.org/abs/2204.02311)); when recomputation is included, it is **HFU**
# (*hardware*). The peak depends on the GPU **and** on the precision: look it up in `PEAKS`, which the first cell
# of this lab defines.

# %% tags=["explore"]
for name in ("v100-sxm2-16gb", "a100-80gb", "h100-80gb"):
    print(f"{name:16}", ", ".join(f"{precision} {peak:g}" for precision, peak in PEAKS[name].items()))

# %% nbgrader={"grade": false, "grade_id": "achieved", "locked": false, "schema_version": 3, "solution": true, "task": false}
def achieved(flops, milliseconds, gpus, card, precision):
    """Return TFLOP/s per GPU, and that as a share of its peak (1.0 is the peak): two floats.

    Args:
        flops: FLOPs of one step, on all GPUs together.
        milliseconds: step time.
        gpus: number of GPUs.
        card: a key of `PEAKS`.
        precision: "fp32" or "fp16".
    """
    ### BEGIN SOLUTION
    teraflops = flops / (milliseconds / 1000) / gpus / 1e12
    return teraflops, teraflops / PEAKS[card][precision]
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "achieved-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    achieved, rel=1e-4,
    cases=[(8.0e13, 500.0, 4, "v100-sxm2-16gb", "fp16"),
           (1.2e13, 1000.0, 1, "v100-sxm2-16gb", "fp32"),
           (2.0e15, 800.0, 16, "a100-80gb", "bf16")],
    expected=[(40.0, 0.32), (12.0, 0.7643312), (156.25, 0.5008013)],
    hints={
        "That is the rate of all GPUs together.":
            [(160.0, 1.28), (12.0, 0.7643312), (2500.0, 8.012821)],
        "The time is in milliseconds, but FLOP/s are per second.":
            [(0.04, 0.00032), (0.012, 0.0007643312), (0.15625, 0.0005008013)],
        "The peak depends on the precision.":
            [(40.0, 0.32), (12.0, 0.096), (156.25, 0.5008013)],
        "That is a percentage; return 1.0 for the whole peak.":
            [(40.0, 32.0), (12.0, 76.43312), (156.25, 50.08013)],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, flops=check.between(1e12, 1e15, digits=0), gpus=[1, 2, 8, 64],
                   milliseconds=check.between(10.0, 5000.0, digits=1),
                   card=["v100-sxm2-16gb", "t4", "a100-80gb", "a10", "h100-80gb"],
                   precision=["fp32", "fp16"])
check.function(
    achieved, cases=drawn, rel=1e-4,
    expected=lambda flops, milliseconds, gpus, card, precision: (
        flops / milliseconds / gpus / 1e9,
        flops / milliseconds / gpus / 1e9 / CARDS[card].tflops[precision]))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="achieved" hint="all GPUs together"
# -    teraflops = flops / (milliseconds / 1000) / gpus / 1e12
# +    teraflops = flops / (milliseconds / 1000) / 1e12

# %% [raw] tags=["mutant"] answer="achieved" hint="in milliseconds"
# -    teraflops = flops / (milliseconds / 1000) / gpus / 1e12
# +    teraflops = flops / milliseconds / gpus / 1e12

# %% [raw] tags=["mutant"] answer="achieved" hint="depends on the precision"
# -    return teraflops, teraflops / PEAKS[card][precision]
# +    return teraflops, teraflops / PEAKS[card]["fp16"]

# %% [raw] tags=["mutant"] answer="achieved" hint="a percentage"
# -    return teraflops, teraflops / PEAKS[card][precision]
# +    return teraflops, 100 * teraflops / PEAKS[card][precision]

# %% [markdown]
# Put the last exercises together for the virtual V100, from its step time alone. The table above shows a smaller
# share, because the trainer counts only half of attention's FLOPs, as newer versions of Megatron-LM do: a causal
# mask lets each token attend only to earlier ones. **A share of the peak means nothing unless you know which
# FLOPs were counted.**

# %% tags=["explore"]
for cost, precision in zip(precisions[:2], ("fp32", "fp16"), strict=True):
    flops = iteration_flops(12, 768, 1024, padded(50257), batch=2)
    rate, share = achieved(flops, cost.milliseconds, 1, "v100-sxm2-16gb", precision)
    print(f"{cost.name}: {rate:.1f} TFLOP/s, {result(f'{share:.1%}')} of the peak; counting causal "
          f"attention at half: {cost.share_of_peak:.1%} (virtual)")

# %% [markdown]
# ### Exercise 13: days, GPU-hours, dollars
#
# For large models one estimate is enough. A token takes about 6 FLOPs per parameter: two in the forward pass, four
# in the backward pass. With full recomputation it is 8, if the FLOP/s that a GPU achieves include recomputation. One
# GPU for one hour is a **GPU-hour**, which is what cloud providers charge for.

# %% nbgrader={"grade": false, "grade_id": "bill", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bill(parameters, tokens, gpus, teraflops_per_gpu, dollars_per_hour, recompute=False):
    """Return days, GPU-hours, and dollars: three floats.

    Args:
        parameters: number of parameters.
        tokens: number of tokens to train on.
        gpus: number of GPUs.
        teraflops_per_gpu: what each GPU achieves, in TFLOP/s.
        dollars_per_hour: price of one GPU-hour.
        recompute: whether all layers are recomputed.
    """
    ### BEGIN SOLUTION
    flops = (8 if recompute else 6) * tokens * parameters
    seconds = flops / (gpus * teraflops_per_gpu * 1e12)
    gpu_hours = seconds / 3600 * gpus
    return seconds / 86400, gpu_hours, gpu_hours * dollars_per_hour
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "bill-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    bill, rel=1e-4,
    cases=[(1e9, 20e9, 8, 50.0, 3.0), (175e9, 300e9, 1024, 140.0, 2.0, True)],
    expected=[(3.472222, 666.6667, 2000.0), (33.90842, 833333.3, 1666666.7)],
    hints={
        "Recomputation takes time as well.":
            [(3.472222, 666.6667, 2000.0), (25.43132, 625000.0, 1250000.0)],
        "Those are hours of the whole cluster; you pay for every GPU.":
            [(3.472222, 83.33333, 250.0), (33.90842, 813.8021, 1627.604)],
        "That is the forward pass only.":
            [(1.157407, 222.2222, 666.6667), (16.95421, 416666.7, 833333.3)],
        "The first value is in hours, not days.":
            [(83.33333, 666.6667, 2000.0), (813.8021, 833333.3, 1666666.7)],
    })
### BEGIN HIDDEN TESTS
check.function(
    bill, rel=1e-4,
    cases=check.draw(20, parameters=check.between(1e8, 1e12, digits=0), gpus=[1, 8, 64, 3072],
                     tokens=check.between(1e9, 1e12, digits=0),
                     teraflops_per_gpu=check.between(5.0, 400.0, digits=1),
                     dollars_per_hour=check.between(0.5, 12.0, digits=2), recompute=[True, False]),
    expected=lambda parameters, tokens, gpus, teraflops_per_gpu, dollars_per_hour, recompute: (
        formulas.training_days(parameters, tokens, gpus, teraflops_per_gpu, recompute),
        24 * formulas.training_days(parameters, tokens, 1, teraflops_per_gpu, recompute),
        24 * formulas.training_days(parameters, tokens, 1, teraflops_per_gpu, recompute)
        * dollars_per_hour))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="bill" hint="takes time as well"
# -    flops = (8 if recompute else 6) * tokens * parameters
# +    flops = 6 * tokens * parameters

# %% [raw] tags=["mutant"] answer="bill" hint="pay for every GPU"
# -    gpu_hours = seconds / 3600 * gpus
# +    gpu_hours = seconds / 3600

# %% [raw] tags=["mutant"] answer="bill" hint="forward pass only"
# -    flops = (8 if recompute else 6) * tokens * parameters
# +    flops = (4 if recompute else 2) * tokens * parameters

# %% [raw] tags=["mutant"] answer="bill" hint="not days"
# -    return seconds / 86400, gpu_hours, gpu_hours * dollars_per_hour
# +    return seconds / 3600, gpu_hours, gpu_hours * dollars_per_hour

# %% [markdown]
# What would *our* text cost? One pass over all of it is an **epoch**. Use this lab's model, the text in your
# workspace, and one virtual V100 at the throughput measured above. And what would GPT-3's 300 billion tokens cost
# on the same GPU?

# %% tags=["explore"]
from layout_estimator.prices import DOLLARS_PER_HOUR

tokens = os.path.getsize("data/GPT-2_assets/my-gpt2_text_document.bin") // 2  # two bytes each
for count in (tokens, 300 * 10**9):
    days, gpu_hours, dollars = bill(gpt_parameters(12, 768, 1024, 50257), count, 1, rate,
                                    DOLLARS_PER_HOUR["v100-sxm2-16gb"])
    print(f"{count:,} tokens: {result(f'{days:,.3g} days')}, {gpu_hours:,.2f} GPU-hours, "
          f"{dollars:,.2f} dollars (virtual)")

# %% [markdown]
# ### Exercise 14: how many GPUs for a month?
#
# Projects begin with this question: the model has to be ready in a given number of days, so how many GPUs does that
# take? Assume that you can only rent whole nodes.

# %% nbgrader={"grade": false, "grade_id": "gpus-for", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpus_for(days, parameters, tokens, teraflops_per_gpu, gpus_per_node=8, recompute=False):
    """Return the smallest number of GPUs, in whole nodes, that finishes within `days`."""
    ### BEGIN SOLUTION
    flops = (8 if recompute else 6) * tokens * parameters
    gpus = flops / (teraflops_per_gpu * 1e12 * days * 86400)
    return math.ceil(gpus / gpus_per_node) * gpus_per_node
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "gpus-for-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    gpus_for,
    cases=[{"days": 30, "parameters": 175e9, "tokens": 300e9, "teraflops_per_gpu": 140.0,
            "recompute": True},
           {"days": 30, "parameters": 1e9, "tokens": 20e9, "teraflops_per_gpu": 50.0},
           {"days": 10, "parameters": 7e9, "tokens": 140e9, "teraflops_per_gpu": 60.0,
            "gpus_per_node": 4}],
    expected=[1160, 8, 116],
    hints={
        "You can only rent whole nodes. What happens to a partial one?": [1158, 1, 114],
        "This is too few to finish in time: round up.": [1152, 0, 112],
        "That is the number of nodes, not GPUs.": [145, 1, 29],
        "Recomputation takes time as well.": [872, 8, 116],
    })
### BEGIN HIDDEN TESTS
from math import ceil

drawn = check.draw(20, days=range(1, 120), parameters=check.between(1e9, 1e12, digits=0),
                   tokens=check.between(1e9, 1e12, digits=0), gpus_per_node=[1, 2, 4, 8],
                   teraflops_per_gpu=check.between(5.0, 400.0, digits=1), recompute=[True, False])
check.function(
    gpus_for, cases=drawn,
    expected=lambda days, parameters, tokens, teraflops_per_gpu, gpus_per_node, recompute:
        ceil((8 if recompute else 6) * tokens * parameters / (
            teraflops_per_gpu * 1e12 * days * 86400 * gpus_per_node)) * gpus_per_node)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="gpus-for" hint="happens to a partial one"
# -    return math.ceil(gpus / gpus_per_node) * gpus_per_node
# +    return math.ceil(gpus)

# %% [raw] tags=["mutant"] answer="gpus-for" hint="round up"
# -    return math.ceil(gpus / gpus_per_node) * gpus_per_node
# +    return math.floor(gpus / gpus_per_node) * gpus_per_node

# %% [raw] tags=["mutant"] answer="gpus-for" hint="number of nodes"
# -    return math.ceil(gpus / gpus_per_node) * gpus_per_node
# +    return math.ceil(gpus / gpus_per_node)

# %% [raw] tags=["mutant"] answer="gpus-for" hint="takes time as well"
# -    flops = (8 if recompute else 6) * tokens * parameters
# +    flops = 6 * tokens * parameters

# %% [markdown]
# ## A trillion parameters
#
# In 2021, [Narayanan et al.](https://arxiv.org/abs/2104.04473) ran a model with a trillion parameters on 3,072
# A100s, with a global batch of 3,072 sequences, to measure its throughput. You do not need 3,072 A100s to plan such a
# run. The trainer's flag `--estimate` builds every stage of the pipeline on virtual GPUs and prints its cost. (Tensor
# parallelism splits each layer across the GPUs of a node; pipeline parallelism splits the layers across nodes.) First
# your guess: how many days for 450 billion tokens?

# %% nbgrader={"grade": false, "grade_id": "guess-days", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_days = 84
### END SOLUTION

# %% [markdown]
# The estimate takes about half a minute. (`pretrain_gpt.py --estimate` with these flags prints the same in a
# terminal.)

# %% tags=["explore"] short={"pipeline-model-parallel-size 64": "pipeline-model-parallel-size 8", "batch-size 3072": "batch-size 384"}
TRILLION = ("--device virtual:a100-80gb --world-size 3072 --num-layers 128 --hidden-size 25600 "
            "--num-attention-heads 160 --seq-length 2048 --max-position-embeddings 2048 --fp16 "
            "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 64 "
            "--micro-batch-size 1 --global-batch-size 3072 "
            "--recompute-granularity full --recompute-method uniform")
(trillion,) = costs.of({"1T": ""}, TRILLION)
costs.show([trillion])
days = 450e9 / trillion.tokens_per_second / 86400
check.compare("days (virtual)", guess_days, days)

# %% [markdown]
# And on paper, with nothing but your own functions and the time of an iteration?

# %% tags=["explore"]
size = gpt_parameters(128, 25600, 2048, 50257)
flops = iteration_flops(128, 25600, 2048, padded(50257, tensor_parallel=8), 3072, recompute=True)
rate, share = achieved(flops, trillion.milliseconds, 3072, "a100-80gb", "fp16")
paper = bill(size, 450e9, 3072, rate, DOLLARS_PER_HOUR["a100-80gb"], recompute=True)
print(f"{size / 1e12:.3f} trillion parameters, {rate:.0f} TFLOP/s per GPU, HFU {share:.0%} (virtual)")
print(f"on paper {result(f'{paper[0]:.0f} days')}, estimated {result(f'{days:.0f} days')}, published 84 days")
print(f"{paper[1] / 1e6:.1f} million GPU-hours, {result(f'{paper[2] / 1e6:.0f} million dollars')}")
print("GPUs for a month:", result(gpus_for(30, size, 450e9, rate, recompute=True)))
gpt3 = bill(175e9, 300e9, 1024, 140, DOLLARS_PER_HOUR["a100-80gb"], recompute=True)
print(f"GPT-3 on 1,024 A100s: on paper {result(f'{gpt3[0]:.0f} days')}, published 34 days")

# %% [markdown]
# The numbers should be close: your formulas are all you need for a first plan. The published figures are from
# the same paper. Its authors measured 163 TFLOP/s per GPU for the trillion parameters and 140 TFLOP/s for GPT-3,
# and computed the days with the same formula. (The share of the peak in the table is smaller than your HFU. You
# know both reasons by now: it excludes recomputation, and it counts half of attention's FLOPs.)

# %% [markdown]
# ## Discuss
#
# 1. **The memory went up.** A colleague reports: "we switched to fp16, and the memory went up by a fifth."
#    What do you ask?
# 2. **What the bill leaves out.** Your function says how many days it takes. Why will the training take
#    longer, and what would you plan for it?

# %% [markdown]
# ## Cleanup
#
# Checkpoints and profiles are large (in fp16 a checkpoint also holds the master weights
# and the moments), so delete the profiles when you have looked at them.

# %% tags=["explore"]
!du -sh megatron/checkpoints megatron/tensorboard
!rm -rf megatron/checkpoints/fp16 megatron/checkpoints/dp_single_node
!rm -rf megatron/tensorboard/precision
!squeue

# %% [markdown]
# ## Summary
#
# - fp16 has a narrow range and few digits. Loss scaling shifts the gradients into its range. A few skipped
#   steps are healthy and many are not, but no job fails because of them. Master weights in fp32 keep the digits
#   that small updates need.
# - Tensor Cores make matrix multiplications faster, and nothing else. Everything else still takes a large part of the
#   step.
# - At the same micro-batch size, fp16 nearly halves the activations. The bytes per parameter depend on the
#   recipe, and on the moment: 16 here while activations exist, as in ZeRO and with autocast, and 20 in the optimizer
#   step, as in Megatron-LM in 2021. Compare at equal batch size.
# - A token takes 6 FLOPs per parameter, 8 with recomputation. With every share of the peak, state which FLOPs
#   were counted, and on which GPU and precision.
#
# ## Read next
#
# - [Micikevicius et al. 2018, Mixed Precision Training](https://arxiv.org/abs/1710.03740): master weights and loss
#   scaling, with the histogram of gradients that motivates them.
# - [Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM](https://arxiv.org/abs/2104.04473): the trillion parameters, with the formulas of this lab.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# scripts are in it.
#
# **Next:** so far every rank held a whole model, and you made it smaller and faster. Now split the model itself:
# what a pipeline of stages is, and how to keep all of its stages busy, in [Pipeline I](10_pipeline_1.ipynb).
