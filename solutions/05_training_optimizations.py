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
# # Training optimizations: precision, memory and the bill
#
# Your training runs on several nodes. Now make it cheap: numbers with fewer bits, activations that are
# computed twice instead of kept, several small batches for one exchange of gradients. Each of these
# buys something and costs something else. In this lab you find out what. At the end you work out what
# a training costs in days, GPU-hours and dollars, up to a model with a trillion parameters.
#
# **You will be able to**
#
# - train in half precision, and read in the log what the loss scale does;
# - say when half precision saves memory, and when it takes more;
# - choose what is recomputed so that a model just fits a card, in the least time;
# - choose the number of micro-batches for a slow network;
# - count a transformer's parameters and FLOPs, and the share of a card's peak that a run reaches;
# - estimate days, GPU-hours, dollars, and the number of GPUs for a deadline.
#
# **How it works.** Cells run with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where it
# says *Your turn*, you replace a line by your answer; the cell below it checks the answer at once.
# Where you are asked for a guess, guess *before* you run: it gives no marks.
#
# **Real and virtual.** What the loss scale does is real here: the numbers are those of half precision,
# on your CPU. Time and memory on GPUs are **virtual**: modeled from data sheets and published
# measurements. They are the same on every machine.

# %% tags=["setup"]
import math
import os

from labcore import workspace
from virtualgpu.core.cards import CARDS

os.chdir(workspace.home())  # all paths in this lab begin at the workspace
PEAKS = {name: card.tflops for name, card in CARDS.items()}  # TFLOP/s by card and precision

# %% tags=["check-setup"]
from labkit import check
from minimegatron import formulas
from virtualgpu.core.cards import CARDS

# What answers cannot import: they would hold the solution.
check.mask("job_monitor.kernels", "job_monitor.logs", "layout_estimator", "minimegatron",
           "pipeline_schedules")

# %% tags=["explore"]
from job_monitor import kernels, logs
from lab import tensorboard
from lab.notebook import jobs, plots
from labcore.colors import bad, good, mark, result
from layout_estimator import costs

jobs.connect()
!scancel --user=$USER

# %% [markdown]
# ## Half precision
#
# A number in **fp32** has 32 bits. In **fp16**, half precision, it has 16: it takes half the memory,
# and on a GPU the *Tensor Cores* multiply such numbers many times as fast. The price is a narrow range and
# fewer digits. Look at what becomes of some numbers:

# %% tags=["explore"]
import torch

for number in (1.0, 0.1, 1e-6, 1e-9, 65_504.0, 100_000.0):
    kept = torch.tensor(number).half().item()
    print(f"{number:>10g} in fp16: {bad(kept) if kept in (0, math.inf) else f'{kept:g}'}")

# %% [markdown]
# Two things go wrong, in red. Too large becomes `inf`: an **overflow**. Too small becomes 0: an
# **underflow**.
#
# A third thing happens to almost every number: it is rounded, and 0.1 becomes 0.0999756. fp16 keeps 11
# significant bits, about three decimal digits, and fp32 keeps 24, about seven. When an update is too small for
# the last digit of its weight, the weight does not change at all. So the trainer updates a copy of the weights
# in fp32, the **master weights**. You will meet them in exercise 4.
#
# The narrow range is a problem for the gradients. They are often tiny, so without help many of them would
# simply vanish. The help is the **loss scale**: the loss is multiplied by a large number before the backward
# pass, so all gradients are larger by that factor. They are divided by it in fp32, where there is room,
# before the step is made.

# %% [markdown]
# ### Exercise 1: what becomes of a gradient?
#
# What becomes of a gradient in fp16 when the loss is multiplied by `scale`? The largest number in fp16
# is 65504, and the smallest above 0 is `2**-24`. (Leave rounding aside: what is smaller is 0, what is
# larger is infinite.)

# %% nbgrader={"grade": false, "grade_id": "fate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fate(gradient, scale):
    """What the scaled gradient is in fp16: "zero", "fine" or "inf". Gradients may be negative."""
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
        "Far below zero is not small: look at the size, without the sign.":
            ["inf", "zero", "fine", "inf", "fine", "zero"],
        "That is the gradient without the scale: all gradients grow by that factor.":
            ["inf", "zero", "zero", "fine", "fine", "fine"],
        "The scale is divided by afterwards, in fp32. In fp16 the gradient is multiplied by it.":
            ["fine", "zero", "zero", "fine", "fine", "fine"],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(24, power=[*range(-60, -26), *range(-23, 15), *range(17, 40)],
                   scale=range(0, 33), sign=[-1.5, 1.5])
check.function(
    fate,
    cases=[(case["sign"] * 2.0**(case["power"] - case["scale"]), 2.0**case["scale"])
           for case in drawn],
    expected=["inf" if case["power"] > 15 else "zero" if case["power"] < -24 else "fine"
              for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="fate" hint="look at the size"
# def fate(gradient, scale):
#     size = gradient * scale
#     return "inf" if size > 65504 else "fine" if size >= 2**-24 else "zero"

# %% [raw] tags=["mutant"] answer="fate" hint="without the scale"
# def fate(gradient, scale):
#     size = abs(gradient)
#     return "inf" if size > 65504 else "fine" if size >= 2**-24 else "zero"

# %% [raw] tags=["mutant"] answer="fate" hint="divided by afterwards"
# def fate(gradient, scale):
#     size = abs(gradient / scale)
#     return "inf" if size > 65504 else "fine" if size >= 2**-24 else "zero"

# %% [markdown]
# ### Which scale is right?
#
# Nobody knows beforehand: it depends on the model, on the data, and on how far the training is. So the
# trainer tries. It begins with a scale that is far too high. When any gradient overflows, it throws the
# step away (a **skipped iteration**), halves the scale and goes on. After a number of good steps in a
# row, the *window*, it dares to double the scale again.
#
# The next job trains the small GPT in fp16 and begins at the scale 2^30. At which power of 2 will the
# first step be good? Guess.

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
                  math.log2(made[0].loss_scale))
plots.loss_scale(log)

# %% [markdown]
# TensorBoard draws the same curve, under `loss-scale`, for every training in fp16:

# %% tags=["explore"]
tensorboard.link()

# %% [markdown]
# Every cross is a step that was computed and thrown away. Look at one such line of the log, and at the
# line of the first good step: the skipped one has no loss and no norm, and its learning rate did not move.
# (The loss scale in a line is the one that is left after the step.)

# %% tags=["explore"]
lines = logs.lines(job.log, "elapsed time")
for line in [lines[0], *(lines[log.iterations.index(one)] for one in made[:1])]:
    print(mark(line, r"loss scale: [^ |]+", r"number of skipped iterations: +\d+"))

# %% [markdown]
# ### Exercise 2: the rules of the scale
#
# Write the rules down. The function is called after every step and gives the scale for the next one and
# how many good steps there have been in a row since the scale last changed.
#
# - After an overflow: half the scale, but never less than 1; the count begins again at 0.
# - After a good step: one more. When `window` are reached: twice the scale, and the count begins again.

# %% nbgrader={"grade": false, "grade_id": "next-scale", "locked": false, "schema_version": 3, "solution": true, "task": false}
def next_scale(scale, good_steps, overflow, window):
    """(scale, good steps in a row) after a step: a float and an int.

    good_steps: those before this step.   overflow: whether this step overflowed.
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
        "Good steps in a row: what becomes of the count after an overflow?":
            [(32768.0, 3), (65536.0, 4), (131072.0, 0), (1.0, 0)],
        "The count goes on after the scale was doubled: then it never reaches the window again.":
            [(32768.0, 0), (65536.0, 4), (131072.0, 6), (1.0, 0)],
        "The scale goes below 1.": [(32768.0, 0), (65536.0, 4), (131072.0, 0), (0.5, 0)],
        "One step late: this step is a good one, too.":
            [(32768.0, 0), (65536.0, 4), (65536.0, 6), (1.0, 0)],
    })
### BEGIN HIDDEN TESTS
def right(scale, good_steps, overflow, window):
    if overflow:
        return max(scale / 2, 1.0), 0
    return (scale * 2, 0) if good_steps + 1 == window else (scale, good_steps + 1)


drawn = check.draw(30, power=range(0, 33), window=[2, 3, 6, 50, 1000], before=range(1000),
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

# %% [raw] tags=["mutant"] answer="next-scale" hint="below 1"
# -        return max(scale / 2, 1.0), 0
# +        return scale / 2, 0

# %% [raw] tags=["mutant"] answer="next-scale" hint="One step late"
# -    if good_steps + 1 == window:
# +    if good_steps == window:

# %% [markdown]
# ### Exercise 3: how many steps are lost?
#
# Say that nothing overflows at `highest_good`, and that at twice that scale everything does. How many
# steps are skipped until the first good one? One detail more: with `--hysteresis 2` the first overflow
# is forgiven (the step is skipped, and the scale stays), with `--hysteresis 3` the first two are, and so
# on. Once they are used up, every overflow halves the scale.

# %% nbgrader={"grade": false, "grade_id": "skipped-steps", "locked": false, "schema_version": 3, "solution": true, "task": false}
def skipped_steps(initial_scale, highest_good, hysteresis=1):
    """Steps that are skipped before the first good one (an int). Both scales are powers of 2."""
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
        "What the hysteresis forgives is a skipped step all the same.": [13, 15, 0],
        "Only the first overflows are forgiven; once that is used up, each one halves the scale.":
            [13, 30, 0],
        "A scale that is low enough from the beginning loses no steps.": [13, 16, -4],
        "That is how many times as large the first scale is. How often is it halved?":
            [8192, 32769, 0],
        "One too many: at the last of these scales the step is good.": [14, 17, 0],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, initial=range(33), good=range(20), hysteresis=[1, 2, 3, 4])
check.function(
    skipped_steps,
    cases=[(2.0**case["initial"], 2.0**case["good"], case["hysteresis"]) for case in drawn],
    expected=[case["initial"] - case["good"] + case["hysteresis"] - 1
              if case["initial"] > case["good"] else 0 for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="a skipped step all the same"
# -    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
# +    return round(math.log2(initial_scale / highest_good))

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="Only the first overflows"
# -    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
# +    return round(math.log2(initial_scale / highest_good)) * hysteresis

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="low enough from the beginning"
# def skipped_steps(initial_scale, highest_good, hysteresis=1):
#     return round(math.log2(initial_scale / highest_good)) + hysteresis - 1

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="How often is it halved?"
# -    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
# +    return round(initial_scale / highest_good) + hysteresis - 1

# %% [raw] tags=["mutant"] answer="skipped-steps" hint="One too many"
# -    return round(math.log2(initial_scale / highest_good)) + hysteresis - 1
# +    return round(math.log2(initial_scale / highest_good)) + hysteresis

# %% [markdown]
# Does your function say the same as the log of your own job?

# %% tags=["explore"]
if made:
    print("your function:", result(skipped_steps(2.0**30, made[0].loss_scale)))
print("the log:      ", result(sum(one.skipped for one in log.iterations)))

# %% [markdown]
# If the log has more: somewhere later a doubled scale was too high again. That goes on for the whole
# training, and costs a step every now and then.

# %% [markdown]
# ### A scale that is too high, for good
#
# > **Watch out: the next job is meant to go wrong, and you will not be told.** `--loss-scale` fixes the
# > scale. This one is too high, and nothing lowers it.

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
# The job is `COMPLETED`, Slurm is content, and the model has learned nothing: every step was skipped.
# This is why the number of skipped iterations stands in every line. **A few at the beginning are
# healthy. Many, or a scale that falls and falls, mean that something is wrong.**
#
# **bf16** is another format with 16 bits: the range of fp32, and even fewer digits. It needs no loss scale,
# and newer cards have it. A V100 does not.

# %% [markdown]
# ## What half precision buys
#
# Now to the time and the memory, on a **virtual** V100. The model is as large as GPT-2 small: 12 layers, a
# hidden size of 768, and 1,024 positions. But it has 32 attention heads, and GPT-2 small has 12. The number
# of heads does not change the number of parameters, but the attention scores of 32 heads take 2.7 times the
# memory of 12. The data sheet has a promise:

# %% tags=["explore"]
for precision, peak in PEAKS["v100-sxm2-16gb"].items():
    print(f"data sheet, V100, {precision}: {peak:g} TFLOP/s")

# %% [markdown]
# How many times as fast will an iteration in fp16 be, at the same micro-batch? Guess.

# %% nbgrader={"grade": false, "grade_id": "guess-speedup", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_speedup = 5
### END SOLUTION

# %% tags=["explore"]
GPT2 = ("--device virtual:v100 --num-layers 12 --hidden-size 768 --num-attention-heads 32 "
        "--seq-length 1024 --max-position-embeddings 1024 ")
precisions = costs.of({"fp32, micro-batch 2": "--micro-batch-size 2",
                       "fp16, micro-batch 2": "--micro-batch-size 2 --fp16",
                       "fp16, micro-batch 4": "--micro-batch-size 4 --fp16",
                       "fp32, micro-batch 4": "--micro-batch-size 4"}, GPT2)
costs.show(precisions)
fp32, fp16 = precisions[:2]
check.compare("times as fast (virtual V100)", guess_speedup, fp32.milliseconds / fp16.milliseconds)

# %% [markdown]
# Read the first two rows slowly, they hold three surprises. (The column `waiting` is for later.)
#
# - **Time.** It is faster, but by far not as the data sheet says. Why? You will see below.
# - **Share of the peak** (`of peak`). It *falls*, although everything is faster: the peak grew more than
#   the speed did.
# - **Memory.** The activations (`activ.`) shrink, but not quite to half: the dropout masks stay bytes, and
#   the loss is computed in fp32. And `states`, which are the weights, the gradients and the optimizer's,
#   *grow*! (`all` also holds what CUDA takes for itself.)

# %% [markdown]
# ### What runs on Tensor Cores?
#
# A program that runs on a GPU is called a **kernel**: a matrix product is one, a softmax is another. The
# **profiler** notes when each of them begins and ends. Let it look at the first two rows of the table: the
# same model on one virtual V100, first in fp32, then in fp16.

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
# In fp32 no kernel uses Tensor Cores. In fp16 all matrix products do, since the shapes of this model suit
# them. Which **per cent** of the kernels' time will that be? Guess.

# %% nbgrader={"grade": false, "grade_id": "guess-tensor-cores", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_tensor_cores = 80
### END SOLUTION

# %% tags=["explore"]
single = kernels.read("fp32 (virtual V100)", "megatron/tensorboard/precision/run_fp32")
half = kernels.read("fp16 (virtual V100)", "megatron/tensorboard/precision/run_fp16")
check.compare("per cent of the kernels' time on Tensor Cores", guess_tensor_cores,
              100 * half.tensor_core_share)
single.show()
half.show()
kernels.plot(single, half)

# %% [markdown]
# (`gemm` in a kernel's name is a matrix product: `sgemm` in fp32, `s884gemm` on a V100's Tensor Cores.)
#
# So that is where the promise went. The products became much faster, but they are only a part of the step.
# The others (dropout, softmax, the masks) wait for the memory and move half as many bytes now, so they take
# about half as long, no less. What would the best Tensor Cores in the world change?

# %% tags=["explore"]
rest, whole = half.of("rest"), single.total
for what, factor in {"the matrix products": single.of("other") / half.of("tensor"),
                     "everything else": single.of("rest") / rest,
                     "all kernels together": whole / half.total,
                     "all, if products took no time": whole / rest}.items():
    print(f"{what:30} {result(f'{factor:.1f}')} times as fast (virtual)")

# %% [markdown]
# The profiler's own pages show the same. Open the link, and choose `precision/run_fp16` under *Runs*. The
# last line of *GPU Summary* (scroll down in that box) is *Kernel Time using Tensor Cores*. Then choose *GPU
# Kernel* under *Views*: the circle on the right has the same share, and in the table below it the column
# *Tensor Cores Used* says Yes or No for every kernel. Compare with `precision/run_fp32`. There the first
# page also has some advice for you, under *Performance Recommendation*.

# %% tags=["explore"]
tensorboard.link("profiler")

# %% [markdown]
# ### Exercise 4: what a parameter takes
#
# Why do the states grow? This is what the trainer, like Megatron-LM in 2021, keeps of **each parameter**:
#
# | | fp32 | fp16 | bf16 |
# |---|---|---|---|
# | the weight that the model computes with | 4 bytes | 2 bytes | 2 bytes |
# | its gradient | fp32 | fp16 | fp32, since sums need digits |
# | a copy of the weight in fp32 (*master weight*): steps are too small for 16 bits | no | yes | yes |
# | a copy of the gradient in fp32, divided by the scale | no | yes | no: it is fp32 already |
# | Adam's two moments | fp32 | fp32 | fp32 |

# %% nbgrader={"grade": false, "grade_id": "state-bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def state_bytes(parameters, precision):
    """Bytes of weights, gradients and the optimizer's states together.

    precision: "fp32", "fp16" or "bf16".
    """
    ### BEGIN SOLUTION
    each = {"fp32": 4 + 4 + 4 + 4, "fp16": 2 + 2 + 4 + 4 + 4 + 4, "bf16": 2 + 4 + 4 + 4 + 4}
    return parameters * each[precision]
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "state-bytes-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    state_bytes,
    cases=[(1_000_000, "fp32"), (1_000_000, "bf16"), (1_000_000, "fp16")],
    expected=[16_000_000.0, 18_000_000.0, 20_000_000.0],
    hints={
        "Half of everything would be too good: which of it stays in fp32?":
            [16_000_000.0, 8_000_000.0, 8_000_000.0],
        "In fp16 there is a copy of the gradient, too.": [16_000_000.0, 18_000_000.0, 16_000_000.0],
        "The master weights are missing: a step is often too small to change a number of 16 bits.":
            [16_000_000.0, 14_000_000.0, 16_000_000.0],
        "Adam has two moments.": [12_000_000.0, 14_000_000.0, 16_000_000.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    state_bytes, cases=check.draw(12, parameters=range(1, 10**9), precision=["fp32", "fp16", "bf16"]),
    expected=lambda parameters, precision:
        float(parameters * formulas.state_bytes(precision).total))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="state-bytes" hint="too good"
# def state_bytes(parameters, precision):
#     return parameters * {"fp32": 16, "fp16": 8, "bf16": 8}[precision]

# %% [raw] tags=["mutant"] answer="state-bytes" hint="master weights are missing"
# def state_bytes(parameters, precision):
#     return parameters * {"fp32": 16, "fp16": 16, "bf16": 14}[precision]

# %% [raw] tags=["mutant"] answer="state-bytes" hint="a copy of the gradient"
# def state_bytes(parameters, precision):
#     return parameters * {"fp32": 16, "fp16": 16, "bf16": 18}[precision]

# %% [raw] tags=["mutant"] answer="state-bytes" hint="two moments"
# def state_bytes(parameters, precision):
#     return parameters * {"fp32": 12, "fp16": 16, "bf16": 14}[precision]

# %% [markdown]
# Other recipes need other numbers of bytes. ZeRO ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054))
# counts 16 for fp16, because it has no copy of the gradient in fp32. PyTorch's `torch.autocast` keeps the
# weights and their gradients in fp32 and casts the weights for each matrix multiplication, so its states also
# take 16 bytes, exactly as in fp32. When you read a number of bytes per parameter, ask for the recipe.

# %% [markdown]
# ### Exercise 5: does fp16 save memory?
#
# Put both together: at **equal micro-batch** the activations fall to half (take it as exact here), and the
# states grow by what you have just found. How many bytes does fp16 save, for a given model and given activations? If it takes
# more, the answer is negative.

# %% nbgrader={"grade": false, "grade_id": "fp16-saves", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fp16_saves(parameters, activation_bytes_fp32):
    """Bytes that fp16 saves against fp32 (a float), at the same micro-batch."""
    ### BEGIN SOLUTION
    more = state_bytes(parameters, "fp16") - state_bytes(parameters, "fp32")
    return activation_bytes_fp32 / 2 - more
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "fp16-saves-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    fp16_saves,
    cases=[(124_000_000, 8_000_000_000), (1_000_000_000, 2_000_000_000), (1_000_000, 8_000_000)],
    expected=[3_504_000_000.0, -3_000_000_000.0, 0.0],
    hints={
        "That is what the activations save; and the states?":
            [4_000_000_000.0, 1_000_000_000.0, 4_000_000.0],
        "The sign is the wrong way round: what is saved is positive.":
            [-3_504_000_000.0, 3_000_000_000.0, 0.0],
        "The activations are still there, at half their size.":
            [7_504_000_000.0, -2_000_000_000.0, 4_000_000.0],
        "The states do not shrink to half: they grow.":
            [4_992_000_000.0, 9_000_000_000.0, 12_000_000.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    fp16_saves,
    cases=check.draw(20, parameters=range(1000, 10**9), activation_bytes_fp32=range(10**6, 10**10)),
    expected=lambda parameters, activation_bytes_fp32:
        activation_bytes_fp32 / 2 - 4.0 * parameters)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="fp16-saves" hint="and the states?"
# def fp16_saves(parameters, activation_bytes_fp32):
#     return activation_bytes_fp32 / 2

# %% [raw] tags=["mutant"] answer="fp16-saves" hint="wrong way round"
# def fp16_saves(parameters, activation_bytes_fp32):
#     return 4 * parameters - activation_bytes_fp32 / 2

# %% [raw] tags=["mutant"] answer="fp16-saves" hint="still there"
# def fp16_saves(parameters, activation_bytes_fp32):
#     return activation_bytes_fp32 - 4 * parameters

# %% [raw] tags=["mutant"] answer="fp16-saves" hint="they grow"
# def fp16_saves(parameters, activation_bytes_fp32):
#     return activation_bytes_fp32 / 2 + 8 * parameters

# %% [markdown]
# A sentence that one often hears is "in fp16 the memory went up". Look at the table again before you go
# on: which two of its rows would make somebody say so? And which two should be compared?

# %% tags=["explore"]
larger = precisions[2]
print(f"same micro-batch:   {fp32.total:.2f} -> {result(f'{fp16.total:.2f}')} GiB (virtual)")
print(f"twice the samples:  {fp32.total:.2f} -> {result(f'{larger.total:.2f}')} GiB (virtual)")

# %% [markdown]
# Both are true, but the second line changes two things at once. People switch fp16 on, enjoy the room,
# double the micro-batch, and read the memory then. **Change one thing at a time**, and say at which batch.

# %% [markdown]
# ## Activation checkpointing
#
# The activations of the forward pass are kept because the backward pass needs them. They are most of the
# memory. **Activation checkpointing** keeps only the *input* of a layer, and runs the layer's forward
# pass once more when the backward pass gets there. There are two methods for this:
#
# - `--recompute-method uniform`: *all* layers are recomputed, in groups of `--recompute-num-layers`. Of
#   each group only the input of its first layer is kept.
# - `--recompute-method block`: only the *first* `--recompute-num-layers` layers are recomputed, one by
#   one. All others keep everything.
#
# ![Three rows of six layers, after the forward pass. Nothing recomputed: all layers keep their inputs and
# all activations. Uniform, groups of two: only the inputs of layers 0, 2 and 4 are kept. Block, the first
# two layers: layers 0 and 1 keep their inputs, layers 2 to 5 keep everything.](../images/recompute_layers.svg)

# %% [markdown]
# ### Exercise 6: what is kept
#
# How many bytes do the layers keep after the forward pass? A layer that is not recomputed keeps `kept`
# bytes (its input is among them), and an input alone has `input_bytes`.

# %% nbgrader={"grade": false, "grade_id": "kept-bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def kept_bytes(layers, kept, input_bytes, method=None, size=1):
    """Bytes that all layers keep of one micro-batch, when its forward pass is over.

    method: None, "uniform" or "block".   size: --recompute-num-layers.
    """
    ### BEGIN SOLUTION
    if method == "uniform":
        groups = -(-layers // size)  # the last one may be smaller
        return groups * input_bytes
    again = min(size, layers) if method == "block" else 0
    return again * input_bytes + (layers - again) * kept
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "kept-bytes-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    kept_bytes,
    cases=[(12, 100, 4), (12, 100, 4, "uniform", 1), (12, 100, 4, "uniform", 4),
           (12, 100, 4, "uniform", 7), (12, 100, 4, "block", 4), (12, 100, 4, "block", 20)],
    expected=[1200.0, 48.0, 12.0, 8.0, 816.0, 48.0],
    hints={
        "The last group may be smaller, but it has an input as well.":
            [1200.0, 48.0, 12.0, 4.0, 816.0, 48.0],
        "With block the first layers are the ones that are recomputed, not the ones that are kept.":
            [1200.0, 48.0, 12.0, 8.0, 432.0, 1200.0],
        "A layer that is recomputed starts from its input: where is that?":
            [1200.0, 48.0, 12.0, 8.0, 800.0, 0.0],
        "No more layers can be recomputed than there are.":
            [1200.0, 48.0, 12.0, 8.0, 816.0, -720.0],
        "Uniform keeps one input for each group, not for each layer.":
            [1200.0, 48.0, 48.0, 48.0, 816.0, 48.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    kept_bytes,
    cases=check.draw(30, layers=range(1, 97), kept=range(100, 10_000), input_bytes=range(1, 100),
                     method=[None, "uniform", "block"], size=range(1, 100)),
    expected=lambda layers, kept, input_bytes, method, size:
        float(formulas.stage_activations(layers, kept, input_bytes, method, size)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="has an input as well"
# -        groups = -(-layers // size)  # the last one may be smaller
# +        groups = layers // size

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="not the ones that are kept"
# -    return again * input_bytes + (layers - again) * kept
# +    return again * kept + (layers - again) * (input_bytes if method else kept)

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="where is that?"
# -    return again * input_bytes + (layers - again) * kept
# +    return (layers - again) * kept

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="than there are"
# -    again = min(size, layers) if method == "block" else 0
# +    again = size if method == "block" else 0

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="not for each layer"
# -        return groups * input_bytes
# +        return layers * input_bytes

# %% [markdown]
# What does it cost in time? A forward pass is about a third of an iteration's work, so recomputing all of
# them should cost about a third more. Guess: how many per cent longer does an iteration take with
# `uniform`, on the virtual V100?

# %% nbgrader={"grade": false, "grade_id": "guess-longer", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_longer = 33
### END SOLUTION

# %% tags=["explore"]
FULL = "--recompute-granularity full --recompute-method "
settings = {"nothing": "", "selective": "--recompute-granularity selective",
            "uniform 1": FULL + "uniform", "uniform 4": FULL + "uniform --recompute-num-layers 4",
            "block 3": FULL + "block --recompute-num-layers 3",
            "block 9": FULL + "block --recompute-num-layers 9"}
recomputed = costs.of(settings, GPT2 + "--fp16 --micro-batch-size 8")
costs.show(recomputed)
check.compare("per cent longer (virtual V100)", guess_longer,
              100 * (recomputed[2].milliseconds / recomputed[0].milliseconds - 1))

# %% tags=["explore"]
costs.plot(recomputed)

# %% [markdown]
# Without recomputation a micro-batch of 8 does not fit. `uniform` makes it fit with a lot of room to spare,
# and room that nobody uses is time that was given away. `block` is the dial in between: as many layers as
# must be recomputed, and no more. (`selective` is a later invention: it recomputes only the attention's
# inner part, which is large and quickly computed.)

# %% [markdown]
# ### Exercise 7: the best setting for the card
#
# Fill in `MEMORY`: the flags with which this model trains in fp16 with a micro-batch of 8 on **one** V100 of
# 16 GB. It has to fit, and an iteration must take less than **289 ms**. Leave everything else as it is.
# (FlashAttention would change the game, but its kernels want a newer card than this one.)

# %% nbgrader={"grade": false, "grade_id": "my-recompute", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_recompute.sh
#!/bin/bash
#SBATCH --job-name=my_recompute
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 12 --hidden-size 768 --num-attention-heads 32 \
       --seq-length 1024 --max-position-embeddings 1024"
BATCH="--micro-batch-size 8 --global-batch-size 8 --train-iters 6 --lr 1.5e-4"
### BEGIN SOLUTION
MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 5"
### END SOLUTION
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"

srun torchrun --standalone --nproc_per_node 1 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 $MODEL $BATCH $MEMORY $TEXT --log-interval 2 --eval-iters 0 "$@"

# %% nbgrader={"grade": true, "grade_id": "my-recompute-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_recompute.sh", only=[
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers"])
cost = check.figures(script, "virtual:v100")
check.that(cost.fits, "It does not fit. What takes the memory, and what else can be recomputed?")
check.that(cost.milliseconds < 289, "It fits, but an iteration takes longer than asked for. Is "
           "anything recomputed that there would be room for?")

# %% [raw] tags=["mutant"] answer="my-recompute" hint="It does not fit"
# -MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 5"
# +MEMORY=""

# %% [raw] tags=["mutant"] answer="my-recompute" hint="It fits, but"
# -MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 5"
# +MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 6"

# %% [raw] tags=["mutant"] answer="my-recompute" hint="This would go wrong"
# -MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 5"
# +MEMORY="--recompute-granularity full --recompute-num-layers 5 --recompute-method blocks"

# %% [raw] tags=["mutant"] answer="my-recompute" hint="--num-layers 6; the exercise uses 12"
# -MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 5"
# +MEMORY="--num-layers 6"

# %% [raw] tags=["mutant"] answer="my-recompute" hint="--use-flash-attn; the exercise does not use it"
# -MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 5"
# +MEMORY="--use-flash-attn --attention-dropout 0"

# %% [raw] tags=["mutant"] answer="my-recompute" hint="--micro-batch-size 4; the exercise uses 8"
# -MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 5"
# +MEMORY="--micro-batch-size 4"

# %% [raw] tags=["mutant"] answer="my-recompute" hint="--ffn-hidden-size 1; the exercise uses 3072"
# -MEMORY="--recompute-granularity full --recompute-method block --recompute-num-layers 5"
# +MEMORY="--ffn-hidden-size 1 --kv-channels 1"

# %% [markdown]
# The check estimated it. Does a job with virtual cards say the same? Submit it. The second job has twice
# the micro-batch.
#
# > **Watch out: the second job is meant to fail**, with the most common last words of a training.
#
# (There are no numbers in a virtual card, so nothing overflows, and its loss scale stays where it begins.)

# %% tags=["explore"] short={"my_recompute.sh": "my_recompute.sh --train-iters 2"}
!sbatch code/my_recompute.sh

# %% tags=["explore"]
fitted = jobs.wait()
print(mark(logs.lines(fitted.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))

# %% tags=["explore"]
!sbatch code/my_recompute.sh --micro-batch-size 16 --global-batch-size 16

# %% tags=["explore"]
full = jobs.wait()
print(bad(logs.lines(full.log, "out of memory")[-1]))

# %% [markdown]
# It says how much it wanted at last, how much the card has, and how much was taken by then. A real card
# says so in the same words.

# %% [markdown]
# ## Gradient accumulation
#
# A rank can work through several micro-batches before the step is made: it adds their gradients up. The
# memory is that of *one* micro-batch, the step is that of the whole batch. Is that the same training? Try
# it, for real: a global batch of 8 on two ranks, first in micro-batches of 4, then of 1. (Dropout may stay
# on: in this trainer a sample's mask belongs to the sample, in whatever micro-batch it is. Other trainers
# roll one row of dice for all samples, and there the two runs would differ.)

# %% tags=["explore"] short={"iters 4": "iters 4 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/accumulation.sh --train-iters 4 --log-interval 1 --eval-iters 0 \
    --global-batch-size 8 --micro-batch-size 4

# %% tags=["explore"]
at_once = jobs.wait()

# %% tags=["explore"] short={"iters 4": "iters 4 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/accumulation.sh --train-iters 4 --log-interval 1 --eval-iters 0 \
    --global-batch-size 8 --micro-batch-size 1

# %% tags=["explore"]
in_turn = jobs.wait()

# %% tags=["explore"]
for ended in (at_once, in_turn):
    print(mark(logs.lines(ended.log, "number of micro-batches")[0], r"micro-batches.*"))
both = zip(logs.read(at_once.log).iterations, logs.read(in_turn.log).iterations, strict=True)
for one, other in both:
    print(f"iteration {one.iteration}: loss {result(one.loss)} at once, {result(other.loss)} in turn")

# %% [markdown]
# The log says how many micro-batches a step has, and the losses are the same. (A last digit may differ: it
# depends on the order in which numbers are added.)
#
# Why would one do so? For memory, and for the network: the gradients are exchanged **once per step**,
# however many micro-batches it had. Here are four virtual V100s on two nodes with an Ethernet of 25 Gbit/s
# between them. `waiting` is the share of the time in which a card waits for the others' gradients.

# %% tags=["explore"]
FOUR = (GPT2 + "--fp16 --micro-batch-size 4 --world-size 4 --gpus-per-node 2 "
        "--virtual-network ethernet:25gbit ")
accumulated = costs.of({f"global batch {size}": f"--global-batch-size {size}"
                        for size in (16, 32, 64, 128, 256)}, FOUR)
costs.show(accumulated)

# %% [markdown]
# The memory does not move, and the tokens per second rise. Why not take a global batch of a thousand
# then? Because a step of the optimizer is a step: with a larger batch there are fewer of them for the same
# text. Beyond the **critical batch size** ([McCandlish et al. 2018](https://arxiv.org/abs/1812.06162)), a step
# on a larger batch lowers the loss hardly more than a step on a smaller one, so most of the extra text
# is wasted.

# %% [markdown]
# ### Exercise 8: as much accumulation as it takes
#
# So take the *smallest* global batch with which these four cards wait for **less than 15%** of the time.
# The micro-batch stays 4. Fill in `BATCH`. (The exchange takes the same time in every row of the table.
# You can calculate the answer from two of them, or look for it.)

# %% nbgrader={"grade": false, "grade_id": "my-accumulation", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_accumulation.sh
#!/bin/bash
#SBATCH --job-name=my_accumulation
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 12 --hidden-size 768 --num-attention-heads 32 \
       --seq-length 1024 --max-position-embeddings 1024"
### BEGIN SOLUTION
BATCH="--micro-batch-size 4 --global-batch-size 96"
### END SOLUTION
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes 2 --nproc_per_node 2 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 --virtual-network ethernet:25gbit $MODEL $BATCH $TEXT \
    --lr 1.5e-4 --train-iters 3 --log-interval 1 --eval-iters 0 "$@"

# %% nbgrader={"grade": true, "grade_id": "my-accumulation-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_accumulation.sh", only=["--global-batch-size"])
flags = script.flags
cost = check.figures(script, "virtual:v100", network="ethernet:25gbit")
check.that(cost.communication < 0.15, "The cards wait too long: more work for each exchange.")
check.that(flags.global_batch_size <= 96, "They wait little enough, but so they would with a "
           "smaller global batch.")

# %% [raw] tags=["mutant"] answer="my-accumulation" hint="wait too long"
# -BATCH="--micro-batch-size 4 --global-batch-size 96"
# +BATCH="--micro-batch-size 4 --global-batch-size 80"

# %% [raw] tags=["mutant"] answer="my-accumulation" hint="smaller global batch"
# -BATCH="--micro-batch-size 4 --global-batch-size 96"
# +BATCH="--micro-batch-size 4 --global-batch-size 128"

# %% [raw] tags=["mutant"] answer="my-accumulation" hint="--micro-batch-size 8; the exercise uses 4"
# -BATCH="--micro-batch-size 4 --global-batch-size 96"
# +BATCH="--micro-batch-size 8 --global-batch-size 96"

# %% [raw] tags=["mutant"] answer="my-accumulation" hint="--tensor-model-parallel-size 2; the exercise uses 1"
# -BATCH="--micro-batch-size 4 --global-batch-size 96"
# +BATCH="--micro-batch-size 4 --global-batch-size 48 --tensor-model-parallel-size 2"

# %% [raw] tags=["mutant"] answer="my-accumulation" hint="This would go wrong"
# -BATCH="--micro-batch-size 4 --global-batch-size 96"
# +BATCH="--micro-batch-size 4 --global-batch-size 90"

# %% [raw] tags=["mutant"] answer="my-accumulation" hint="--make-vocab-size-divisible-by 1; the exercise uses 128"
# -BATCH="--micro-batch-size 4 --global-batch-size 96"
# +BATCH="--micro-batch-size 4 --global-batch-size 48 --ffn-hidden-size 1 --make-vocab-size-divisible-by 1"

# %% tags=["explore"] short={"my_accumulation.sh": "my_accumulation.sh --train-iters 1"}
!sbatch code/my_accumulation.sh

# %% tags=["explore"]
accumulating = jobs.wait()
print(mark(logs.lines(accumulating.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))

# %% [markdown]
# ## The math
#
# So far you have looked at what a run costs. Now work it out on paper, so that you can say it before
# anything runs. Start with the model.

# %% [markdown]
# ### Exercise 9: the padded vocabulary
#
# A vocabulary can have any number of entries. GPT-2's has 50257, which is not even divisible by 2. That makes
# the embedding an awkward matrix, both for Tensor Cores and for tensor-parallel ranks. So the trainer
# **pads** it: up to the next multiple of `--make-vocab-size-divisible-by` *times* the tensor-parallel
# size.

# %% nbgrader={"grade": false, "grade_id": "padded", "locked": false, "schema_version": 3, "solution": true, "task": false}
def padded(vocabulary, divisible_by=128, tensor_parallel=1):
    """Entries of the vocabulary after padding (an int)."""
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
        "Every tensor-parallel rank's part has to be such a multiple.": [50304, 50304, 4096],
        "That is smaller than the vocabulary: some words would have no place.":
            [50176, 50176, 4096],
        "A vocabulary that is a multiple already stays as it is.": [50304, 51200, 4224],
    })
### BEGIN HIDDEN TESTS
check.function(
    padded, cases=check.draw(20, vocabulary=range(1, 300_000), divisible_by=[1, 8, 64, 128],
                             tensor_parallel=[1, 2, 4, 8]),
    expected=lambda vocabulary, divisible_by, tensor_parallel:
        -(-vocabulary // (divisible_by * tensor_parallel)) * divisible_by * tensor_parallel)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="padded" hint="tensor-parallel rank's part"
# def padded(vocabulary, divisible_by=128, tensor_parallel=1):
#     return -(-vocabulary // divisible_by) * divisible_by

# %% [raw] tags=["mutant"] answer="padded" hint="no place"
# def padded(vocabulary, divisible_by=128, tensor_parallel=1):
#     return vocabulary // (divisible_by * tensor_parallel) * divisible_by * tensor_parallel

# %% [raw] tags=["mutant"] answer="padded" hint="stays as it is"
# def padded(vocabulary, divisible_by=128, tensor_parallel=1):
#     multiple = divisible_by * tensor_parallel
#     return (vocabulary // multiple + 1) * multiple

# %% [markdown]
# ### Exercise 10: the parameters of our model
#
# Count the parameters of a GPT from the arguments of its script. With the hidden size `h`, the padded
# vocabulary `V` and the sequence length `s` (there is one learned position for each place in it):
#
# | part | weights | biases |
# |---|---|---|
# | in each layer: query, key and value | `h` x `3h` | `3h` |
# | the attention's projection | `h` x `h` | `h` |
# | MLP, in and out | `h` x `4h` and `4h` x `h` | `4h` and `h` |
# | two layer norms | `h` each | `h` each |
# | once: word embedding (it is also the output matrix: the *same* numbers) | `V` x `h` | |
# | positions | `s` x `h` | |
# | the last layer norm | `h` | `h` |

# %% nbgrader={"grade": false, "grade_id": "gpt-parameters", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpt_parameters(layers, hidden, sequence, vocabulary):
    """All parameters of a GPT (an int); `vocabulary` is not padded yet (to a multiple of 128)."""
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
        "The vocabulary is padded: the embedding has more rows than there are words.":
            [4_273_664, 124_439_808, 172_288],
        "Those are the large matrices only: there are biases and norms as well.":
            [4_259_840, 124_354_560, 172_032],
        "The output matrix is the word embedding: the same numbers are not counted twice.":
            [5_322_240, 163_109_376, 239_360],
        "The positions are missing.": [4_208_128, 123_689_472, 165_632],
        "There is one more norm, after the last layer.": [4_273_152, 124_474_368, 173_696],
    })
### BEGIN HIDDEN TESTS
check.function(
    gpt_parameters,
    cases=check.draw(20, layers=range(1, 129), hidden=range(64, 16_384, 64),
                     sequence=[128, 512, 2048], vocabulary=range(1000, 60_000)),
    expected=lambda layers, hidden, sequence, vocabulary:
        formulas.parameters(formulas.Gpt(layers, hidden, 1, sequence, -(-vocabulary // 128) * 128)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="more rows than there are words"
# -    embeddings = (padded(vocabulary) + sequence) * hidden
# +    embeddings = (vocabulary + sequence) * hidden

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="biases and norms as well"
# -    return layers * (attention + mlp + norms) + embeddings + 2 * hidden
# +    return layers * 12 * hidden**2 + embeddings

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="not counted twice"
# -    embeddings = (padded(vocabulary) + sequence) * hidden
# +    embeddings = (2 * padded(vocabulary) + sequence) * hidden

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="positions are missing"
# -    embeddings = (padded(vocabulary) + sequence) * hidden
# +    embeddings = padded(vocabulary) * hidden

# %% [raw] tags=["mutant"] answer="gpt-parameters" hint="one more norm"
# -    return layers * (attention + mlp + norms) + embeddings + 2 * hidden
# +    return layers * (attention + mlp + norms) + embeddings

# %% [markdown]
# Does the trainer count the same? These are the arguments of your first job of this lab (its vocabulary
# has 4096 entries), and the job has said how many parameters it holds:

# %% tags=["explore"]
!grep --after-context=1 "^MODEL" code/fp16.sh
counted = gpt_parameters(layers=4, hidden=256, sequence=256, vocabulary=4096)
print("your function:", result(counted))
print("the trainer:  ", mark(logs.lines(job.log, "number of parameters")[0], r"\d+ *$"))

# %% [markdown]
# ### Exercise 11: FLOPs of an iteration
#
# Almost all of the work is in matrix products. A product of an `m` x `k` and a `k` x `n` matrix takes
# `2 m k n` FLOPs, a multiplication and an addition each time. So in the **forward pass** each token takes
#
# - two FLOPs for each of the `12 h^2` weights in a layer's matrices;
# - in each layer's attention, `2 s h` for the products of its query with all keys, and `2 s h` for the
#   weighted sum of all values;
# - once, two FLOPs for each entry of the output matrix, `V` x `h`.
#
# The **backward pass** takes twice as much as the forward pass: it needs the gradients of the weights and
# of the inputs. If the layers are **recomputed** (fully), their forward pass runs once more; the output
# matrix is not in a layer.

# %% nbgrader={"grade": false, "grade_id": "iteration-flops", "locked": false, "schema_version": 3, "solution": true, "task": false}
def iteration_flops(layers, hidden, sequence, vocabulary, batch, recompute=False):
    """FLOPs of one iteration over `batch` samples of `sequence` tokens, all GPUs together.

    vocabulary: padded already.   recompute: whether all layers are recomputed.
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
        "That is the forward pass alone: the backward pass takes twice as much again.":
            [19327352832.0, 4667555708928.0, 8069169807360.0],
        "A multiplication and an addition are two FLOPs.":
            [28991029248.0, 7001333563392.0, 8702140612608.0],
        "The attention's products are missing: every token meets all the others.":
            [51539607552.0, 12147241254912.0, 14930380062720.0],
        "Only layers are recomputed; the output matrix is not in one.":
            [57982058496.0, 14002667126784.0, 18670222835712.0],
        "The output matrix is missing: it has a row for every word.":
            [45097156608.0, 10204842295296.0, 13606456393728.0],
        "What is recomputed is work, too.":
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

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="forward pass alone"
# -    token = layers * layer * (4 if recompute else 3) + 3 * output
# +    token = layers * layer * (2 if recompute else 1) + output

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="are two FLOPs"
# -    return batch * sequence * token
# +    return batch * sequence * token / 2

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="attention's products are missing"
# -    layer = 2 * 12 * hidden**2 + 4 * sequence * hidden
# +    layer = 2 * 12 * hidden**2

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="Only layers are recomputed"
# -    token = layers * layer * (4 if recompute else 3) + 3 * output
# +    token = (layers * layer + output) * (4 if recompute else 3)

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="The output matrix is missing"
# -    token = layers * layer * (4 if recompute else 3) + 3 * output
# +    token = layers * layer * (4 if recompute else 3)

# %% [raw] tags=["mutant"] answer="iteration-flops" hint="is work, too"
# -    token = layers * layer * (4 if recompute else 3) + 3 * output
# +    token = layers * layer * 3 + 3 * output

# %% [markdown]
# ### Exercise 12: what share of the peak?
#
# Divide by the time and by the number of GPUs, and you have the FLOP/s that each GPU achieves. As a share
# of what its data sheet promises, this is the figure by which runs on different machines are compared.
# When the FLOPs are the model's, without recomputation, it is called **MFU** (*model FLOPs utilization*);
# with what is recomputed it is **HFU** (*hardware*). The promise depends on the card **and** on the
# precision: look it up in `PEAKS`, which the first cell of this lab made.

# %% tags=["explore"]
for name in ("v100-sxm2-16gb", "a100-80gb", "h100-80gb"):
    print(f"{name:16}", ", ".join(f"{precision} {peak:g}" for precision, peak in PEAKS[name].items()))

# %% nbgrader={"grade": false, "grade_id": "achieved", "locked": false, "schema_version": 3, "solution": true, "task": false}
def achieved(flops, milliseconds, gpus, card, precision):
    """(TFLOP/s of each GPU, share of its peak; 1.0 is the whole peak): two floats.

    flops, milliseconds: of an iteration, of all GPUs together.
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
        "That is what all GPUs achieve together.":
            [(160.0, 1.28), (12.0, 0.7643312), (2500.0, 8.012821)],
        "The time is given in milliseconds, FLOP/s are per second.":
            [(0.04, 0.00032), (0.012, 0.0007643312), (0.15625, 0.0005008013)],
        "The peak in fp32 is another one than that in fp16.":
            [(40.0, 0.32), (12.0, 0.096), (156.25, 0.5008013)],
        "The share is in per cent; 1.0 is the whole peak.":
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

# %% [raw] tags=["mutant"] answer="achieved" hint="all GPUs achieve together"
# -    teraflops = flops / (milliseconds / 1000) / gpus / 1e12
# +    teraflops = flops / (milliseconds / 1000) / 1e12

# %% [raw] tags=["mutant"] answer="achieved" hint="given in milliseconds"
# -    teraflops = flops / (milliseconds / 1000) / gpus / 1e12
# +    teraflops = flops / milliseconds / gpus / 1e12

# %% [raw] tags=["mutant"] answer="achieved" hint="is another one"
# -    return teraflops, teraflops / PEAKS[card][precision]
# +    return teraflops, teraflops / PEAKS[card]["fp16"]

# %% [raw] tags=["mutant"] answer="achieved" hint="in per cent"
# -    return teraflops, teraflops / PEAKS[card][precision]
# +    return teraflops, 100 * teraflops / PEAKS[card][precision]

# %% [markdown]
# Put the last exercises together for the virtual V100, from its milliseconds alone. The table further up
# has a smaller share: the trainer counts the attention's products at half, as newer versions of
# Megatron-LM do, because a token looks only at those before it. **A share of the peak means nothing until
# one knows what was counted.**

# %% tags=["explore"]
for cost, precision in zip(precisions[:2], ("fp32", "fp16"), strict=True):
    flops = iteration_flops(12, 768, 1024, padded(50257), batch=2)
    rate, share = achieved(flops, cost.milliseconds, 1, "v100-sxm2-16gb", precision)
    print(f"{cost.name}: {rate:.1f} TFLOP/s, {result(f'{share:.1%}')} of the peak; counting causal "
          f"attention at half: {cost.share_of_peak:.1%} (virtual)")

# %% [markdown]
# ### Exercise 13: days, GPU-hours, dollars
#
# For large models one formula is enough. A token takes about 6 FLOPs for each parameter: two in the
# forward pass, four in the backward pass. With full recomputation it is 8. So a training takes
#
# ```
# seconds = 6 * tokens * parameters / (GPUs * FLOP/s per GPU)
# ```
#
# with 8 in place of 6 when the layers are recomputed and the FLOP/s count what is recomputed. One GPU for
# one hour is a **GPU-hour**; that is what clouds charge for.

# %% nbgrader={"grade": false, "grade_id": "bill", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bill(parameters, tokens, gpus, teraflops_per_gpu, dollars_per_hour, recompute=False):
    """(days, GPU-hours, dollars): three floats.

    teraflops_per_gpu: what each GPU achieves, in units of 1e12 FLOP/s.
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
        "What is recomputed takes time as well.":
            [(3.472222, 666.6667, 2000.0), (25.43132, 625000.0, 1250000.0)],
        "Those are hours of the whole machine; every GPU is paid for.":
            [(3.472222, 83.33333, 250.0), (33.90842, 813.8021, 1627.604)],
        "That is the forward pass alone.":
            [(1.157407, 222.2222, 666.6667), (16.95421, 416666.7, 833333.3)],
        "The first one is in hours, not in days.":
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

# %% [raw] tags=["mutant"] answer="bill" hint="every GPU is paid for"
# -    gpu_hours = seconds / 3600 * gpus
# +    gpu_hours = seconds / 3600

# %% [raw] tags=["mutant"] answer="bill" hint="forward pass alone"
# -    flops = (8 if recompute else 6) * tokens * parameters
# +    flops = (4 if recompute else 2) * tokens * parameters

# %% [raw] tags=["mutant"] answer="bill" hint="not in days"
# -    return seconds / 86400, gpu_hours, gpu_hours * dollars_per_hour
# +    return seconds / 3600, gpu_hours, gpu_hours * dollars_per_hour

# %% [markdown]
# What would *our* text cost? An **epoch** is one pass over all of it. Put in the model of this lab, the text
# in your workspace, and one virtual V100 at the rate that it reached above. And what would the 300 billion
# tokens cost that GPT-3 has read, with the same card?

# %% tags=["explore"]
from layout_estimator.prices import DOLLARS_PER_HOUR

tokens = os.path.getsize("data/GPT-2_assets/my-gpt2_text_document.bin") // 2  # two bytes each
for count in (tokens, 300 * 10**9):
    days, gpu_hours, dollars = bill(gpt_parameters(12, 768, 1024, 50257), count, 1, rate,
                                    DOLLARS_PER_HOUR["v100-sxm2-16gb"])
    print(f"{count:,} tokens: {result(f'{days:,.3g} days')} for an epoch, {gpu_hours:,.2f} GPU-hours, "
          f"{dollars:,.2f} dollars (virtual)")

# %% [markdown]
# ### Exercise 14: how many GPUs for a month?
#
# The question that a project begins with: it has to be ready in so many days. How many GPUs does it take?
# One rents whole nodes only.

# %% nbgrader={"grade": false, "grade_id": "gpus-for", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpus_for(days, parameters, tokens, teraflops_per_gpu, gpus_per_node=8, recompute=False):
    """The smallest number of GPUs (an int), in whole nodes, that is ready within `days`."""
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
        "One rents whole nodes: what becomes of the rest?": [1158, 1, 114],
        "Not ready in time: round up.": [1152, 0, 112],
        "Those are nodes.": [145, 1, 29],
        "What is recomputed takes time as well.": [872, 8, 116],
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

# %% [raw] tags=["mutant"] answer="gpus-for" hint="what becomes of the rest?"
# -    return math.ceil(gpus / gpus_per_node) * gpus_per_node
# +    return math.ceil(gpus)

# %% [raw] tags=["mutant"] answer="gpus-for" hint="round up"
# -    return math.ceil(gpus / gpus_per_node) * gpus_per_node
# +    return math.floor(gpus / gpus_per_node) * gpus_per_node

# %% [raw] tags=["mutant"] answer="gpus-for" hint="Those are nodes"
# -    return math.ceil(gpus / gpus_per_node) * gpus_per_node
# +    return math.ceil(gpus / gpus_per_node)

# %% [raw] tags=["mutant"] answer="gpus-for" hint="takes time as well"
# -    flops = (8 if recompute else 6) * tokens * parameters
# +    flops = 6 * tokens * parameters

# %% [markdown]
# ## A trillion parameters
#
# In 2021, [Narayanan et al.](https://arxiv.org/abs/2104.04473) ran a model with a trillion parameters on 3,072
# A100s, with a global batch of 3,072 sequences, to see how fast it would be. You do not need 3,072 A100s to plan
# it. The trainer's flag `--estimate` builds every stage of the pipeline on virtual GPUs and prints what it would
# cost. (Tensor parallelism divides each layer among the GPUs of a node, pipeline parallelism divides the layers
# among nodes.) First your guess: how many days for 450 billion tokens?

# %% nbgrader={"grade": false, "grade_id": "guess-days", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_days = 84
### END SOLUTION

# %% [markdown]
# The estimate takes about half a minute. (`pretrain_gpt.py --estimate` with these flags says the same in a
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
# The numbers should be close: your formulas are all that you need for a first plan. The published ones are
# from the same paper. Its authors measured 163 TFLOP/s per GPU for the trillion parameters, and 140 TFLOP/s
# for GPT-3, and they used the same formula for the days. (The share of the peak in the table is smaller than
# your HFU. You know both reasons by now: what is recomputed does not count there, and causal attention counts
# by half.)

# %% [markdown]
# ## Discuss
#
# 1. **Fewer inputs, more memory.** `uniform` in groups of 4 keeps fewer inputs than in groups of 1, and
#    yet its peak in the table is higher. How can that be?
# 2. **The memory went up.** A colleague reports: "we switched to fp16, and the memory went up by a fifth."
#    What do you ask?
# 3. **More GPUs or more micro-batches?** The cards wait for the network half of the time. Compare a faster
#    network, a larger global batch, and fewer cards.
# 4. **What the bill leaves out.** The formula says how many days it takes. Why will the training take
#    longer, and what would you plan for it?

# %% [markdown]
# ## Clean up
#
# Nothing of yours should go on running, and checkpoints and profiles are large. (In fp16 a checkpoint holds
# the master weights and the moments, too.) When you have looked at the profiles, delete them.

# %% tags=["explore"]
!scancel --user=$USER
!du -sh megatron/checkpoints megatron/tensorboard
!rm -rf megatron/checkpoints/fp16 megatron/checkpoints/accumulation megatron/checkpoints/dp_single_node
!rm -rf megatron/tensorboard/precision
!squeue

# %% [markdown]
# ## Summary
#
# - fp16 has a narrow range and few digits. The loss scale moves the gradients into the range; a few skipped
#   steps are healthy, many are not, and no job fails because of them. Master weights in fp32 keep the digits
#   that small updates need.
# - Tensor Cores make the matrix products faster, and nothing else. What they leave is most of the step.
# - At equal micro-batch, fp16 nearly halves the activations. What each parameter takes depends on the recipe:
#   20 bytes here, as in Megatron-LM in 2021, and 16 in ZeRO and with autocast. Compare at equal batch.
# - Recompute as little as makes the model fit: `block` is the dial.
# - Gradient accumulation leaves the memory as it is, and exchanges the gradients once for more work. Its
#   price is the larger global batch.
# - 6 FLOPs for each parameter and token, 8 with recomputation. A share of the peak needs to say what was
#   counted, and on which card and precision.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# scripts are in it.
#
# **The way on:** so far every rank held a whole model, and you made it smaller and faster. Now
# take the model itself apart: what a pipeline of stages is, and how to keep all of its stages busy, in
# [Pipeline I](10_pipeline_1.ipynb).
