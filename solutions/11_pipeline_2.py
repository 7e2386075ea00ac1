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
# # Pipeline II: schedules, splits, and grids
#
# Your executor from [lab 10](10_pipeline_1.ipynb) runs any schedule, but so far you have only one that is worth
# running. In this lab, you write better ones, and learn how to tell which of them a cluster needs:
#
# - **First sitting, 65 minutes.** GPipe ([Huang et al., 2019](https://arxiv.org/abs/1811.06965)) runs out of memory
#   exactly when it becomes efficient. You write the schedule that large models are trained with, predict its peak
#   memory, and find the fastest way to split a model into stages that fit in memory.
# - **Second sitting, 70 minutes.** You shrink the bubble by giving each stage several chunks of the model, compute how
#   slow a network has to be before that stops paying off, and combine pipelines with your data and tensor parallelism.
#   Finally, you compare DeepSpeed's pipeline with yours.
#
# Values are real: CPU ranks compute them. Time and memory of GPUs are **modeled** by virtual GPUs. Your answers are
# files in `mytrainer/`, and your trainer will train with them.

# %% tags=["setup"]
import os

import torch
import torch.distributed as dist

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace
os.makedirs("mytrainer", exist_ok=True)

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("cluster_planner", "lab.mytrainer", "lablib.plots.bubbles", "layout_estimator",
           "minimegatron", *check.PIPELINE_LIBRARIES)

# %% tags=["explore"]
from functools import partial

import virtualgpu
from job_monitor import logs
from lab.mytrainer import pieces, worked
from labcore.colors import bad, good, result
from lablib import jobs, plots, staged
from layout_estimator import costs, layers
from pipeline_schedules import load, simulate, to_text
from warmranks import run_ranks

jobs.connect()

# %% [markdown]
# This lab builds on your files from lab 10 and, toward the end, on those from labs 04 to 09. The next cell installs the
# course's version of each file that you lack:

# %% tags=["explore"]
NEEDED = ("collectives", "ddp", "launch", "train", "precision", "checkpointing", "states", "tensor_parallel", "heads",
          "vocabulary", "randomness", "llama", "sequence_parallel", "grad_norm", "stage", "micro_batches", "gpipe", "program",
          "pipeline", "p2p", "tied", "llama_stage")
for name in NEEDED:
    if not pieces.find(name).path.exists():
        print("\n".join(worked.install_or_explain(pieces.find(name))))
if "clip=" not in pieces.find("train").path.read_text():
    print("\n".join(worked.install(pieces.find("new/train"), force=True)))

# %% [markdown]
# ## When more micro-batches do not fit
#
# A pipeline of $p$ stages wastes a part of each step: with GPipe and $m$ micro-batches, every GPU idles for
# $(p-1)/(m+p-1)$ of the time, the **bubble fraction**. You know the cure from lab 10, and it is simple: more
# micro-batches. The next cell applies it. Your executor runs a model of 32 transformer layers, with a hidden size of
# 4,096 and sequences of 4,096 tokens, on four virtual H100s with eight layers each.

# %% tags=["explore"] short={"LAYERS = 32": "LAYERS = 4", "(4, 8, 16, 32)": "(4,)"}
LAYERS = 32


def built_in(name, stages, micro_batches, chunks=1):
    """Return a schedule of the course's trainer as lists of actions."""
    return [text.split() for text in to_text(load(name, stages, micro_batches, chunks))]


def on_gpus(schedule, **how):
    """Run a step of the large model with your executor, on a GPU for each stage."""
    def step():
        staged.use_own_executor()
        return staged.gpu_step(schedule, **{"layers": LAYERS, **how})

    with staged.quiet():  # a GPU that runs out of memory prints its traceback
        ranks = virtualgpu.run(step, f"h100:{len(schedule)}")
    for rank in ranks:
        if rank.error and not rank.error.startswith(("OutOfMemoryError", "Stopped")):
            raise RuntimeError(rank.message or rank.error)
    return ranks


def shown(name, ranks):
    """Print the time of a step and the peak memory of each stage."""
    if any(rank.error for rank in ranks):
        print(f"{name}: {bad('CUDA out of memory')}")
        return
    peaks = [(rank.value["state"] + rank.value["passes"]) / 1e9 for rank in ranks]
    seconds = ranks[0].value["seconds"]
    print(f"{name}: {result(f'{1000 * seconds:.0f} ms')}, peak memory of the stages "
          + ", ".join(f"{peak:.0f}" for peak in peaks) + " GB (modeled)")


gpipe = {}
for micro_batches in (4, 8, 16, 32):
    gpipe[micro_batches] = on_gpus(built_in("gpipe", 4, micro_batches))
    shown(f"GPipe, {micro_batches:2} micro-batches, bubble {simulate(load('gpipe', 4, micro_batches)).bubble_fraction:.0%}",
          gpipe[micro_batches])

# %% [markdown]
# With 32 micro-batches, the bubble fraction is down to 9%, but the job runs out of memory. It does not even have an
# optimizer yet, which would need another 12 bytes per parameter. The figure below shows what fills the memory. The
# strip below each stage counts the micro-batches that are **in flight** there: their forward pass is done, but their
# backward pass is not. A stage holds the activations of all of them.

# %% tags=["explore"]
plots.pipeline(load("gpipe", 4, 8), "GPipe, four stages and eight micro-batches")

# %% [markdown]
# Activation checkpointing would help, but it trades time for memory, and each stage would still hold all $m$ inputs. So
# first ask why the activations of so many micro-batches are there at all. Look at the last stage: what does it wait for
# between the forward pass of micro-batch 0 and its backward pass?
#
# **1F1B** ([Narayanan et al., 2019](https://doi.org/10.1145/3341301.3359646)) removes this wait. The version in use
# today ends each step with a **flush**: the pipeline drains until all micro-batches are done ([Narayanan et al.,
# 2021a](https://arxiv.org/abs/2006.09503), who call the schedule PipeDream-Flush). Nearly every large training run with
# a pipeline uses it or its interleaved variant. You are about to write it. But first, guess: with the same number of
# micro-batches, how long does a step take relative to a step of GPipe? Set `guess_time` to this ratio:

# %% answer="guess-time"
### BEGIN SOLUTION
guess_time = 1.0
### END SOLUTION

# %% [markdown]
# ### Exercise 1: 1F1B
#
# Write `one_f_one_b.py`. `F3` is the forward pass of micro-batch 3, and `B3` is its backward pass. Many schedules have
# the following properties, and any of them is right:
#
# - Every stage runs both passes of every micro-batch exactly once, and the stages never deadlock.
# - On stage $s$ (counted from 0), at most $\min(p - s,\, m)$ micro-batches are in flight at any time.
# - The bubble stays within a limit, both when a backward pass takes as long as a forward pass and when it takes twice
#   as long. (The check tells you if your bubble is too large.)
# - It works for any number of stages and any number of micro-batches, including fewer micro-batches than stages.
#
# The check then trains a small model on real ranks with your schedule, and a large one on virtual H100s, where twice
# as many micro-batches may raise the peak memory by at most 30%.

# %% answer="one-f-one-b"
%%writefile mytrainer/one_f_one_b.py
"""1F1B with a flush after each step (PipeDream-Flush; Narayanan et al., 2021a)."""


def one_f_one_b(stages, micro_batches):
    """Return the actions of each stage, in their order: a list of lists such as ["F0", "B0"]."""
    ### BEGIN SOLUTION
    schedule = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, micro_batches)
        actions = [f"F{k}" for k in range(ahead)]
        for k in range(micro_batches):
            if ahead + k < micro_batches:
                actions.append(f"F{ahead + k}")
            actions.append(f"B{k}")
        schedule.append(actions)
    return schedule
    ### END SOLUTION

# %% tags=["driver"]
def my_1f1b(stages, micro_batches):
    """Return the schedule of one_f_one_b.py as the file is now."""
    from lablib import staged

    staged.forget("one_f_one_b")
    from mytrainer.one_f_one_b import one_f_one_b

    return one_f_one_b(stages, micro_batches)


def step_1f1b(sizes, seed, shared):
    """Run a step of a small model with the schedule, one stage on each rank.

    Args:
        sizes: the samples of each micro-batch.
        seed: of this rank's weights.
        shared: seed of the batch.

    Return the loss (on the last rank) and one number for the gradient of the rank's weights.
    """
    from lablib import executor, staged

    executor.install()
    return staged.small_step(my_1f1b(dist.get_world_size(), len(sizes)), sizes, seed, shared)


def gpus_1f1b(stages, micro_batches, layers):
    """Run a step of some transformer layers with the schedule, one stage on each GPU."""
    from lablib import executor, staged

    executor.install()
    staged.gpu_step(my_1f1b(stages, micro_batches), layers)

# %% tags=["check-setup"]
def one_process(seeds, sizes, shared, chunks=1):
    """Train the small model in one process; return what a step on ranks returns on each of them."""
    import torch

    from lablib import tensor

    stages, width, loss = len(seeds), 4, 0
    weights = [tensor.sines((width, width), seeds[part % stages] + 10 * (part // stages)).requires_grad_()
               for part in range(stages * chunks)]
    for number, size in enumerate(sizes):
        x, y = (tensor.sines((size, width), shared + 3 * number + more) for more in (0, 1))
        for weight in weights:
            x = torch.tanh(x @ weight.T)
        loss = loss + ((x - y) ** 2).mean() * size / sum(sizes)
    loss.backward()
    grads = [float((weight.grad * tensor.sines((width, width), 2.0)).sum()) for weight in weights]
    return [[loss.item() if stage == stages - 1 else None, grads[stage::stages]] for stage in range(stages)]


GEMMS = 2 * 12 * 4096**3  # FLOPs of a layer's forward pass, of one sequence of 4,096 tokens

# %% check="one-f-one-b" points=6
with check.parts():
    with check.part(3, "has the bubble of GPipe, and fewer micro-batches in flight"):
        check.schedule(
            my_1f1b,
            cases=[(4, 8), (2, 4), (4, 2), (3, 7), (1, 3)], like="1f1b",
            hints={
                "That has GPipe's memory. What is the first moment at which a backward pass can run?": "gpipe",
                "One micro-batch at a time: which stages are busy meanwhile?": "one at a time",
                "Between the first and the last pass of a stage, who waits for whom?": "bubble",
                "Which number in your file should be `stages` or `micro_batches`?": "some sizes",
                "Follow micro-batch 0 to the last stage by hand. What does the next stage need before it can send back a "
                "gradient?": "deadlock",
                "How many micro-batches must a stage have in flight, so that it has work until the first gradient comes "
                "back?": "memory",
                "Count the passes of every stage: each micro-batch has one forward and one backward pass.": "incomplete",
            })
        ### BEGIN HIDDEN TESTS
        check.schedule(my_1f1b, cases=check.draw(12, stages=range(1, 10), micro_batches=range(1, 20)), like="1f1b")
        ### END HIDDEN TESTS
    with check.part(2, "trains a model on ranks"):
        check.ranks(step_1f1b, ranks=2, rel=1e-4, cases=[
            {"sizes": [2, 3, 1], "seed": check.by_rank([1.0, 2.0]), "shared": 3.0}],
            expected=[[[None, [0.2758382]], [0.2420335, [0.1328096]]]])
        ### BEGIN HIDDEN TESTS
        check.ranks(step_1f1b, ranks=4, rel=1e-3, cases=check.draw(
            1, sizes=lambda dice: [dice.randint(1, 4) for _ in range(dice.choice([2, 5, 7]))],
            seed=check.for_each_rank(check.between(0, 100)), shared=check.between(0, 100)),
            expected=lambda ranks, sizes, seed, shared: one_process(seed, sizes, shared))
        ### END HIDDEN TESTS
    with check.part(1, "needs no more memory for more micro-batches"):
        few, many = [check.gpus(gpus_1f1b, {"stages": 4, "micro_batches": count, "layers": 4}, "h100:4",
                                least={"flops": 2 * GEMMS * count, "dtype": "bf16"}) for count in (4, 8)]
        check.pass_mark(many.peak_memory / few.peak_memory, "With twice the micro-batches, the peak grows. Which stage holds "
                        "more of them, and why?", error=many.memory_error, below=1.3)

# %% [raw] mutant="one-f-one-b" hint="That has GPipe's memory"
# -        ahead = min(stages - stage - 1, micro_batches)
# +        ahead = micro_batches

# %% [raw] mutant="one-f-one-b" hint="the peak grows"
# -        ahead = min(stages - stage - 1, micro_batches)
# -        actions = [f"F{k}" for k in range(ahead)]
# -        for k in range(micro_batches):
# -            if ahead + k < micro_batches:
# -                actions.append(f"F{ahead + k}")
# -            actions.append(f"B{k}")
# +        actions = [f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))]

# %% [raw] mutant="one-f-one-b" hint="Follow micro-batch 0 to the last stage"
# -        ahead = min(stages - stage - 1, micro_batches)
# +        ahead = min(stage, micro_batches)

# %% [raw] mutant="one-f-one-b" hint="Which number in your file"
# -        ahead = min(stages - stage - 1, micro_batches)
# +        ahead = min(4 - stage - 1, micro_batches)

# %% [raw] mutant="one-f-one-b" hint="One micro-batch at a time"
# -        ahead = min(stages - stage - 1, micro_batches)
# +        ahead = 0

# %% [raw] mutant="one-f-one-b" hint="must a stage have in flight"
# -        ahead = min(stages - stage - 1, micro_batches)
# +        ahead = min(stages - stage, micro_batches)

# %% [raw] mutant="one-f-one-b" hint="who waits for whom"
# -    schedule = []
# -    for stage in range(stages):
# -        ahead = min(stages - stage - 1, micro_batches)
# -        actions = [f"F{k}" for k in range(ahead)]
# -        for k in range(micro_batches):
# -            if ahead + k < micro_batches:
# -                actions.append(f"F{ahead + k}")
# -            actions.append(f"B{k}")
# -        schedule.append(actions)
# -    return schedule
# +    half, schedule = max(1, micro_batches // 2), []
# +    for stage in range(stages):
# +        actions = []
# +        for first, last in ((0, half), (half, micro_batches)):
# +            ahead = min(stages - stage - 1, last - first)
# +            actions += [f"F{k}" for k in range(first, first + ahead)]
# +            for k in range(first, last):
# +                actions += [f"F{k + ahead}"] * (k + ahead < last) + [f"B{k}"]
# +        schedule.append(actions)
# +    return schedule

# %% [raw] mutant="one-f-one-b" hint="who waits for whom"
# -        schedule.append(actions)
# +        schedule.append([*actions[:-2], *reversed(actions[-2:])] if stage == 0 < ahead else actions)

# %% [raw] mutant="one-f-one-b" hint="Count the passes of every stage"
# -            actions.append(f"B{k}")
# +            if ahead + k < micro_batches:
# +                actions.append(f"B{k}")

# %% tags=["explore"] short={"MANY = 8": "MANY = 4", "4 * MANY": "8"}
MANY = 8
times = {}
for name, ranks in {"GPipe": gpipe[MANY], "your 1F1B": on_gpus(my_1f1b(4, MANY)),
                    "your 1F1B, 4 times as many": on_gpus(my_1f1b(4, 4 * MANY))}.items():
    shown(f"{name:28}", ranks)
    times[name] = ranks[0].value["seconds"] if ranks[0].value else float("nan")
check.compare("step time of 1F1B, GPipe's is 1.0", guess_time, times["your 1F1B"] / times["GPipe"])
plots.pipeline(my_1f1b(4, 8), "My 1F1B", steps=True)

# %% [markdown]
# **Same bubble, less memory.** Many people believe that 1F1B has a smaller bubble than GPipe. It does not: the first
# stage still has to fill the pipeline, and then wait until the first gradient has come back from the last stage. (Step
# through your schedule with the slider to see which stage waits for which.) What 1F1B saves is memory. That memory lets
# you run more micro-batches, and with more micro-batches, the bubble *is* smaller.
#
# Recall from lab 10 that the bubble fraction divides by the step time, and the bubble overhead, here $(p-1)/m$, by the
# compute time.
#
# With 1F1B, the stages also differ in memory: the first one needs the most, and the last one the least.

# %% [markdown]
# ## What exactly is in memory?
#
# On a cluster, you want to know the peak memory before your job has waited in the queue for two days. A stage holds
# more than the activations that its layers save for the backward pass. It also holds the hidden states that it receives
# and sends, their gradients, and temporary tensors that a pass needs only while it runs. You can work all of this out
# from a rank's program. Here is the one that `add_communication` from lab 10 writes for the middle one of three stages:

# %% tags=["explore"]
def my_programs(schedule):
    """Return the programs of all stages, from your add_communication."""
    def made():
        staged.use_own_executor()
        from mytrainer.program import add_communication

        return add_communication(schedule)

    return run_ranks(made, 1)[0]


print("\n".join(my_programs(my_1f1b(3, 2))[1]))

# %% [markdown]
# ### Exercise 2: predict the peak
#
# Write `pipeline_memory.py`, which predicts from a rank's program the peak memory of its passes, on top of parameters,
# their gradients, and optimizer state. It works for any program, including that of a stage that holds several separate
# pieces of the model. Such pieces are called chunks and numbered from 0, and you will use them in the second sitting.
# To find out how long each tensor lives, read your own `Stage`, `Pipeline`, and `Links`. Assume that a send completes
# at once. During a pass, its inputs and its outputs are both in memory. The first stage receives no hidden states for
# chunk 0, and the loss takes no memory, so everything that a pass receives or sends is in the program.
#
# The check also compares your prediction for 1F1B with the modeled peak on four virtual H100s. Parameters and gradients
# included, the two may differ by at most 10%. This part needs your `one_f_one_b.py`.

# %% answer="pipeline-memory"
%%writefile mytrainer/pipeline_memory.py
"""Predict the peak memory of a pipeline's rank."""


def peak_bytes(program, saved, boundary, forward_extra, backward_extra):
    """Return the bytes that the passes of a rank hold at the peak.

    Args:
        program: this rank's program, such as ["recv F0 from 0", "F0", "send F0 to 2", "recv B0 from 2", "B0", "send B0 to 0"];
            F2.1 is a pass of chunk 1.
        saved: for each chunk, the bytes that a forward pass saves for the backward pass of the same micro-batch, besides
            its input and its output.
        boundary: bytes of the hidden states between two stages, and also of their gradient.
        forward_extra: for each chunk, the bytes that a forward pass needs besides, while it runs.
        backward_extra: the same for a backward pass.
    """
    ### BEGIN SOLUTION
    sent = {item.split()[1] for item in program if item.startswith("send")}
    received = {item.split()[1] for item in program if item.startswith("recv")}
    held = peak = 0
    for item in program:
        verb, *rest = item.split()
        if verb == "recv":
            held += boundary
        elif verb == "send":
            if rest[0].startswith("B"):  # a stage keeps its output for the backward pass
                held -= boundary
        else:
            chunk = int(verb.partition(".")[2] or 0)
            if verb in sent:
                held += boundary
            if verb.startswith("F"):
                held += saved[chunk]
                peak = max(peak, held + forward_extra[chunk])
            else:
                peak = max(peak, held + backward_extra[chunk])
                forward = "F" + verb[1:]
                held -= saved[chunk] + boundary * ((forward in received) + (forward in sent) + (verb in received))
        peak = max(peak, held)
    return peak
    ### END SOLUTION

# %% tags=["driver"]
def predicted_peak(program, saved, boundary, forward_extra, backward_extra):
    """Return the prediction of pipeline_memory.py as the file is now."""
    from lablib import staged

    staged.forget("pipeline_memory")
    from mytrainer.pipeline_memory import peak_bytes

    return peak_bytes(program, saved, boundary, forward_extra, backward_extra)

# %% tags=["check-setup"]
def programs_of(name, stages, micro_batches, chunks):
    """Return the programs of a built-in schedule."""
    from lablib.executor import add_communication
    from pipeline_schedules import load, to_text

    return add_communication([text.split() for text in to_text(load(name, stages, micro_batches, chunks))])


def peak_of(program, saved, boundary, forward_extra, backward_extra):
    """Return the peak of what the tensors of each moment take together."""
    moments, last = [], {}
    for place, item in enumerate(program):  # a tensor: its bytes, and the places of its first and last moment
        last[item.partition(" from")[0].partition(" to")[0]] = place
    for item, place in last.items():
        kind, _, action = item.rpartition(" ")
        chunk = int(action.partition(".")[2] or 0)
        end = last["B" + action[1:]]
        if kind == "recv":
            moments.append((boundary, place, end))
        elif kind == "send":
            moments.append((boundary, last[action], end if action[0] == "F" else place - 1))
        elif action[0] == "F":
            moments += [(saved[chunk], place, end), (forward_extra[chunk], place, place)]
        else:
            moments.append((backward_extra[chunk], place, place))
    return max(sum(size for size, first, end in moments if first <= place <= end) for place in range(len(program)))

# %% check="pipeline-memory" points=4
MIDDLE = ["recv F0 from 0", "F0", "send F0 to 2", "recv F1 from 0", "F1", "send F1 to 2", "recv B0 from 2", "B0", "send B0 to 0",
          "recv B1 from 2", "B1", "send B1 to 0"]
FIRST = ["F0", "send F0 to 1", "F1", "send F1 to 1", "recv B0 from 1", "B0", "F2", "send F2 to 1", "recv B1 from 1", "B1",
         "recv B2 from 1", "B2"]
LAST = ["recv F0 from 0", "recv F1 from 0", "F0", "B0", "send B0 to 0", "F1", "B1", "send B1 to 0"]
CHUNKS = ["F0", "send F0 to 1", "F1", "send F1 to 1", "recv F0.1 from 1", "F0.1", "send F0.1 to 1", "recv F1.1 from 1",
          "recv B0.1 from 1", "F1.1", "send F1.1 to 1", "B0.1", "send B0.1 to 1", "recv B1.1 from 1", "B1.1", "send B1.1 to 1",
          "recv B0 from 1", "B0", "recv B1 from 1", "B1"]
APART = ["recv F0 from 0", "F0", "send F0 to 2", "recv B0 from 2", "B0", "send B0 to 0", "recv F1 from 0", "F1", "send F1 to 2",
         "recv B1 from 2", "B1", "send B1 to 0"]
with check.parts():
    with check.part(2, "predicts the peak of any program"):
        check.function(
            predicted_peak, rel=1e-9,
            cases=[{"program": MIDDLE, "saved": [1000], "boundary": 10, "forward_extra": [2000], "backward_extra": [300]},
                   {"program": MIDDLE, "saved": [1000], "boundary": 10, "forward_extra": [1], "backward_extra": [300]},
                   {"program": FIRST, "saved": [1000], "boundary": 10, "forward_extra": [2000], "backward_extra": [300]},
                   {"program": LAST, "saved": [200], "boundary": 100, "forward_extra": [1], "backward_extra": [30]},
                   {"program": CHUNKS, "saved": [1000, 50], "boundary": 10, "forward_extra": [1, 2], "backward_extra": [30, 4000]},
                   {"program": APART, "saved": [10], "boundary": 100, "forward_extra": [50], "backward_extra": [5]}],
            expected=[4040, 2360, 4020, 530, 6180, 415],
            hints={
                "A stage sends its output, and the backward pass of the same micro-batch still needs it.":
                    [4030, 2340, 4010, 530, 6140, 315],
                "A receive has its buffer as soon as it is posted, and not only when the pass begins.":
                    [4040, 2360, 4020, 430, 6180, 415],
                "How long does the input of a chunk live? Look at what `Stage.backward` returns.":
                    [4020, 2340, 4020, 430, 6160, 315],
                "A backward pass has a result, too: the gradient of its input.":
                    [4040, 2350, 4020, 430, 6170, 315],
                "A forward pass needs memory while it runs, and that may be the peak.":
                    [2360, 2360, 2330, 530, 6180, 415],
                "A gradient is free once it has been sent.":
                    [4040, 2360, 4020, 530, 6180, 515],
                "A backward pass needs more memory while it runs, too.":
                    [4040, 2060, 4020, 500, 2180, 410],
                "What a pass needs only while it runs is free again when it ends.":
                    [6360, 2362, 6330, 531, 6186, 465],
                "While a backward pass runs, what it uses is still in memory.":
                    [4040, 2050, 4020, 401, 6100, 310],
                "F2.1 is a pass of chunk 1, and the chunks differ.":
                    [4040, 2360, 4020, 530, 4110, 415],
                "Not every pass has a boundary on both sides: who receives no hidden states, and who sends none?":
                    [4040, 2360, 4030, 630, 6180, 515]})
        ### BEGIN HIDDEN TESTS
        for case in check.draw(12, name=["gpipe", "1f1b", "interleaved"], stages=range(2, 6), groups=range(1, 4), stage=range(6),
                               boundary=range(1, 400), sizes=lambda dice: [dice.randint(1, 3000) for _ in range(9)]):
            chunks = 3 if case["name"] == "interleaved" else 1
            programs = programs_of(case["name"], case["stages"], case["stages"] * case["groups"], chunks)
            check.function(predicted_peak, rel=1e-9, expected=peak_of, cases=[{
                "program": programs[case["stage"] % case["stages"]], "boundary": case["boundary"], "saved": case["sizes"][:chunks],
                "forward_extra": case["sizes"][3:3 + chunks], "backward_extra": case["sizes"][6:6 + chunks]}])
        ### END HIDDEN TESTS
    with check.part(2, "predicts the modeled peak of your 1F1B on GPUs, within 10%"):
        cost = check.gpus(gpus_1f1b, {"stages": 4, "micro_batches": 4, "layers": 16}, "h100:4",
                          least={"flops": 2 * GEMMS * 4 * 4, "dtype": "bf16"})
        state = 4 * 12 * 4096**2 * 4
        for stage, program in enumerate(programs_of("1f1b", 4, 4, 1)):
            predicted = check.call(predicted_peak, program, [2082607104], 33554432, [33554432], [234881024])
            found = cost.ranks[stage].live
            check.that(isinstance(predicted, int | float) and abs((state + predicted) / found - 1) <= 0.1,
                       f"Stage {stage}: with parameters and gradients, the modeled peak is {found / 1e9:.2f} GB, and you predict "
                       f"{((predicted or 0) + state) / 1e9:.2f} GB. List what is in flight there.")

# %% [raw] mutant="pipeline-memory" hint="still needs it"
# -            if rest[0].startswith("B"):  # a stage keeps its output for the backward pass
# -                held -= boundary
# +            held -= boundary
# -                held -= saved[chunk] + boundary * ((forward in received) + (forward in sent) + (verb in received))
# +                held -= saved[chunk] + boundary * ((forward in received) + (verb in received))

# %% [raw] mutant="pipeline-memory" hint="as soon as it is posted"
# -        if verb == "recv":
# -            held += boundary
# -        elif verb == "send":
# +        if verb == "recv":
# +            continue
# +        if verb == "send":
# -            if verb in sent:
# +            if verb in received:
# +                held += boundary
# +            if verb in sent:

# %% [raw] mutant="pipeline-memory" hint="Look at what"
# -                held += saved[chunk]
# +                held += saved[chunk] - boundary * (verb in received)
# -                held -= saved[chunk] + boundary * ((forward in received) + (forward in sent) + (verb in received))
# +                held -= saved[chunk] + boundary * ((forward in sent) + (verb in received))

# %% [raw] mutant="pipeline-memory" hint="the gradient of its input"
# -            if verb in sent:
# +            if verb in sent and verb.startswith("F"):
# -            if rest[0].startswith("B"):  # a stage keeps its output for the backward pass
# -                held -= boundary
# +            pass

# %% [raw] mutant="pipeline-memory" hint="and that may be the peak"
# -                peak = max(peak, held + forward_extra[chunk])
# +                peak = max(peak, held)

# %% [raw] mutant="pipeline-memory" hint="is still in memory"
# -                peak = max(peak, held + backward_extra[chunk])
# -                forward = "F" + verb[1:]
# -                held -= saved[chunk] + boundary * ((forward in received) + (forward in sent) + (verb in received))
# +                forward = "F" + verb[1:]
# +                held -= saved[chunk] + boundary * ((forward in received) + (forward in sent) + (verb in received))
# +                peak = max(peak, held + backward_extra[chunk])

# %% [raw] mutant="pipeline-memory" hint="free once it has been sent"
# -            if rest[0].startswith("B"):  # a stage keeps its output for the backward pass
# -                held -= boundary
# +            pass

# %% [raw] mutant="pipeline-memory" hint="more memory while it runs"
# -                peak = max(peak, held + backward_extra[chunk])
# +                peak = max(peak, held)

# %% [raw] mutant="pipeline-memory" hint="is free again when it ends"
# -                held += saved[chunk]
# -                peak = max(peak, held + forward_extra[chunk])
# +                held += saved[chunk] + forward_extra[chunk]
# -                held -= saved[chunk] + boundary * ((forward in received) + (forward in sent) + (verb in received))
# +                held -= (saved[chunk] + forward_extra[chunk]
# +                         + boundary * ((forward in received) + (forward in sent) + (verb in received)))

# %% [raw] mutant="pipeline-memory" hint="is a pass of chunk 1"
# -            chunk = int(verb.partition(".")[2] or 0)
# +            chunk = 0

# %% [raw] mutant="pipeline-memory" hint="a boundary on both sides"
# -            if verb in sent:
# -                held += boundary
# +            held += boundary
# -                held -= saved[chunk] + boundary * ((forward in received) + (forward in sent) + (verb in received))
# +                held -= saved[chunk] + boundary * (1 + (verb in received))

# %% [raw] mutant="pipeline-memory" hint="List what is in flight there"
# -    return peak
# +    return max(saved) + max(backward_extra)

# %% [markdown]
# The numbers in the check come from a single GPU that runs both passes of a few layers. The next cell measures them for
# the layers of one stage, and compares your predictions with a run of the whole pipeline. It then does the same for
# **recomputation under 1F1B**: with activation checkpointing, a layer saves only its input, and the backward pass runs
# the layer's forward pass again. By what factor does that slow down the step? Set `guess_recompute`:

# %% answer="guess-recompute"
### BEGIN SOLUTION
guess_recompute = 1.25
### END SOLUTION

# %% tags=["explore"]
seconds = {}
for recompute in (False, True):
    (one,) = virtualgpu.run(partial(staged.gpu_passes, LAYERS // 4, recompute=recompute), "h100:1")
    sizes = {name: one.value[name] if name == "boundary" else [one.value[name]]
             for name in ("saved", "boundary", "forward_extra", "backward_extra")}
    for name, schedule in {"GPipe": built_in("gpipe", 4, MANY), "1F1B": my_1f1b(4, MANY)}.items():
        ranks = on_gpus(schedule, recompute=recompute)
        shown(f"{name:5} {'with' if recompute else 'without'} recomputation", ranks)
        seconds[name, recompute] = ranks[0].value["seconds"]
        print("   passes, predicted and modeled:", ", ".join(
            f"{predicted_peak(program, **sizes) / 1e9:.1f} and {rank.value['passes'] / 1e9:.1f} GB"
            for program, rank in zip(my_programs(schedule), ranks, strict=True)))
check.compare("step time with recomputation (modeled)", guess_recompute, seconds["1F1B", True] / seconds["1F1B", False])

# %% [markdown]
# The predictions are up to 0.5 GB too low, which matters most with recomputation. The reason is that the host runs
# ahead of the GPU. It has launched all passes of the step long before the GPU has run them, and a gradient that is
# waiting to be sent stays in memory. PyTorch programs on real GPUs behave the same way.
# [Megatron-LM](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/pipeline_parallel/schedules.py) frees the
# *data* of a stage's output as soon as it is sent, since the backward pass needs only the graph behind it
# (`deallocate_pipeline_outputs`). How much would that save here?
#
# Recomputation adds at most a third to the compute time if a backward pass takes as long as two forward passes. Here it
# adds only 22% (modeled), because PyTorch stops recomputing a layer as soon as it has every tensor that the backward
# pass needs, so the layer's last matrix multiplication does not run again. In return, recomputation cuts the memory of
# a micro-batch in flight by a factor of more than ten. With GPipe, that decides whether a job runs at all. With 1F1B,
# only a few micro-batches are in flight, so ask first whether you need recomputation, and then on which stages: the
# last one has only a single micro-batch in flight.

# %% [markdown]
# ## Where to split
#
# All stages wait for the slowest one. An even split of the *layers* is not an even split of the *time*, because the
# last stage also multiplies by the output matrix, which has a row for every token of the vocabulary. So **profile**
# first: for one micro-batch, how long does each part of the model (the embedding, each layer, and the head) take? Here
# is GPT-2 small on a virtual V100:

# %% tags=["explore"]
GPT2 = ("--device virtual:v100 --num-layers 12 --hidden-size 768 --num-attention-heads 12 --fp16 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 ")
layers.table(layers.virtual(GPT2), GPT2)

# %% [markdown]
# The head takes as long as several layers, and the embedding takes almost no time. But both of them need a lot of
# memory: each has a matrix of vocabulary size times hidden size, with its gradient and its optimizer state. With 1F1B,
# memory also depends on *where* a part is. A layer on the first stage holds the activations of $p$ micro-batches, but
# the same layer on the last stage holds those of only one. So the fastest split may not fit.

# %% [markdown]
# ### Exercise 3: the best split that fits
#
# Write `split.py`, which assigns consecutive parts of a model to the stages of a pipeline that runs 1F1B:
#
# - Every stage has at least one part, and every part belongs to exactly one stage.
# - A stage fits if the parameters, gradients, and optimizer state of its parts, plus their activations for all
#   micro-batches in flight, take no more than the capacity of its GPU. The GPUs may have different capacities.
# - Among the splits that fit, the function returns one whose slowest stage is as fast as possible. If several splits
#   are equally good, any of them is right. If none fits, the function raises a `ValueError`.
# - It also has to split 60 parts into 8 stages within 10 seconds. There are 341 million ways to do that, so do not try
#   them all.

# %% answer="split"
%%writefile mytrainer/split.py
"""The best split of a model into the stages of a pipeline."""


def best_split(times, state, activations, capacity, micro_batches):
    """Return the number of parts of each stage, a list.

    Args:
        times: for each part, the time of both passes of a micro-batch.
        state: for each part, the bytes of its parameters, gradients, and optimizer state.
        activations: for each part, the bytes that it holds for a micro-batch in flight.
        capacity: for each stage, the bytes of its GPU.
        micro_batches: the number of micro-batches in a step.

    Raises ValueError if no split fits.
    """
    ### BEGIN SOLUTION
    parts, stages, infinity = len(times), len(capacity), float("inf")

    def sums(values):
        total = [0]
        for value in values:
            total.append(total[-1] + value)
        return total

    time, held, flying = map(sums, (times, state, activations))
    best, choices = [0] + [infinity] * parts, []  # best[n]: the slowest stage's time for the first n parts
    for stage, room in enumerate(capacity):
        in_flight = min(stages - stage, micro_batches)
        new, choice = [infinity] * (parts + 1), [None] * (parts + 1)
        for end in range(1, parts + 1):
            for begin in range(end):
                if held[end] - held[begin] + in_flight * (flying[end] - flying[begin]) <= room:
                    slowest = max(best[begin], time[end] - time[begin])
                    if slowest < new[end]:
                        new[end], choice[end] = slowest, begin
        best = new
        choices.append(choice)
    if best[parts] == infinity:
        raise ValueError("no split fits")
    split, end = [], parts
    for choice in reversed(choices):
        split.append(end - choice[end])
        end = choice[end]
    return split[::-1]
    ### END SOLUTION

# %% tags=["driver"]
def split_of(case):
    """Return the split of split.py as the file is now, or "ValueError" if it raises one.

    Args:
        case: the arguments of best_split.
    """
    from lablib import staged

    staged.forget("split")
    from mytrainer.split import best_split

    try:
        split = best_split(**case)
    except ValueError:
        return "ValueError"
    if hasattr(split, "tolist"):  # an array
        return split.tolist()
    if isinstance(split, list | tuple):
        return [count.item() if hasattr(count, "item") else count for count in split]
    return split


def split_soon(case, seconds):
    """Return split_of(case), or "too slow" if it takes too many seconds of CPU time."""
    from lablib import alone

    return alone.within(seconds, split_of, case)


def split_too_few(times, capacity):
    """Call best_split with parts that are small enough for any stage."""
    from lablib import staged

    staged.forget("split")
    from mytrainer.split import best_split

    return best_split(times, [1] * len(times), [1] * len(times), capacity, 8)

# %% tags=["check-setup"]
def stages_of(values, split):
    """Return the sum of the values of each stage's parts."""
    begins = [sum(split[:stage]) for stage in range(len(split))]
    return [sum(values[begin:begin + count]) for begin, count in zip(begins, split, strict=True)]


def is_split(split, parts, stages):
    """Return whether a split gives every stage a part, and uses all parts."""
    return (isinstance(split, list | tuple) and len(split) == stages
            and all(type(count) is int and count >= 1 for count in split) and sum(split) == parts)


def first_that_does_not_fit(split, state, activations, capacity, in_flight):
    """Return the first stage that does not fit, and None if all do."""
    needed = [one + count * two for one, two, count in zip(stages_of(state, split), stages_of(activations, split), in_flight, strict=True)]
    return next((stage for stage, room in enumerate(capacity) if needed[stage] > room), None)


def best_of_all(times, state, activations, capacity, in_flight):
    """Try all splits; return the time of the slowest stage of the best one that fits, and None if none fits."""
    from itertools import combinations, pairwise

    found = []
    for cuts in combinations(range(1, len(times)), len(capacity) - 1):
        split = [end - begin for begin, end in pairwise([0, *cuts, len(times)])]
        if first_that_does_not_fit(split, state, activations, capacity, in_flight) is None:
            found.append(max(stages_of(times, split)))
    return min(found, default=None)


def in_flight_of(stages, micro_batches):
    return [min(stages - stage, micro_batches) for stage in range(stages)]


def stages_below(limit, times):
    """Return how many stages suffice if none takes longer than a limit."""
    if max(times) > limit:
        return len(times) + 1
    count, load = 1, 0
    for time in times:
        if load + time > limit:
            count, load = count + 1, 0
        load += time
    return count

# %% check="split" points=5
def require_best(split, case, least, advice=""):
    """Require a split that fits and whose slowest stage takes at most `least`."""
    stages, parts = len(case["capacity"]), len(case["times"])
    said = f"best_split(**{case}) returned {split}. " if parts < 12 else f"With {parts} parts on {stages} stages: "
    check.that(split != "ValueError", said.replace("returned", "raised a") + "A split fits. Which GPU has which capacity, and how many "
               "micro-batches are in flight on it?")
    check.that(is_split(split, parts, stages), said + "Each stage has at least one part, and together they have all of them.")
    memory = {name: case[name] for name in ("state", "activations", "capacity")}
    flying = in_flight_of(stages, case["micro_batches"])
    full = first_that_does_not_fit(split, **memory, in_flight=flying)
    check.that(full is None or first_that_does_not_fit(split, **memory, in_flight=[1] * stages) is not None,
               said + f"Stage {full} does not fit. It would if every stage had one micro-batch in flight.")
    check.that(full is None, said + f"Stage {full} does not fit: {flying[full or 0]} micro-batches are in flight there.")
    slowest = max(stages_of(case["times"], split))
    check.that(slowest <= least * (1 + 1e-9), said + (
        advice or f"Its slowest stage takes {slowest}. Another split fits, too, and has a faster slowest stage."))

def split_in_time(case):
    """Return the split of many parts, which has to take less than 10 seconds of CPU time."""
    (run,) = check.ranks(split_soon, ranks=1, cases=[{"case": case, "seconds": 10}], expected=None)
    check.that(run.values[0] != "too slow", "60 parts on 8 stages take too long. How many splits does your function look at?")
    return run.values[0]

def require_error(result, case):
    """Require that best_split has raised a ValueError."""
    check.that(result == "ValueError", f"best_split(**{case}) returned {result}. No split fits, so raise a ValueError.")


LARGE = [10**6] * 8
with check.parts():
    with check.part(2, "makes the slowest stage as fast as possible"):
        for times, stages, least, advice in (
                ([1, 1, 1, 1, 1, 1, 5], 3, 5, "Even layers are not even time."),
                ([2, 3, 4, 5, 6, 7], 3, 11, "If you fill one stage after the other, what is left for the last ones?"),
                ([3, 4, 2, 6, 3, 5, 2], 3, 9, ""),
                ([4, 2], 1, 6, ""), ([1, 9, 1, 1], 2, 10, "")):
            case = {"times": times, "state": [1] * len(times), "activations": [1] * len(times), "capacity": LARGE[:stages],
                    "micro_batches": 8}
            require_best(check.call(split_of, case), case, least, advice)
        ### BEGIN HIDDEN TESTS
        for case in check.draw(10, stages=range(1, 5), more=range(8), times=lambda dice: [dice.randint(1, 40) for _ in range(12)]):
            times, stages = case["times"][:case["stages"] + case["more"]], case["stages"]
            flat = {"times": times, "state": [1] * len(times), "activations": [1] * len(times), "capacity": LARGE[:stages]}
            case = {**flat, "micro_batches": 8}
            require_best(check.call(split_of, case), case, best_of_all(**flat, in_flight=[1] * stages))
        ### END HIDDEN TESTS
    with check.part(3, "fits, and raises an error if nothing does"):
        TIGHT = {"times": [1, 4, 4, 4, 4, 8], "state": [60, 10, 10, 10, 10, 60], "activations": [1, 20, 20, 20, 20, 30],
                 "capacity": [150, 150, 150], "micro_batches": 8}
        for changes, least, advice in (
                ({"capacity": [75, 300, 90]}, 16, ""), ({}, 12, ""),
                ({"micro_batches": 1}, 9, "With a single micro-batch, no stage ever has more than one in flight."),
                ({"capacity": [260, 200, 90]}, 9, ""),
                ({"capacity": [130, 80, 400]}, 20, "")):
            case = {**TIGHT, **changes}
            require_best(check.call(split_of, case), case, least, advice)
        case = {**TIGHT, "capacity": [100, 150, 100]}
        require_error(check.call(split_of, case), case)
        check.raises(split_too_few, ValueError, {"times": [1, 2], "capacity": [100, 100, 100]})
        case = {"times": [1 + number % 7 for number in range(60)], "state": [1] * 60, "activations": [1] * 60, "capacity": LARGE,
                "micro_batches": 8}
        require_best(split_in_time(case), case, 32)
        ### BEGIN HIDDEN TESTS
        for case in check.draw(40, stages=range(2, 5), more=range(2, 7), micro_batches=range(1, 9), tight=check.between(1, 2.5),
                               times=lambda dice: [dice.randint(1, 40) for _ in range(12)],
                               state=lambda dice: [dice.randint(1, 60) for _ in range(12)],
                               activations=lambda dice: [dice.randint(1, 40) for _ in range(12)],
                               rooms=lambda dice: [dice.uniform(0.8, 1.2) for _ in range(4)]):
            stages, parts = case["stages"], case["stages"] + case["more"]
            lists = {name: case[name][:parts] for name in ("times", "state", "activations")}
            flying = in_flight_of(stages, case["micro_batches"])
            fair = (sum(lists["state"]) + sum(flying) / stages * sum(lists["activations"])) / stages
            lists["capacity"] = [int(case["tight"] * fair * room) for room in case["rooms"][:stages]]
            least, one = best_of_all(**lists, in_flight=flying), {**lists, "micro_batches": case["micro_batches"]}
            if least is None:
                require_error(check.call(split_of, one), one)
            else:
                require_best(check.call(split_of, one), one, least)
        (drawn,) = check.draw(1, times=lambda dice: [dice.randint(1, 10**6) for _ in range(60)])
        case = {"times": drawn["times"], "state": [1] * 60, "activations": [1] * 60, "capacity": LARGE, "micro_batches": 8}
        sums = sorted({sum(case["times"][a:b]) for a in range(60) for b in range(a + 1, 61)})
        require_best(split_in_time(case), case, next(limit for limit in sums if stages_below(limit, case["times"]) <= 8))
        ### END HIDDEN TESTS

# %% [raw] mutant="split" hint="Even layers are not even time"
# -    parts, stages, infinity = len(times), len(capacity), float("inf")
# +    parts, stages, infinity = len(times), len(capacity), float("inf")
# +    return [parts // stages + (stage < parts % stages) for stage in range(stages)]

# %% [raw] mutant="split" hint="what is left for the last ones"
# -    parts, stages, infinity = len(times), len(capacity), float("inf")
# +    parts, stages, infinity = len(times), len(capacity), float("inf")
# +    average, split, filled = sum(times) / stages, [0], 0
# +    for number, one in enumerate(times):
# +        needed = stages - len(split)
# +        if split[-1] and needed and (filled + one > average or parts - number == needed):
# +            split.append(0)
# +            filled = 0
# +        split[-1] += 1
# +        filled += one
# +    return split

# %% [raw] mutant="split" hint="Each stage has at least one part"
# -            for begin in range(end):
# +            for begin in range(end + 1):

# %% [raw] mutant="split" hint="micro-batches are in flight there"
# -                if held[end] - held[begin] + in_flight * (flying[end] - flying[begin]) <= room:
# +                if True:

# %% [raw] mutant="split" hint="It would if every stage had"
# -        in_flight = min(stages - stage, micro_batches)
# +        in_flight = 1

# %% [raw] mutant="split" hint="With a single micro-batch"
# -        in_flight = min(stages - stage, micro_batches)
# +        in_flight = stages - stage

# %% [raw] mutant="split" hint="Which GPU has which capacity"
# -        in_flight = min(stages - stage, micro_batches)
# +        in_flight, room = min(stages - stage, micro_batches), min(capacity)

# %% [raw] mutant="split" hint="Which GPU has which capacity"
# -        in_flight = min(stages - stage, micro_batches)
# +        in_flight = min(stages, micro_batches)

# %% [raw] mutant="split" hint="Another split fits, too"
# -                    if slowest < new[end]:
# +                    if new[end] == infinity and slowest < infinity:

# %% [raw] mutant="split" hint="60 parts on 8 stages take too long"
# -    parts, stages, infinity = len(times), len(capacity), float("inf")
# +    from itertools import combinations, pairwise
# +    parts, stages, best, slowest = len(times), len(capacity), None, float("inf")
# +    for cuts in combinations(range(1, parts), stages - 1):
# +        ends, longest = [0, *cuts, parts], 0
# +        for stage, (a, b) in enumerate(pairwise(ends)):
# +            needed = sum(state[a:b]) + min(stages - stage, micro_batches) * sum(activations[a:b])
# +            longest = max(longest, sum(times[a:b]) if needed <= capacity[stage] else float("inf"))
# +        if longest < slowest:
# +            best, slowest = [b - a for a, b in pairwise(ends)], longest
# +    if best is None:
# +        raise ValueError
# +    return best

# %% [raw] mutant="split" hint="No split fits"
# -        raise ValueError("no split fits")
# +        return [parts // stages + (stage < parts % stages) for stage in range(stages)]

# %% [markdown]
# Now use it. This GPT has 24 layers with a hidden size of 1,024, and runs on four virtual V100s with 16 GB each. The
# next cell profiles its parts, and asks your function for two splits: one for GPUs with unlimited memory, and one for
# these V100s. It passes both to the trainer with `--balance`, along with an even split. (`--balance` counts only
# *layers*, because the embedding is always on the first stage, and the head on the last one.)

# %% tags=["explore"]
GPT = ("--device virtual:v100 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --fp16 "
       "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 ")
parts = staged.parts_of(GPT)
for name, part in {"embedding": parts[0], "layer": parts[1], "head": parts[-1]}.items():
    print(f"{name:9} {part['ms']:5.1f} ms, {part['state']:.2f} GiB of state, {part['activations']:.2f} GiB of activations (modeled)")


def layers_of(capacity):
    """Return your split into four stages as layers per stage, which --balance takes."""
    split = list(split_of({"times": [part["ms"] for part in parts], "state": [part["state"] for part in parts],
                           "activations": [part["activations"] for part in parts], "capacity": [capacity] * 4,
                           "micro_batches": 16}))
    split[0], split[-1] = split[0] - 1, split[-1] - 1  # the embedding and the head
    return "-".join(map(str, split))


RESERVED = 2.0  # GiB for CUDA, NCCL, and what a pass needs only while it runs
splits = {"even": "6-6-6-6", "best": layers_of(1000), "best of 16 GB": layers_of(16e9 / 2**30 - RESERVED)}
costs.show(costs.of({f"{name}, {split}": f"--balance {split}" for name, split in splits.items()}, GPT + "--world-size 4 "
                    "--gpus-per-node 4 --pipeline-model-parallel-size 4 --global-batch-size 64"))
# %% [markdown]
# The fastest split saves almost a quarter of the even split's step time, but it does not fit. The best split that fits
# takes less than a tenth longer than the fastest one, and needs no recomputation. (`waiting` counts only communication,
# not the time that a stage waits for other stages.) Both results are modeled. The fastest split exceeds the memory by
# less than the model's usual error, so on a real cluster, you would try both. What could you do with the memory that is
# free on the last stage?
#
# **This is the end of the first sitting.**
#
# ## Less waiting: interleaved chunks
#
# The bubble lasts as long as it takes to fill and drain the pipeline, and that depends on how long a pass through one
# *stage* takes. More micro-batches of the same size do not shorten the bubble. They only make the rest of the step
# longer, so that the bubble is a smaller part of it, and the batch size limits their number. Llama 3 405B is an
# example. Its batch of 16 million tokens consisted of 2,048 sequences, shared by 128 pipelines of 16 stages each. At
# one sequence per micro-batch, that left 16 micro-batches for each pipeline ([Llama Team,
# 2024](https://arxiv.org/abs/2407.21783)).
#
# **Interleaving** ([Narayanan et al., 2021b](https://arxiv.org/abs/2104.04473)) makes each pass through a stage shorter
# without adding GPUs. The model is divided into $p\,v$ parts, and each stage has $v$ of them, called **chunks**: part
# $cp + s$ is chunk $c$ of stage $s$. A micro-batch passes through all stages $v$ times. `F3.1` is the forward pass of
# micro-batch 3 through the stage's chunk 1, and `F3` is short for `F3.0`.

# %% [markdown]
# ### Exercise 4: interleave
#
# Write `interleaved.py`, for $m$ divisible by $p$. Once more, you get only the properties:
#
# - Every stage runs both passes of every micro-batch on each of its chunks exactly once, and the stages never deadlock.
# - The bubble overhead is $(p-1)/(m\,v)$, which is $1/v$ of 1F1B's, both when a backward pass takes as long as a
#   forward pass and when it takes twice as long.
# - With each micro-batch counted once per chunk, no stage ever has more than $(v+1)\,p - 1$ in flight, whatever $m$ is.
#
# First work it out on paper for two stages with two chunks each and four micro-batches. Which forward passes does stage
# 0 have to run before its first gradient can arrive? In which order do micro-batches and chunks take turns, so that no
# stage has to wait for another?

# %% answer="interleaved"
%%writefile mytrainer/interleaved.py
"""Interleaved 1F1B (Narayanan et al., 2021b): several chunks of the model on each stage."""


def interleaved(stages, micro_batches, chunks):
    """Return the actions of each stage, in their order: a list of lists such as ["F0.1", "B0.1"].

    Args:
        stages: p.
        micro_batches: m, divisible by p.
        chunks: v, the number of chunks per stage.
    """
    ### BEGIN SOLUTION
    order = [(group + k, chunk) for group in range(0, micro_batches, stages) for chunk in range(chunks) for k in range(stages)]
    forwards = [f"F{k}.{chunk}" for k, chunk in order]
    backwards = [f"B{k}.{chunks - 1 - chunk}" for k, chunk in order]
    schedule = []
    for stage in range(stages):
        ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(forwards))
        actions = forwards[:ahead]
        for number, backward in enumerate(backwards):
            actions += [*forwards[ahead + number:ahead + number + 1], backward]
        schedule.append(actions)
    return schedule
    ### END SOLUTION

# %% tags=["driver"]
def my_interleaved(stages, micro_batches, chunks):
    """Return the schedule of interleaved.py as the file is now."""
    from lablib import staged

    staged.forget("interleaved")
    from mytrainer.interleaved import interleaved

    return interleaved(stages, micro_batches, chunks)


def step_interleaved(sizes, chunks, seed, shared):
    """Run a step of a small model with the schedule, as step_1f1b does.

    Return the loss (on the last rank) and one number for the gradient of each chunk.
    """
    from lablib import executor, staged

    executor.install()
    # Written here, F3.0 is F3 for the executor.
    schedule = [[action.removesuffix(".0") for action in actions]
                for actions in my_interleaved(dist.get_world_size(), len(sizes), chunks)]
    return staged.small_step(schedule, sizes, seed, shared, chunks)

# %% check="interleaved" points=5
with check.parts():
    with check.part(3, "has a v-th of the bubble"):
        check.schedule(
            my_interleaved,
            cases=[(2, 4, 2), (4, 8, 2), (2, 6, 3), (3, 6, 2)],
            bubble=[1 / 9, 3 / 19, 1 / 19, 2 / 14], live=[5, 11, 7, 8],
            hints={
                "Which number in your file should depend on the sizes?": "some sizes",
                "Follow micro-batch 0 through all chunks by hand. In which order do the chunks run backward, and what must run "
                "before them?": "deadlock",
                "Nothing has come to that chunk yet. In groups of how many do micro-batches pass a chunk?": "wrong order",
                "Too many are in flight. When must a stage begin to run backward passes in turn with forward passes?": "memory",
                "The stages wait too long. Look at the first wait of the last stage, and at the last wait of the first one: for "
                "which passes do they wait?": "bubble",
                "Every micro-batch has a forward and a backward pass on *each* chunk of a stage.": "incomplete",
            })
        ### BEGIN HIDDEN TESTS
        drawn = check.draw(8, stages=range(1, 7), groups=range(1, 5), chunks=range(2, 5))
        check.schedule(my_interleaved, cases=[(case["stages"], case["stages"] * case["groups"], case["chunks"]) for case in drawn],
                       bubble=lambda p, m, v: (p - 1) / (m * v + p - 1), live=lambda p, m, v: (v + 1) * p - 1)
        ### END HIDDEN TESTS
    with check.part(2, "trains a model on ranks"):
        check.schedule(my_interleaved, cases=[(2, 4, 2)])  # the executor would raise an error
        check.ranks(step_interleaved, ranks=2, rel=1e-4, cases=[
            {"sizes": [2, 3, 1, 2], "chunks": 2, "seed": check.by_rank([1.0, 2.0]), "shared": 3.0}],
            expected=[[[None, [0.2791309, 0.06332126]], [1.085617, [0.003467344, -0.2807443]]]])
        ### BEGIN HIDDEN TESTS
        check.ranks(step_interleaved, ranks=4, rel=1e-3, cases=check.draw(
            1, sizes=lambda dice: [dice.randint(1, 4) for _ in range(4 * dice.choice([1, 2]))], chunks=[2, 3],
            seed=check.for_each_rank(check.between(0, 100)), shared=check.between(0, 100)),
            expected=lambda ranks, sizes, chunks, seed, shared: one_process(seed, sizes, shared, chunks))
        ### END HIDDEN TESTS

# %% [raw] mutant="interleaved" hint="Too many are in flight"
# -        ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(forwards))
# +        ahead = len(forwards)

# %% [raw] mutant="interleaved" hint="Which number in your file"
# -    order = [(group + k, chunk) for group in range(0, micro_batches, stages) for chunk in range(chunks) for k in range(stages)]
# +    order = [(group + k, chunk) for group in range(0, micro_batches, 2) for chunk in range(chunks) for k in range(2)]

# %% [raw] mutant="interleaved" hint="The stages wait too long"
# -    order = [(group + k, chunk) for group in range(0, micro_batches, stages) for chunk in range(chunks) for k in range(stages)]
# +    order = [(k, chunk) for k in range(micro_batches) for chunk in range(chunks)]

# %% [raw] mutant="interleaved" hint="In groups of how many"
# -    order = [(group + k, chunk) for group in range(0, micro_batches, stages) for chunk in range(chunks) for k in range(stages)]
# +    order = [(k, chunk) for chunk in range(chunks) for k in range(micro_batches)]

# %% [raw] mutant="interleaved" hint="Follow micro-batch 0 through all chunks"
# -    backwards = [f"B{k}.{chunks - 1 - chunk}" for k, chunk in order]
# +    backwards = [f"B{k}.{chunk}" for k, chunk in order]

# %% [raw] mutant="interleaved" hint="on *each* chunk"
# -    order = [(group + k, chunk) for group in range(0, micro_batches, stages) for chunk in range(chunks) for k in range(stages)]
# +    order = [(k, 0) for k in range(micro_batches)]

# %% [raw] mutant="interleaved" hint="The stages wait too long"
# -        ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(forwards))
# +        ahead = min((chunks - 1) * stages, len(forwards))

# %% [raw] mutant="interleaved" hint="The stages wait too long"
# -    schedule = []
# -    for stage in range(stages):
# +    schedule, size = [], stages * chunks
# +    return [sum(([*forwards[k:k + size], *backwards[k:k + size]] for k in range(0, len(order), size)), []) for _ in range(stages)]
# +    for stage in range(stages):

# %% tags=["explore"]
plots.pipelines(one_f_one_b=my_1f1b(4, 8), interleaved=my_interleaved(4, 8, 2))

# %% [markdown]
# The bubble has shrunk, and you can see the first of two prices: each stage has more in flight. The second price is
# communication, which the figure does not show. A micro-batch now crosses from GPU to GPU $pv - 1$ times in each
# direction instead of $p - 1$ times. The hidden states are as large as before, and there is less to compute between two
# crossings.
#
# ## The network on which interleaving stops paying
#
# So on a slow enough network, 1F1B must win. Where is the break-even? A rough estimate divides the time by which the
# bubble has shrunk by the number of additional sends. That is far off, because most sends cost nothing: they overlap
# with other passes. Which sends are exposed depends on the two schedules. Take this model of a network: the result of a
# pass arrives at the next stage `link` seconds after the pass has ended. A transfer occupies neither stage, and
# transfers do not slow each other down.

# %% [markdown]
# ### Exercise 5: the break-even
#
# Write `break_even.py`. Its function `step_time` returns the time from the start of a step's first pass to the end of
# its last pass, for any valid schedule. A pass starts as soon as its stage is idle and its input has arrived. The
# function `break_even` finds the network: with a shorter `link` than it returns, the schedule with chunks is faster
# than the one without, and with a longer one, it is not. Find this `link` to within 0.1%.

# %% answer="break-even"
%%writefile mytrainer/break_even.py
"""Find the network on which an interleaved schedule stops paying."""


def step_time(schedule, forward, backward, link):
    """Return the time of a step.

    Args:
        schedule: the actions of each stage, such as "F3" or "B3.1".
        forward: the time of a micro-batch's forward pass through all chunks of a stage, which take equally long.
        backward: the same for a backward pass.
        link: the time from the end of a pass until its result has arrived on another stage. A result that stays on the
            same stage is there at once.
    """
    ### BEGIN SOLUTION
    stages = len(schedule)

    def parse(action):
        number, _, chunk = action[1:].partition(".")
        return action[0], int(number), int(chunk or 0)

    actions = [[parse(action) for action in stage] for stage in schedule]
    chunks = 1 + max(chunk for stage in actions for _, _, chunk in stage)
    times = {"F": forward / chunks, "B": backward / chunks}
    ends, idle, positions = {}, [0.0] * stages, [0] * stages
    remaining = sum(map(len, actions))
    while remaining:
        before = remaining
        for stage in range(stages):
            while positions[stage] < len(actions[stage]):
                kind, number, chunk = actions[stage][positions[stage]]
                part, step = chunk * stages + stage, 1 if kind == "F" else -1
                start, source = idle[stage], part - step
                if 0 <= source < stages * chunks:
                    if (kind, number, source) not in ends:
                        break
                    start = max(start, ends[kind, number, source] + (link if source % stages != stage else 0))
                idle[stage] = ends[kind, number, part] = start + times[kind]
                positions[stage] += 1
                remaining -= 1
        if remaining == before:
            raise ValueError("the stages deadlock")
    return max(idle)
    ### END SOLUTION


def break_even(plain, chunked, forward, backward):
    """Return the link time at which two schedules take equally long.

    Args:
        plain: a schedule with one chunk on each of at least two stages.
        chunked: a schedule with several chunks, which is faster if `link` is 0.
        forward: as for step_time.
        backward: as for step_time.
    """
    ### BEGIN SOLUTION
    def difference(link):
        return step_time(chunked, forward, backward, link) - step_time(plain, forward, backward, link)

    low, high = 0.0, forward + backward
    while difference(high) < 0:
        low, high = high, 2 * high
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if difference(middle) < 0 else (low, middle)
    return (low + high) / 2
    ### END SOLUTION

# %% tags=["driver"]
def timed(schedule, forward, backward, link):
    """Return step_time of break_even.py as the file is now."""
    from lablib import staged

    staged.forget("break_even")
    from mytrainer.break_even import step_time

    return step_time(schedule, forward, backward, link)


def balanced_link(plain, chunked, forward, backward):
    """Return break_even of break_even.py as the file is now."""
    from lablib import staged

    staged.forget("break_even")
    from mytrainer.break_even import break_even

    return break_even(plain, chunked, forward, backward)

# %% tags=["check-setup"]
def listed(name, stages, micro_batches, chunks=1):
    """Return a built-in schedule as lists of actions."""
    from pipeline_schedules import load, to_text

    return [text.split() for text in to_text(load(name, stages, micro_batches, chunks))]


def simulated(schedule, forward, backward, link):
    """Return the time of a step of a schedule, simulated."""
    from pipeline_schedules import Durations, parse, simulate

    return simulate(parse(schedule), Durations(forward, backward, 0, link)).total

def even_link(plain, chunked, forward, backward):
    """Return the link time at which two schedules take equally long, to 1e-4."""
    low, high = 0.0, 8 * (forward + backward)
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if simulated(chunked, forward, backward, middle) < simulated(plain, forward, backward, middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2

# %% check="break-even" points=5
TWO = [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]]
CHUNKED = [["F0", "F1", "F0.1", "F1.1", "B0.1", "B1.1", "B0", "B1"], ["F0", "F1", "F0.1", "B0.1", "F1.1", "B1.1", "B0", "B1"]]
with check.parts():
    with check.part(2, "simulates a step"):
        check.function(
            timed, rel=1e-6,
            cases=[{"schedule": TWO, "forward": 2.0, "backward": 5.0, "link": 0.0},
                   {"schedule": TWO, "forward": 2.0, "backward": 5.0, "link": 0.75},
                   {"schedule": CHUNKED, "forward": 2.0, "backward": 5.0, "link": 0.0},
                   {"schedule": CHUNKED, "forward": 2.0, "backward": 5.0, "link": 3.0},
                   {"schedule": [["F0", "F0.1", "B0.1", "B0"]], "forward": 2.0, "backward": 5.0, "link": 3.0},
                   {"schedule": [["F0", "F1", "B0", "F2", "B1", "B2"], ["F0", "F1", "B0", "B1", "F2", "B2"]], "forward": 2.0,
                    "backward": 5.0, "link": 0.75}],
            expected=[21.0, 22.5, 17.5, 35.5, 7.0, 33.0],
            hints={
                "A pass of one of several chunks takes a part of its time only.":
                    [21.0, 22.5, 35.0, 53.0, 14.0, 33.0],
                "The times of forward and backward passes are swapped.":
                    [21.0, 22.5, 17.5, 35.5, 7.0, 36.0],
                "A result that stays on the same stage does not cross the network.":
                    [21.0, 22.5, 17.5, 35.5, 13.0, 33.0],
                "On the last stage, a backward pass follows the forward pass of the same part. Its input stays on the stage.":
                    [21.0, 24.0, 17.5, 41.5, 10.0, 33.75],
                "Gradients cross the network, too.":
                    [21.0, 21.75, 17.5, 26.5, 7.0, 31.5],
                "A transfer does not occupy its stage, which can run its next pass at once.":
                    [21.0, 25.5, 17.5, 47.5, 19.0, 36.75],
                "A pass needs its input, and its stage has to be idle: the later of the two counts.":
                    [16.0, 17.5, 15.0, 33.0, 7.0, 33.0]})
        ### BEGIN HIDDEN TESTS
        for case in check.draw(10, name=["gpipe", "1f1b", "interleaved"], stages=range(1, 5), groups=range(1, 4),
                               forward=check.between(0.5, 2), backward=check.between(1, 4), link=check.between(0, 3)):
            check.function(timed, rel=1e-6, expected=simulated, cases=[{
                "schedule": listed(case["name"], case["stages"], case["stages"] * case["groups"], 1 + 2 * (case["name"] == "interleaved")),
                **{name: case[name] for name in ("forward", "backward", "link")}}])
        ### END HIDDEN TESTS
    with check.part(3, "finds the break-even"):
        check.function(
            balanced_link, rel=2e-3,
            cases=[{"plain": TWO, "chunked": CHUNKED, "forward": 2.0, "backward": 5.0},
                   {"plain": TWO, "chunked": CHUNKED, "forward": 3.0, "backward": 3.0},
                   {"plain": listed("1f1b", 4, 8), "chunked": listed("interleaved", 4, 8, 2), "forward": 1.0, "backward": 2.0},
                   {"plain": listed("1f1b", 8, 32), "chunked": listed("interleaved", 8, 32, 2), "forward": 1.0, "backward": 1.0}],
            expected=[0.875, 0.75, 1.375, 2.357143],
            hints={
                "That divides what the bubble loses by the number of additional transfers, as if nothing overlapped with them.":
                    [0.4375, 0.375, 0.0703125, 0.01367188],
                "How far does your search go? A transfer may take longer than both passes of a stage.":
                    [0.875, 0.75, 1.375, 2.0],
                "That takes the step times for straight lines. With more transfers in the way, is each a straight line in `link`?":
                    [0.875, 0.75, 3.0, -0.5833333]})
        ### BEGIN HIDDEN TESTS
        for case in check.draw(6, stages=range(2, 5), groups=range(1, 4), chunks=range(2, 4), forward=check.between(0.5, 2),
                               backward=check.between(1, 4)):
            sizes = case["stages"], case["stages"] * case["groups"]
            check.function(balanced_link, rel=2e-3, expected=even_link, cases=[{
                "plain": listed("1f1b", *sizes), "chunked": listed("interleaved", *sizes, case["chunks"]),
                "forward": case["forward"], "backward": case["backward"]}])
        ### END HIDDEN TESTS

# %% [raw] mutant="break-even" hint="takes a part of its time"
# -    times = {"F": forward / chunks, "B": backward / chunks}
# +    times = {"F": forward, "B": backward}

# %% [raw] mutant="break-even" hint="passes are swapped"
# -    times = {"F": forward / chunks, "B": backward / chunks}
# +    times = {"F": backward / chunks, "B": forward / chunks}

# %% [raw] mutant="break-even" hint="stays on the same stage"
# -                    start = max(start, ends[kind, number, source] + (link if source % stages != stage else 0))
# +                    start = max(start, ends[kind, number, source] + link)

# %% [raw] mutant="break-even" hint="On the last stage, a backward pass follows"
# -                idle[stage] = ends[kind, number, part] = start + times[kind]
# +                if kind == "B" and part == stages * chunks - 1:
# +                    start = max(start, ends["F", number, part] + link)
# +                idle[stage] = ends[kind, number, part] = start + times[kind]

# %% [raw] mutant="break-even" hint="Gradients cross the network"
# -                    start = max(start, ends[kind, number, source] + (link if source % stages != stage else 0))
# +                    start = max(start, ends[kind, number, source] + (link if source % stages != stage and kind == "F" else 0))

# %% [raw] mutant="break-even" hint="does not occupy its stage"
# -                idle[stage] = ends[kind, number, part] = start + times[kind]
# +                ends[kind, number, part] = start + times[kind]
# +                idle[stage] = start + times[kind] + link

# %% [raw] mutant="break-even" hint="the later of the two counts"
# -                    start = max(start, ends[kind, number, source] + (link if source % stages != stage else 0))
# +                    start = ends[kind, number, source] + (link if source % stages != stage else 0)

# %% [raw] mutant="break-even" hint="How far does your search go"
# -    while difference(high) < 0:
# -        low, high = high, 2 * high

# %% [raw] mutant="break-even" hint="takes the step times for straight lines"
# -    low, high = 0.0, forward + backward
# -    while difference(high) < 0:
# -        low, high = high, 2 * high
# -    while high - low > 1e-5 * high:
# -        middle = (low + high) / 2
# -        low, high = (middle, high) if difference(middle) < 0 else (low, middle)
# -    return (low + high) / 2
# +    return forward * difference(0) / (difference(0) - difference(forward))

# %% [raw] mutant="break-even" hint="as if nothing overlapped"
# -    def difference(link):
# -        return step_time(chunked, forward, backward, link) - step_time(plain, forward, backward, link)
# -
# -    low, high = 0.0, forward + backward
# -    while difference(high) < 0:
# -        low, high = high, 2 * high
# -    while high - low > 1e-5 * high:
# -        middle = (low + high) / 2
# -        low, high = (middle, high) if difference(middle) < 0 else (low, middle)
# -    return (low + high) / 2
# +    stages = len(plain)
# +    more = sum(len(actions) for actions in chunked) - sum(len(actions) for actions in plain)
# +    saved = step_time(plain, forward, backward, 0) - step_time(chunked, forward, backward, 0)
# +    return saved / more

# %% [markdown]
# Now predict a break-even in Gbit/s. Four virtual H100s run a model with 8 of the layers from the beginning of the lab,
# two on each GPU, with 8 micro-batches. Each transfer moves the hidden states of 4,096 tokens in bf16, or
# $2 \cdot 4096 \cdot 4096$ bytes. At what bandwidth between the GPUs does your interleaved schedule with two chunks per stage take as
# long as your 1F1B? Set `guess_gbits` first. Then the next cell asks your function:

# %% answer="guess-gbits"
### BEGIN SOLUTION
guess_gbits = 25
### END SOLUTION

# %% tags=["explore"]
SIZES = dict(layers=8)
(one,) = virtualgpu.run(lambda: staged.gpu_passes(SIZES["layers"] // 4), "h100:1")
forward, backward, boundary = (one.value[name] for name in ("forward", "backward", "boundary"))
plain, chunked = my_1f1b(4, 8), my_interleaved(4, 8, 2)
link = balanced_link(plain, chunked, forward, backward)
gbits = 8 * boundary / link / 1e9
print(f"passes of {1000 * forward:.1f} and {1000 * backward:.1f} ms: break-even at {1000 * link:.1f} ms for "
      f"{boundary / 1e6:.0f} MB, or {result(f'{gbits:.0f} Gbit/s')}")
check.compare("break-even in Gbit/s", guess_gbits, gbits)

# %% [markdown]
# The answer depends on how far ahead your stages run. If each stage runs one pass further ahead than the next one, the
# break-even is at several times the bandwidth that two passes need.
#
# Now see what the virtual GPUs do. The next cell runs both schedules with your executor, over NVLink and over networks
# of several speeds, and prints each step time beside the one that your `step_time` predicts:

# %% tags=["explore"] short={"(3600, 400, 100, 50, 25, 10)": "(10,)"}
def on_network(schedule, network):
    """Run a step on four nodes with one GPU each; None: on one node, whose GPUs are connected by NVLink."""
    def step():
        staged.use_own_executor()
        return staged.gpu_step([[action.removesuffix(".0") for action in actions] for actions in schedule], **SIZES)

    where = dict(gpus="h100:4") if network is None else dict(gpus="h100:1", nodes=4, link=network)
    return virtualgpu.run(step, **where)[0].value["seconds"]


RATES = (3600, 400, 100, 50, 25, 10)  # Gbit/s; the first is NVLink's
for rate in RATES:
    network = {3600: None, 400: "infiniband:1x400gbit"}.get(rate, f"ethernet:{rate}gbit")
    took = [on_network(schedule, network) for schedule in (plain, chunked)]
    said = [timed(schedule, forward, backward, 8e-9 * boundary / rate) for schedule in (plain, chunked)]
    print(f"{network or 'NVLink':21} 1F1B {1000 * took[0]:4.0f} ms (predicted {1000 * said[0]:4.0f}), two chunks "
          f"{1000 * took[1]:4.0f} ms (predicted {1000 * said[1]:4.0f}):", (good if took[1] < took[0] else bad)(
              f"{took[1] / took[0] - 1:+.0%}"), "(modeled)")

# %% [markdown]
# Your model of the network is crude: it has no latency, and no two transfers ever share a link. Where does it fail
# first, and why there? Look at how far off the two predictions are as the network becomes slower. Remember that on the
# slowest networks, a transfer takes longer than a pass, so transfers must queue.
#
# Your simulation also shows what the rule "interleaving costs communication" hides. In 1F1B, a stage alternates
# strictly with its neighbors, so some communication is exposed on any network: every $p$ micro-batches wait for
# $2(p-1)$ transfers. Interleaved stages can run further ahead. In Megatron-LM, each stage starts with two more forward
# passes than the next stage, although one more would be enough on an ideal network. The second one gives a transfer the
# time of a whole pass. So with two passes ahead, more micro-batches than stages, and a fast network, interleaving
# exposes *less* communication than 1F1B. (Megatron-LM overlaps sends with computation only in its interleaved schedule:
# `overlap_p2p_comm`.) By how many passes does each of your stages run ahead of the next one? Try the other number, and
# see what happens to the break-even and to memory.

# %% [markdown]
# ## Pipelines in a grid
#
# A pipeline alone is not enough to train a large model: each of its stages is shared by tensor-parallel ranks, and the
# whole pipeline has data-parallel replicas. So a rank has three coordinates, and it belongs to a process group along
# each of these axes. Which ranks form a group decides which network carries its traffic:
#
# - **Tensor-parallel** (TP) ranks all-reduce hidden states in every layer, so they are neighbors within a node.
# - **Data-parallel** (DP) ranks all-reduce their gradients once per step. That is a lot of data, but the all-reduce can
#   overlap with the backward pass, so these ranks are the next closest.
# - **Pipeline-parallel** (PP) stages only exchange hidden states and their gradients at their boundaries, so they are
#   farthest apart.
#
# Megatron-LM uses this order: rank $r = i_\text{tensor} + t\,(i_\text{data} + d\,i_\text{stage})$, with $t$
# tensor-parallel ranks, $d$ replicas, and $p$ stages.
#
# By default, `new_group` is a collective over *all* ranks, including those that will not be in the group. So every rank
# has to create every group, and in the same order. With NCCL, a process group also has one communicator per pair of
# stages, whose operations run in the order in which they were launched. But between two stages, hidden states and
# gradients travel at the same time, in opposite directions. One way to keep them apart is a process group for each
# direction.

# %% [markdown]
# ### Exercise 6: the grid
#
# Write `grid.py`. All ranks of the default group create a `Grid(tensor, pipeline)`, and each of them has a place in it,
# so the number of replicas follows. If the number of ranks is not divisible by `tensor * pipeline`, the constructor
# raises a `ValueError` on all of them. The attributes of a grid are the rank's place (`stage`, `stages`, `replica`) and
# its process groups (`tensor`, `data`, `model`, `links`, `ends`), as the docstring describes them.

# %% answer="grid"
%%writefile mytrainer/grid.py
"""The process groups of tensor, data, and pipeline parallelism."""

import torch.distributed as dist


class Grid:
    """This rank's place and process groups. Rank = i_tensor + tensor * (i_data + data * i_stage), as in Megatron-LM.

    Attributes:
        stage: this rank's stage in its pipeline, from 0.
        stages: the number of stages in a pipeline.
        replica: index of this rank's copy of the model, from 0.
        tensor: process group of the ranks that share this rank's layers.
        data: process group of the ranks that have the same parameters in other replicas.
        model: process group of all ranks that share this copy of the model.
        links: {"F": process group of the ranks of this rank's pipeline, in the order of their stages, "B": another one of
            the same ranks}.
        ends: process group of the first and the last stage of this rank's pipeline; None on all other stages, and if
            there is only one stage.
    """

    def __init__(self, tensor, pipeline):
        """Args:
            tensor: the number of tensor-parallel ranks, t.
            pipeline: the number of stages, p.

        Raises ValueError if t * p does not divide the number of ranks.
        """
        ### BEGIN SOLUTION
        rank, world = dist.get_rank(), dist.get_world_size()
        if world % (tensor * pipeline):
            raise ValueError(f"{world} ranks are not divisible by {tensor} x {pipeline}")
        data = world // (tensor * pipeline)

        def number(i, j, k):
            return i + tensor * (j + data * k)

        def own(groups):
            """Create all groups; return that of this rank, or None."""
            found = None
            for ranks in groups:
                group = dist.new_group(ranks)
                if rank in ranks:
                    found = group
            return found

        t, d, p = range(tensor), range(data), range(pipeline)
        pipelines = [[number(i, j, k) for k in p] for j in d for i in t]
        self.stage, self.stages, self.replica = rank // (tensor * data), pipeline, rank // tensor % data
        self.tensor = own([[number(i, j, k) for i in t] for k in p for j in d])
        self.data = own([[number(i, j, k) for j in d] for k in p for i in t])
        self.model = own([[number(i, j, k) for k in p for i in t] for j in d])
        self.links = {kind: own(pipelines) for kind in "FB"}
        self.ends = own([[ranks[0], ranks[-1]] for ranks in pipelines if len(ranks) > 1])
        ### END SOLUTION

# %% tags=["driver"]
def grid_here(tensor, pipeline, own):
    """Build a grid, and use each of its groups.

    Args:
        tensor: tensor-parallel ranks.
        pipeline: stages.
        own: this rank's number.

    Return the rank's stage, the stages, and its replica; the sum of the numbers in `tensor`, `data`, `model`, and `ends`;
    and what the previous stage has sent to it in both directions' groups, as "F" and "B".
    """
    from mytrainer.grid import Grid

    from lablib import staged

    grid = Grid(tensor, pipeline)
    place = [grid.stage, grid.stages, grid.replica]
    return [place, staged.sums_in_groups(grid, own), staged.crossing(grid, own) if pipeline > 1 else []]


def groups_made(tensor, pipeline):
    """Return the ranks of each process group that this rank creates, in order."""
    import contextlib

    from lablib import staged

    made = staged.watch_groups()
    from mytrainer.grid import Grid

    with contextlib.suppress(ValueError, RuntimeError):  # another call shows them
        Grid(tensor, pipeline)
    return made


def grid_error(tensor, pipeline):
    """Return the type of the error that Grid raises."""
    from mytrainer.grid import Grid

    try:
        Grid(tensor, pipeline)
    except Exception as error:
        return type(error).__name__
    return ""

# %% tags=["check-setup"]
def grid_of(tensor, pipeline, own):
    """Return what grid_here returns on each rank."""
    world, places = len(own), []
    data = world // (tensor * pipeline)
    for rank in range(world):
        places.append((rank % tensor, rank // tensor % data, rank // (tensor * data)))

    def total(place, *same):
        return sum(number for number, other in zip(own, places, strict=True) if all(other[axis] == place[axis] for axis in same))

    found = []
    for place in places:
        line = [number for number, other in zip(own, places, strict=True) if other[:2] == place[:2]]
        is_end = pipeline > 1 and place[2] in (0, pipeline - 1)
        sent = line[place[2] - 1]
        found.append([[place[2], pipeline, place[1]],
                      [total(place, 1, 2), total(place, 0, 2), total(place, 1), line[0] + line[-1] if is_end else None],
                      [sent, -sent] if pipeline > 1 else []])
    return found


def require_lines(run, tensor, pipeline):
    """Require that P2P goes through groups of the ranks of one pipeline."""
    world = len(run.values)
    for rank in range(world):
        line = tuple(range(rank % (world // pipeline), world, world // pipeline))
        for call in run.calls(rank, "send"):
            check.that(tuple(call.group) == line, f"Rank {rank} of {world} sends in a group of the ranks {list(call.group)}. The ranks "
                       f"of its pipeline, of {pipeline} stages, are {list(line)}.")

def require_same_groups(runs):
    """Require that all ranks create the same groups in the same order."""
    for run in runs:
        for rank, made in enumerate(run.values):
            check.that(made == run.values[0], f"Rank {rank} creates the groups {made}, and rank 0 creates {run.values[0]}. On a cluster, "
                       "they would wait for each other: every rank has to create every group, and in the same order.")

# %% check="grid" points=5
with check.parts():
    with check.part(3, "groups the ranks along each axis"):
        (run,) = check.ranks(
            grid_here, ranks=4, cases=[{"tensor": 2, "pipeline": 2, "own": check.by_rank([1.0, 10.0, 100.0, 1000.0])}],
            expected=[[[[0, 2, 0], [11.0, 1.0, 1111.0, 101.0], [100.0, -100.0]], [[0, 2, 0], [11.0, 10.0, 1111.0, 1010.0], [1000.0, -1000.0]],
                       [[1, 2, 0], [1100.0, 100.0, 1111.0, 101.0], [1.0, -1.0]], [[1, 2, 0], [1100.0, 1000.0, 1111.0, 1010.0], [10.0, -10.0]]]],
            hints={
                "A copy of the model has more ranks than those that share one stage of it.":
                    [[[[0, 2, 0], [11.0, 1.0, 11.0, 101.0], [100.0, -100.0]], [[0, 2, 0], [11.0, 10.0, 11.0, 1010.0], [1000.0, -1000.0]], [[1, 2, 0], [1100.0, 100.0, 1100.0, 101.0], [1.0, -1.0]], [[1, 2, 0], [1100.0, 1000.0, 1100.0, 1010.0], [10.0, -10.0]]]],
                "A copy of the model has more ranks than one pipeline of it, if its layers are shared.":
                    [[[[0, 2, 0], [11.0, 1.0, 101.0, 101.0], [100.0, -100.0]], [[0, 2, 0], [11.0, 10.0, 1010.0, 1010.0], [1000.0, -1000.0]], [[1, 2, 0], [1100.0, 100.0, 101.0, 101.0], [1.0, -1.0]], [[1, 2, 0], [1100.0, 1000.0, 1010.0, 1010.0], [10.0, -10.0]]]],
                "A receive has taken what was sent in the other direction: both use one communicator.":
                    [[[[0, 2, 0], [11.0, 1.0, 1111.0, 101.0], [-100.0, 100.0]], [[0, 2, 0], [11.0, 10.0, 1111.0, 1010.0], [-1000.0, 1000.0]], [[1, 2, 0], [1100.0, 100.0, 1111.0, 101.0], [-1.0, 1.0]], [[1, 2, 0], [1100.0, 1000.0, 1111.0, 1010.0], [-10.0, 10.0]]]],
                "The ranks of `data` have the same parameters. Do all ranks of a stage?":
                    [[[[0, 2, 0], [11.0, 11.0, 1111.0, 101.0], [100.0, -100.0]], [[0, 2, 0], [11.0, 11.0, 1111.0, 1010.0], [1000.0, -1000.0]], [[1, 2, 0], [1100.0, 1100.0, 1111.0, 101.0], [1.0, -1.0]], [[1, 2, 0], [1100.0, 1100.0, 1111.0, 1010.0], [10.0, -10.0]]]],
                "`replica` is the number of the copy of the model, not that of a rank within one copy.":
                    [[[[0, 2, 0], [11.0, 1.0, 1111.0, 101.0], [100.0, -100.0]], [[0, 2, 1], [11.0, 10.0, 1111.0, 1010.0], [1000.0, -1000.0]], [[1, 2, 0], [1100.0, 100.0, 1111.0, 101.0], [1.0, -1.0]], [[1, 2, 1], [1100.0, 1000.0, 1111.0, 1010.0], [10.0, -10.0]]]],
                "A rank waits for others that have no such group. On which ranks is `ends` None?": "deadlock"})
        require_lines(run, 2, 2)
        check.ranks(
            grid_here, ranks=4, cases=[{"tensor": 1, "pipeline": 2, "own": check.by_rank([1.0, 10.0, 100.0, 1000.0])}],
            expected=[[[[0, 2, 0], [1.0, 11.0, 101.0, 101.0], [100.0, -100.0]], [[0, 2, 1], [10.0, 11.0, 1010.0, 1010.0], [1000.0, -1000.0]],
                       [[1, 2, 0], [100.0, 1100.0, 101.0, 101.0], [1.0, -1.0]], [[1, 2, 1], [1000.0, 1100.0, 1010.0, 1010.0], [10.0, -10.0]]]],
            hints={
                "Which ranks are neighbors: replicas, or stages?":
                    [[[[0, 2, 0], [1.0, 101.0, 11.0, 11.0], [10.0, -10.0]], [[1, 2, 0], [10.0, 1010.0, 11.0, 11.0], [1.0, -1.0]], [[0, 2, 1], [100.0, 101.0, 1100.0, 1100.0], [1000.0, -1000.0]], [[1, 2, 1], [1000.0, 1010.0, 1100.0, 1100.0], [100.0, -100.0]]]],
            })
        check.ranks(
            grid_here, ranks=4, cases=[{"tensor": 1, "pipeline": 4, "own": check.by_rank([1.0, 10.0, 100.0, 1000.0])}],
            expected=[[[[0, 4, 0], [1.0, 1.0, 1111.0, 1001.0], [1000.0, -1000.0]], [[1, 4, 0], [10.0, 10.0, 1111.0, None], [1.0, -1.0]],
                       [[2, 4, 0], [100.0, 100.0, 1111.0, None], [10.0, -10.0]], [[3, 4, 0], [1000.0, 1000.0, 1111.0, 1001.0], [100.0, -100.0]]]],
            hints={
                "Two ranks of a pipeline are its ends. Those between them are in no such group.":
                    [[[[0, 4, 0], [1.0, 1.0, 1111.0, 1111.0], [1000.0, -1000.0]], [[1, 4, 0], [10.0, 10.0, 1111.0, 1111.0], [1.0, -1.0]], [[2, 4, 0], [100.0, 100.0, 1111.0, 1111.0], [10.0, -10.0]], [[3, 4, 0], [1000.0, 1000.0, 1111.0, 1111.0], [100.0, -100.0]]]],
            })
        (run,) = check.ranks(groups_made, ranks=4, cases=[{"tensor": 2, "pipeline": 1}], expected=None)
        for made in run.values:
            check.that(all(len(set(ranks)) == len(ranks) for ranks in made), f"One of the groups {made} has a rank twice. With a single "
                       "stage, which rank is at the other end?")
        check.ranks(
            grid_here, ranks=4, cases=[{"tensor": 2, "pipeline": 1, "own": check.by_rank([1.0, 10.0, 100.0, 1000.0])}],
            expected=[[[[0, 1, 0], [11.0, 101.0, 11.0, None], []], [[0, 1, 0], [11.0, 1010.0, 11.0, None], []], [[0, 1, 1], [1100.0, 101.0, 1100.0, None], []], [[0, 1, 1], [1100.0, 1010.0, 1100.0, None], []]]],
            hints={
                "Tensor-parallel ranks are next to each other.":
                    [[[[0, 1, 0], [101.0, 11.0, 101.0, None], []], [[0, 1, 1], [1010.0, 11.0, 1010.0, None], []], [[0, 1, 0], [101.0, 1100.0, 101.0, None], []], [[0, 1, 1], [1010.0, 1100.0, 1010.0, None], []]]],
                "A pipeline of one stage has no two ends.":
                    [[[[0, 1, 0], [11.0, 101.0, 11.0, 1.0], []], [[0, 1, 0], [11.0, 1010.0, 11.0, 10.0], []], [[0, 1, 1], [1100.0, 101.0, 1100.0, 100.0], []], [[0, 1, 1], [1100.0, 1010.0, 1100.0, 1000.0], []]]],
            })
        require_same_groups(check.ranks(groups_made, ranks=4, cases=[{"tensor": 1, "pipeline": 2}], expected=None))
        ### BEGIN HIDDEN TESTS
        for ranks, tensor, pipeline in ((8, 2, 2), (6, 1, 3)):
            (run,) = check.ranks(grid_here, ranks=ranks, rel=1e-5, cases=check.draw(
                1, tensor=[tensor], pipeline=[pipeline], own=check.for_each_rank(check.between(1, 100))),
                expected=lambda ranks, tensor, pipeline, own: grid_of(tensor, pipeline, own))
            require_lines(run, tensor, pipeline)
        ### END HIDDEN TESTS
    with check.part(2, "refuses what does not divide the ranks"):
        for run in check.ranks(grid_error, ranks=2, cases=[{"tensor": 3, "pipeline": 1}, {"tensor": 2, "pipeline": 2}], expected=None):
            check.that(run.values == ["ValueError"] * 2, "Two ranks are not divisible by three, nor by four. Raise a ValueError on every rank.")

# %% [raw] mutant="grid" hint="replicas, or stages"
# -            return i + tensor * (j + data * k)
# +            return i + tensor * (k + pipeline * j)
# -        self.stage, self.stages, self.replica = rank // (tensor * data), pipeline, rank // tensor % data
# +        self.stage, self.stages, self.replica = rank // tensor % pipeline, pipeline, rank // (tensor * pipeline)

# %% [raw] mutant="grid" hint="next to each other"
# -            return i + tensor * (j + data * k)
# +            return j + data * (i + tensor * k)
# -        self.stage, self.stages, self.replica = rank // (tensor * data), pipeline, rank // tensor % data
# +        self.stage, self.stages, self.replica = rank // (tensor * data), pipeline, rank % data

# %% [raw] mutant="grid" hint="A copy of the model has more ranks"
# -        self.model = own([[number(i, j, k) for k in p for i in t] for j in d])
# +        self.model = self.tensor

# %% [raw] mutant="grid" hint="one pipeline of it"
# -        self.model = own([[number(i, j, k) for k in p for i in t] for j in d])
# +        self.model = own(pipelines)

# %% [raw] mutant="grid" hint="Two ranks of a pipeline are its ends"
# -        self.ends = own([[ranks[0], ranks[-1]] for ranks in pipelines if len(ranks) > 1])
# +        self.ends = own(pipelines)

# %% [raw] mutant="grid" hint="which rank is at the other end"
# -        self.ends = own([[ranks[0], ranks[-1]] for ranks in pipelines if len(ranks) > 1])
# +        self.ends = own([[ranks[0], ranks[-1]] for ranks in pipelines])

# %% [raw] mutant="grid" hint="has no two ends"
# -        self.ends = own([[ranks[0], ranks[-1]] for ranks in pipelines if len(ranks) > 1])
# +        self.ends = own([sorted({ranks[0], ranks[-1]}) for ranks in pipelines])

# %% [raw] mutant="grid" hint="the other direction"
# -        self.links = {kind: own(pipelines) for kind in "FB"}
# +        self.links = dict.fromkeys("FB", own(pipelines))

# %% [raw] mutant="grid" hint="Do all ranks of a stage"
# -        self.data = own([[number(i, j, k) for j in d] for k in p for i in t])
# +        self.data = own([[number(i, j, k) for j in d for i in t] for k in p])

# %% [raw] mutant="grid" hint="within one copy"
# -        self.stage, self.stages, self.replica = rank // (tensor * data), pipeline, rank // tensor % data
# +        self.stage, self.stages, self.replica = rank // (tensor * data), pipeline, rank % (tensor * data)

# %% [raw] mutant="grid" hint="Two ranks are not divisible by three"
# -        if world % (tensor * pipeline):
# -            raise ValueError(f"{world} ranks are not divisible by {tensor} x {pipeline}")

# %% [raw] mutant="grid" hint="they would wait for each other"
# -            for ranks in groups:
# -                group = dist.new_group(ranks)
# -                if rank in ranks:
# -                    found = group
# +            for ranks in groups:
# +                if rank in ranks:
# +                    found = dist.new_group(ranks)

# %% [raw] mutant="grid" hint="they would wait for each other"
# -            for ranks in groups:
# +            for ranks in sorted(groups, key=lambda ranks: rank not in ranks):

# %% [raw] mutant="grid" hint="On which ranks is"
# -        self.ends = own([[ranks[0], ranks[-1]] for ranks in pipelines if len(ranks) > 1])
# +        ends = own([[ranks[0], ranks[-1]] for ranks in pipelines if len(ranks) > 1])
# +        self.ends = ends if self.stage == 0 else None

# %% [markdown]
# ### Gradients of replicas
#
# Each stage now has replicas, and your DDP from lab 04 averages their gradients. But a stage runs $m$ backward passes
# per step, and each of them adds to the same gradients. Hooks that start an all-reduce in the first of these passes
# would average gradients that are not complete yet. Either the result would be wrong, or every pass would need its own
# all-reduce, which is $m$ times the communication. So only the **last** backward pass may start the all-reduce of a
# parameter's gradient. In your schedule, which pass is the last one on each stage? And which stage finishes first, so
# that its all-reduce overlaps with nothing but the bubble?
#
# Your trainer runs all backward passes under `no_sync`, and averages the gradients at the end of the step. The next
# cells train your Llama from lab 09 on two nodes in three ways: PP 2 x DP 2 with 1F1B; TP 2 x PP 2 with 1F1B; and
# interleaved, with two chunks per stage. The reference is a single-process run of `pretrain_gpt.py`.

# %% tags=["explore"] short={"--train-iters 10": "--train-iters 2"}
FLAGS = ("--device cpu --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
         "--swiglu --normalization RMSNorm --position-embedding-type rope --group-query-attention --num-query-groups 1 "
         "--untie-embeddings-and-output-weights --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 "
         "--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-3 --min-lr 1e-5 --lr-warmup-fraction 0.2 "
         "--lr-decay-style cosine --clip-grad 1.0 --log-interval 1 --eval-iters 0 --split 949,50,1 "
         "--data-path data/bpe-4096/text_document --vocab-file data/bpe-4096/vocab.json --merge-file data/bpe-4096/merges.txt "
         "--pipeline-model-parallel-size 2 ")
!sbatch --output=megatron/logs/mine_pp_dp.txt code/my_trainer.sh {FLAGS} --schedule 1f1b --balance 3-1
!OMP_NUM_THREADS=1 python megatron/Megatron-LM/pretrain_gpt.py {FLAGS} --pipeline-model-parallel-size 1 > megatron/logs/reference_pp.txt

# %% tags=["explore"]
jobs.wait()
!sbatch --output=megatron/logs/mine_tp_pp.txt code/my_trainer.sh {FLAGS} --schedule 1f1b --tensor-model-parallel-size 2

# %% tags=["explore"]
jobs.wait()
!sbatch --output=megatron/logs/mine_interleaved.txt code/my_trainer.sh {FLAGS} --num-layers-per-virtual-pipeline-stage 1

# %% tags=["explore"]
jobs.wait()
reference = logs.read("megatron/logs/reference_pp.txt")
for name in ("mine_pp_dp", "mine_tp_pp", "mine_interleaved"):
    mine = logs.read(f"megatron/logs/{name}.txt")
    assert mine.iterations, f"Your job has failed. megatron/logs/{name}.txt says why."
    norms = max(abs(yours.grad_norm / theirs.grad_norm - 1)
                for theirs, yours in zip(reference.iterations, mine.iterations, strict=True))
    losses = logs.loss_difference(reference, mine)
    print(f"{name}: losses differ by at most {result(f'{losses:.1e}')}, gradient norms by {result(f'{norms:.1e}')}, relatively")
    assert losses < 1e-4, "One of your files trains differently from the reference. `lab mytrainer` tests each of them."
    assert norms < 1e-2, "The losses agree, and the gradient norms do not. Which ranks does grad_norm.py sum over?"

# %% [markdown]
# ## DeepSpeed's pipeline
#
# How does a library do it? **DeepSpeed** ([Rasley et al., 2020](https://doi.org/10.1145/3394486.3406703)) expresses
# 1F1B as a stream of instructions, and has its own executor for them. These are the first instructions of the last of
# four stages:

# %% tags=["explore"]
from lablib import deepspeed_cpu  # before deepspeed: lets it run without GPUs

# %% tags=["explore"]
from deepspeed.runtime.pipe.schedule import TrainSchedule


def instructions_of(stages, stage, micro_batches):
    """Return DeepSpeed's instructions for one stage."""
    steps = TrainSchedule(micro_batches=micro_batches, stages=stages, stage_id=stage)
    return [repr(instruction) for step in steps for instruction in step]


print("\n".join(instructions_of(4, 3, 8)[:10]))

# %% [markdown]
# A **buffer** holds the activations of one micro-batch, and is reused when that micro-batch is done, so the number of a
# buffer is not the number of its micro-batch. Sends and receives are instructions, too, as in the programs of lab 10.
# Is this the same schedule as yours?

# %% tags=["explore"]
for stage, mine in enumerate(my_1f1b(4, 8)):
    counts, theirs = {"F": 0, "B": 0}, []
    for instruction in instructions_of(4, stage, 8):
        if instruction.startswith(("ForwardPass", "BackwardPass")):
            kind = instruction[0]
            theirs.append(f"{kind}{counts[kind]}")
            counts[kind] += 1
    print(f"stage {stage}: {' '.join(theirs)}  {good('as mine') if theirs == mine else bad('not as mine')}")

# %% [markdown]
# `code/examples/pipe_dream.py` trains a GPT of 14 layers with it: the embedding, 12 blocks, and the head. Its job
# script starts one process per stage with `srun`, here four of them on two nodes. DeepSpeed splits a model by one of
# three methods: `uniform` gives all stages the same number of layers, `parameters` balances the number of parameters,
# and `type:REGEX` balances the number of layers whose class name matches. None of them considers time or memory. Before
# you run the cell: how does `type:Block` split 12 blocks across four stages, and which stage gets the head?

# %% tags=["explore"] short={"code/examples/pipe_dream.sh --balance type:Block --iterations 3": "--ntasks-per-node=1 code/examples/pipe_dream.sh --balance type:Block --iterations 1 --seq-length 32"}
!sbatch code/examples/pipe_dream.sh --balance type:Block --iterations 3

# %% tags=["explore"]
four = jobs.wait()
!grep -E "DeepSpeed|stage|iteration|speed" {four.log}

# %% [markdown]
# The log begins with the split of the layers and with DeepSpeed's own schedule. At the end, each stage prints its peak
# activation memory. Compare it with the rule that stage $s$ has $p - s$ micro-batches in flight: why is the ratio not
# 4:3:2:1? With two fewer layers, the last stage would also be faster. Your `best_split` would tell you so, and
# `--balance 4,4,4,2` passes such a split to this program:

# %% tags=["explore"] short={"code/examples/pipe_dream.sh --balance 4,4,4,2 --iterations 3": "--ntasks-per-node=1 code/examples/pipe_dream.sh --balance 6,8 --iterations 1 --seq-length 32"}
!sbatch code/examples/pipe_dream.sh --balance 4,4,4,2 --iterations 3

# %% tags=["explore"]
other = jobs.wait()
for one, two in zip(logs.lines(four.log, "| loss "), logs.lines(other.log, "| loss "), strict=True):
    number, loss, norm, _ = one.split(" | ")
    print(f"{number}: by type {loss}, {norm}; 4-4-4-2 {', '.join(two.split(' | ')[1:3])}")
!grep -hE "DeepSpeed: balance|speed" {four.log} {other.log}

# %% [markdown]
# The losses agree: where you split a model does not change what it learns. Do not judge the split by the speeds, though.
# If the four stages share a few CPU cores, a stage that waits leaves its core to the others, so a better balance saves
# no time here.
#
# **Configuring it.** DeepSpeed reads its settings from a JSON file. Both jobs used this one:

# %% tags=["explore"]
!cat code/examples/pipe_dream.json

# %% [markdown]
# DeepSpeed creates the optimizer, clips the gradient, and asks the data loader for as many micro-batches as a step
# needs (`gradient_accumulation_steps`), so the program only has to call `engine.train_batch(batches)`. With a pipeline,
# ZeRO works only at stage 1, which shards the optimizer state. ZeRO stages 2 and 3 raise `ZeRO-2 and ZeRO-3 are
# incompatible with pipeline parallelism`: they would have to reduce gradients, or gather parameters, in each of the $m$
# passes of a step.
#
# ## Discuss
#
# 1. **More micro-batches.** With 1F1B, more micro-batches shrink the bubble, and they need no more memory. Why not use
#    a thousand of them?
# 2. **Chunks or stages.** You have 16 GPUs and 48 layers. Compare one pipeline of 16 stages with 4 replicas of a
#    pipeline of 4 stages, with 4 chunks per stage. Consider the bubble, memory, and what crosses which network.
# 3. **Recompute where?** The first stage holds the activations of $p$ micro-batches, and the last one those of a single
#    one. On which stages would you recompute, and what does that do to the best split?
# 4. **Unequal replicas.** One of two replicas has a slow GPU in its third stage. What does each of the other ranks wait
#    for, and where would you see that in a profile?

# %% [markdown]
# ## Cleanup
#
# Keep `mytrainer/`: the next labs add to it.

# %% tags=["explore"]
!rm -f megatron/logs/mine_pp_dp.txt megatron/logs/mine_tp_pp.txt megatron/logs/mine_interleaved.txt megatron/logs/reference_pp.txt
!squeue
!ls mytrainer

# %% [markdown]
# ## What you have built
#
# Six files: 1F1B and interleaved 1F1B, both written from their properties alone; a prediction of a rank's peak memory
# under any schedule; an exact search for the fastest split that fits; a simulation that finds the network on which
# interleaving stops paying off; and the process groups of a whole cluster. Three things to remember:
#
# - 1F1B has the same bubble as GPipe, but at most $p - s$ micro-batches in flight on stage $s$, whatever $m$ is. The
#   figure shows both, next to a pipeline that runs one micro-batch at a time.
# - The slowest stage sets the pace, and the first one needs the most memory per layer. Profile first, then search for
#   the fastest split that fits.
# - Interleaving divides the bubble overhead by $v$, but multiplies the number of transfers. On a fast network, and with
#   more micro-batches than stages, interleaving hides transfers better than 1F1B does, provided that each stage starts
#   with two more forward passes than the next one.
#
# ![Three timelines of four stages and four micro-batches on one scale of time. One micro-batch at a time: total 48,
# bubble 75%, one micro-batch in flight on each stage. GPipe: total 21, bubble 43%, four in flight on every stage. 1F1B:
# total 21, bubble 43%, four, three, two, and one in flight on stages 0 to 3.](../images/gpipe_and_1f1b.svg)
#
# Every schedule in this lab flushes the pipeline at the end of each step. [Lab 12](12_pipeline_3.ipynb) asks what
# happens without a flush, and then fills what is left of the bubble by computing weight gradients in it.
#
# ## Read next
#
# - [Narayanan et al., 2021a](https://arxiv.org/abs/2006.09503), *Memory-efficient pipeline-parallel DNN training*:
#   PipeDream-Flush, now simply called 1F1B, and its relatives without a flush.
# - [Narayanan et al., 2021b](https://arxiv.org/abs/2104.04473), *Efficient large-scale language model training on GPU
#   clusters*: interleaving, and how tensor, pipeline, and data parallelism fit together on 3,072 GPUs.
# - [Megatron-LM's
#   `schedules.py`](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/pipeline_parallel/schedules.py): the
#   two schedules of this lab, written as loops that compute, send, and receive.
# - [Llama Team, 2024](https://arxiv.org/abs/2407.21783), section 3.3.2: a pipeline of 16 stages that accepts any number
#   of micro-batches, and whose first and last stages have one layer fewer than the others.
# - [Lamy-Poirier, 2023](https://arxiv.org/abs/2211.05953), *Breadth-first pipeline parallelism*: in which order the
#   passes of the chunks should run, and what that has to do with data parallelism.
