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
# # The bill
#
# Your training runs on several nodes, and now somebody asks what it costs. You could start it and see. But a cluster of
# a thousand GPUs is paid for by the hour, and the answer is needed before anything runs. In this lab you work it out on
# paper: the parameters and FLOPs of a model, the share of a GPU's peak that a run achieves, and from these the days,
# GPU-hours, and dollars of a training run, up to a model with a trillion parameters.
#
# **You will be able to**
#
# - count a transformer's parameters and FLOPs, and compute the MFU of a run;
# - estimate days, GPU-hours, dollars, and the number of GPUs that a deadline requires.
#
# **How it works.** Run the cells with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where a cell
# says *Your turn*, replace that line with your answer; the cell below checks it at once. Where you are asked
# to guess, guess *before* you run. Guesses are not graded.
#
# **Real and virtual.** Time and memory on GPUs are **virtual** here: modeled from data sheets and published
# measurements, and the same on every machine.

# %% tags=["setup"]
import math
import os

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
from job_monitor import logs
from labcore.colors import bad, mark, result
from lablib import jobs
from layout_estimator import costs

jobs.connect()

# %% [markdown]
# ## The math
#
# Start with the model.

# %% [markdown]
# ### Exercise 1: the padded vocabulary
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
# ### Exercise 2: the parameters of our model
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
# Does the trainer's count agree? This job trains a small GPT, whose vocabulary has 4096 entries, for two steps, and prints
# its number of parameters:

# %% tags=["explore"]
!grep --after-context=1 "^MODEL" code/dp_single_node.sh
!sbatch code/dp_single_node.sh --train-iters 2 --log-interval 1 --eval-iters 0 --global-batch-size 4

# %% tags=["explore"]
job = jobs.wait()
counted = gpt_parameters(layers=4, hidden=256, sequence=256, vocabulary=4096)
print("your function:", result(counted))
print("the trainer:  ", mark(logs.lines(job.log, "number of parameters")[0], r"\d+ *$"))

# %% [markdown]
# ### Exercise 3: FLOPs per step
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
# ### Exercise 4: MFU and HFU
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
# Put the last exercises together for the virtual V100, from its step time alone. The estimate of the trainer is a smaller
# share, because it counts only half of attention's FLOPs, as newer versions of Megatron-LM do: a causal
# mask lets each token attend only to earlier ones. **A share of the peak means nothing unless you know which
# FLOPs were counted.**

# %% tags=["explore"]
GPT2 = ("--device virtual:v100 --num-layers 12 --hidden-size 768 --num-attention-heads 12 "
        "--seq-length 1024 --max-position-embeddings 1024 ")
for cost, precision in zip(costs.of({"fp32": "", "fp16": "--fp16"}, GPT2 + "--micro-batch-size 2"), ("fp32", "fp16"),
                           strict=True):
    flops = iteration_flops(12, 768, 1024, padded(50257), batch=2)
    rate, share = achieved(flops, cost.milliseconds, 1, "v100-sxm2-16gb", precision)
    print(f"{cost.name}: {rate:.1f} TFLOP/s, {result(f'{share:.1%}')} of the peak; counting causal "
          f"attention at half: {cost.share_of_peak:.1%} (virtual)")

# %% [markdown]
# ### Exercise 5: days, GPU-hours, dollars
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
# ### Exercise 6: how many GPUs for a month?
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
# 1. **What the bill leaves out.** Your function says how many days it takes. Why will the training take
#    longer, and what would you plan for it?

# %% [markdown]
# ## Cleanup
#
# Checkpoints are large, because they also hold the optimizer states, so delete them.

# %% tags=["explore"]
!du -sh megatron/checkpoints megatron/tensorboard
!rm -rf megatron/checkpoints/dp_single_node
!squeue

# %% [markdown]
# ## Summary
#
# - A token takes 6 FLOPs per parameter, 8 with recomputation. With every share of the peak, state which FLOPs
#   were counted, and on which GPU and precision.
#
# ## Read next
#
# - [Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM](https://arxiv.org/abs/2104.04473): the trillion parameters, with the formulas of this lab.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# scripts are in it.
#
# **Next:** so far every rank held a whole model, and you made it smaller and faster. Now split the model itself:
# what a pipeline of stages is, and how to keep all of its stages busy, in [Pipeline I](10_pipeline_1.ipynb).
