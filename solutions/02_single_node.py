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
# # Single node: one GPU, two GPUs, three ways to share
#
# A model trains on one GPU. Now you are given a second one on the same node. What do you give it to
# do: other samples, half of every layer, or half of the layers? In this lab you do all three, with
# the same script and other flags, and compare what each costs in time, in memory, and on the wire
# between the two.
#
# **You will be able to**
#
# - work on a node interactively, with `salloc`, and know where each of your commands runs;
# - read the training script and the trainer's log, every field of it;
# - say how many data-parallel ranks there are, and which parameters a rank holds;
# - work out what a rank sends in an iteration: gradients, activations of layers, or activations at a
#   boundary;
# - choose the fastest way for a model and its cards, and another one where the model does not fit.
#
# **How it works.** Cells run with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where it
# says *Your turn*, you replace a line by your answer; the cell below checks it. Where you are asked
# for a guess, guess *before* you run: it gives no marks.
#
# **Real and virtual.** What the model learns is real here, on your CPU. Time and memory of GPUs are
# **virtual**: modeled from data sheets and published measurements, the same on every machine. So are
# the GPUs that run a model of full size below; but their ranks are real processes, started by the
# same script, and what they would send each other is counted message by message.

# %% tags=["setup"]
import os

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace

# %% tags=["check-setup"]
from labkit import check

# What answers cannot import: they would hold the solution.
check.mask("job_monitor.layouts", "job_monitor.logs", "job_monitor.wire", "layout_estimator",
           "minimegatron", "pipeline_schedules", "virtualgpu")

# %% tags=["explore"]
from job_monitor import layouts, logs, wire
from lab import tensorboard
from lab.notebook import jobs, plots
from labcore.colors import bad, mark, result

jobs.connect()
!scancel --user=$USER

# %% [markdown]
# ## A node for yourself, for a while
#
# A batch job (`sbatch`) runs when you may be asleep. Sometimes you want to sit *at* a node instead:
# try a command, look, try the next. For this there is `salloc`. It asks for an **allocation**, waits
# until you have it, and then starts a shell. In a terminal (in JupyterLab: *File*, *New*, *Terminal*)
# it looks like this. Here `JOBID` stands for the job's number; on this course's own cluster the first
# line makes Slurm's commands known:
#
# ```
# $ eval "$(lab cluster env)"
# $ salloc --nodes=1 --cpus-per-task=2 --time=00:30:00
# salloc: Granted job allocation JOBID
# $ hostname                    # still where you were
# login
# $ srun hostname               # on the node
# slurmnode1
# $ squeue                      # the allocation is a job like any other
# $ exit
# salloc: Relinquishing job allocation JOBID
# ```
#
# This is where most people stumble: **the new shell does not run on the node.** It runs where you
# typed `salloc`, and only knows of the allocation. `srun` carries a command to the node.
#
# | | waits for its turn | runs | you get the output |
# |---|---|---|---|
# | `sbatch script` | in the background | the script, on the job's first node | in the log |
# | `srun command` | while you wait | the command, on the nodes | at once |
# | `salloc` | while you wait | a shell, where you are; `srun` in it runs on the nodes | at once |
#
# A notebook's cell has no terminal to type into, so here the shell is given its commands. Which of
# the two names is the node's?

# %% tags=["explore"]
!salloc --nodes=1 --cpus-per-task=2 --time=00:05:00 bash -c \
    'echo "without srun: $(hostname)"; echo "with srun:    $(srun hostname)"; squeue --me'

# %% [markdown]
# (On a site's cluster the first name may be that of the node as well: some sites set up `salloc` so
# that it takes you there.)
#
# When the shell ends, the allocation is given back. That is the second trap: as long as the terminal
# is open, nobody else can use the node, whether you type or not. So `--time` is short here.

# %% [markdown]
# ## The script, line by line
#
# This script trains a small GPT on one node. Read it once from top to bottom, then come back to it
# with the table below.

# %% tags=["explore"]
!cat code/single_node.sh

# %% [markdown]
# | lines | what they do |
# |---|---|
# | `#SBATCH ...` | the form that `sbatch` reads: one node, one task on it, CPUs for that task, a time limit, a log |
# | `set -euo pipefail` | stop at the first command that fails, and at a variable that is not set |
# | `RANKS_PER_NODE=${RANKS:-2}` | two ranks, unless you say otherwise: `RANKS=1 sbatch ...` |
# | `NAME=$SLURM_JOB_NAME` | checkpoints and curves go into a folder with the job's name |
# | `OMP_NUM_THREADS=1` | each rank computes on one CPU, so two ranks have twice as much as one |
# | `MODEL` | layers; width of a token's vector (**hidden size**); heads; tokens of a sample (**sequence length**) |
# | `BATCH` | samples that a rank works on at a time (**micro-batch**); samples of one step, of all ranks together (**global batch**); number of steps |
# | `OPTIMIZER` | the learning rate rises over the first steps, then falls along a cosine; gradients are clipped |
# | `TEXT` | the tokens, the vocabulary, and how much is for training, validation and test |
# | `OUTPUT` | how often a line is printed, the model is validated and saved; where curves go |
# | `srun torchrun ...` | on the node, start one launcher, which starts the ranks. Each **rank** is one process with one GPU, or with some CPUs as here |
# | `"$@"` | what you type after the script's name goes to the trainer, and the last word counts |
#
# A batch script is a shell script. Inside of an allocation you can run it by hand, without `sbatch`:
# the `#SBATCH` lines are comments then, and the output comes to you.

# %% tags=["explore"] short={"--train-iters 1": "--train-iters 1 --num-layers 2 --hidden-size 64 --seq-length 64"}
!salloc --job-name=by_hand --cpus-per-task=2 --time=00:05:00 bash code/single_node.sh \
    --train-iters 1 --log-interval 1 --eval-iters 0 2>&1 | grep --extended-regexp "salloc|world size:|elapsed time"

# %% [markdown]
# What the launcher starts is short, too. `pretrain_gpt.py` calls a loop, and each turn of the loop is
# this function of the trainer:

# %% tags=["explore"]
import inspect

from minimegatron.training import Trainer

print(inspect.getsource(Trainer.step))

# %% [markdown]
# In order: clear the gradients; work through the **micro-batches**, forward and backward
# (`self.pipeline.train`, also where there is no pipeline); add up the gradients that several ranks
# have of the same parameter, first the word embedding's, which two stages of a pipeline share
# (`self.tied`), then those of all replicas (`gradients.finish`); step the optimizer; count. Keep this
# function in mind: it is the same in all that follows. What differs is what a rank holds, and with
# whom it adds up.

# %% [markdown]
# ## One rank, and what it says
#
# First one rank alone. How many **tokens** per second will your CPU train, with this small model?

# %% nbgrader={"grade": false, "grade_id": "guess-tokens", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_tokens = 3000
### END SOLUTION

# %% tags=["explore"] short={"--train-iters 10": "--train-iters 2 --num-layers 2 --hidden-size 64 --seq-length 64"}
!RANKS=1 sbatch --job-name=one_rank code/single_node.sh --train-iters 10 --log-interval 1 --eval-iters 0

# %% tags=["explore"]
job = jobs.wait()

# %% [markdown]
# A log begins with what the trainer understood. Three of these lines are worth a look in every run:
# how many ranks there are and how they share, how many micro-batches a rank works through in an
# iteration, and how many parameters it holds.

# %% tags=["explore"]
for phrase in ("using world size", "number of micro-batches", "number of parameters"):
    print(logs.lines(job.log, phrase)[0])

# %% [markdown]
# Then comes a line for every so many iterations. One of them, its fields below each other:

# %% tags=["explore"]
line = logs.lines(job.log, "elapsed time per iteration")[-1]
for field in line.strip(" |").split("|"):
    print(mark(field.strip(), "elapsed time.*|lm loss.*") if "loss:" in field or "elapsed" in field
          else field.strip())
print(logs.lines(job.log, "time (ms) | forward")[-1])
print(logs.lines(job.log, "max allocated: ")[0])

# %% [markdown]
# | field | what it says |
# |---|---|
# | `iteration` | this one / all of them |
# | `consumed samples` | read since the beginning, by all ranks together |
# | `elapsed time per iteration (ms)` | the mean of the iterations since the line before |
# | `learning rate` | of this step |
# | `global batch size` | samples of one step, of all ranks together |
# | `lm loss` | mean of the iterations since the line before, and of all ranks |
# | `loss scale` | for 16-bit numbers only; without them it is 1 |
# | `grad norm` | length of the gradient of the whole model, before it is clipped |
# | `number of skipped iterations` | thrown away, because a 16-bit number overflowed |
# | `number of nan iterations` | in which the loss was no number: must be 0 |
#
# The line `time (ms)` says where the time went. `forward-compute` and `backward-compute` are the
# arithmetic. Timers with `all-reduce` are what ranks exchange. And `max allocated` is the memory at
# the peak; on a CPU it is that of the whole process, in MiB.

# %% [markdown]
# ### Exercise 1: what a line tells
#
# You look at a job in the evening and see its latest line. How many samples per second does it train,
# and in how many minutes will it be through?

# %% nbgrader={"grade": false, "grade_id": "progress", "locked": false, "schema_version": 3, "solution": true, "task": false}
def progress(line):
    """(samples per second, minutes until the last iteration): two floats.

    line: an iteration line of a log, as above.
    """
    ### BEGIN SOLUTION
    words = line.replace("/", " ").split()
    now, last = int(words[1]), int(words[2])
    seconds = float(words[words.index("(ms):") + 1]) / 1000
    batch = int(words[words.index("batch") + 2])
    return batch / seconds, (last - now) * seconds / 60
    ### END SOLUTION

# %% tags=["check-setup"]
def iteration_line(iteration, iterations, milliseconds, batch):
    """A log's line, as the trainer prints it."""
    return (f" iteration {iteration:8d}/{iterations:8d} | consumed samples: "
            f"{iteration * batch:12d} | elapsed time per iteration (ms): {milliseconds:.1f} | "
            f"learning rate: 1.500E-04 | global batch size: {batch:5d} | lm loss: 6.114205E+00 | "
            "loss scale: 1.0 | grad norm: 1.107 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |")

# %% nbgrader={"grade": true, "grade_id": "progress-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    progress, rel=1e-3,
    cases=[{"line": iteration_line(2000, 8000, 500.0, 64)},
           {"line": iteration_line(90, 100, 1200.0, 8)}],
    expected=[(128.0, 50.0), (6.666667, 0.2)],
    hints={
        "Consumed samples are those of all iterations so far; the time is that of one.":
            [(256000.0, 50.0), (600.0, 0.2)],
        "That is how long the whole training takes: some of it is over.":
            [(128.0, 66.66667), (6.666667, 2.0)],
        "The time of an iteration is in milliseconds; a second has a thousand, a minute 60 seconds.":
            [(0.128, 50000.0), (0.006666667, 200.0)],
        "The second figure is in seconds; minutes are asked for.":
            [(128.0, 3000.0), (6.666667, 12.0)],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, now=range(1, 5000), left=range(1, 90000), batch=[8, 48, 512, 1536],
                   milliseconds=check.between(3.0, 9000.0, digits=1))
check.function(
    progress, rel=1e-3,
    cases=[{"line": iteration_line(case["now"], case["now"] + case["left"],
                                   case["milliseconds"], case["batch"])} for case in drawn],
    expected=[(1000 * case["batch"] / case["milliseconds"],
               case["left"] * case["milliseconds"] / 60000) for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="progress" hint="that of one"
# -    batch = int(words[words.index("batch") + 2])
# +    batch = int(words[words.index("samples:") + 1])

# %% [raw] tags=["mutant"] answer="progress" hint="some of it is over"
# -    return batch / seconds, (last - now) * seconds / 60
# +    return batch / seconds, last * seconds / 60

# %% [raw] tags=["mutant"] answer="progress" hint="in milliseconds"
# -    seconds = float(words[words.index("(ms):") + 1]) / 1000
# +    seconds = float(words[words.index("(ms):") + 1])

# %% [raw] tags=["mutant"] answer="progress" hint="minutes are asked for"
# -    return batch / seconds, (last - now) * seconds / 60
# +    return batch / seconds, (last - now) * seconds

# %% [markdown]
# Samples per second times the tokens of a sample are **tokens per second**, which can be compared
# between runs with any batch and any sequence length. How good was your guess?

# %% tags=["explore"]
samples_per_second, minutes = progress(line)
check.compare("tokens per second", guess_tokens, samples_per_second * 256)

# %% [markdown]
# ## Three ways to share
#
# Now there are two GPUs.
#
# ![Three pairs of GPUs. Data-parallel: each GPU holds all four layers and has samples of its own; they
# exchange gradients once an iteration. Tensor-parallel: each GPU holds half of every layer, both work
# on all samples, and exchange activations in every layer, both ways. Pipeline-parallel: the first GPU
# holds layers 0 and 1, the second layers 2 and 3; activations cross the boundary, and their gradients
# come back.](../images/ways_to_share.svg)
#
# | | a rank holds | a rank works on | what goes over the wire |
# |---|---|---|---|
# | **data-parallel** (DP) | the whole model | its own samples | gradients |
# | **tensor-parallel** (TP) | a part of every layer | all samples | activations, in every layer |
# | **pipeline-parallel** (PP) | some of the layers: a **stage** | all samples | activations between stages |
#
# They can be combined: 8 GPUs can be 2 replicas of a pipeline of 2 stages, each of which is 2
# tensor-parallel ranks. The trainer has flags for the second and the third
# (`--tensor-model-parallel-size`, `--pipeline-model-parallel-size`). There is none for the first:
# what is left over is data-parallel.

# %% [markdown]
# ### Exercise 2: what is left over
#
# How many replicas of the model are there? Some combinations do not come out even: refuse them with a
# `ValueError` whose text names the world size.

# %% nbgrader={"grade": false, "grade_id": "replicas", "locked": false, "schema_version": 3, "solution": true, "task": false}
def replicas(world_size, tensor, pipeline):
    """The data-parallel size (an int): replicas of the whole model.

    Raises ValueError, which names the world size, when it does not come out even.
    """
    ### BEGIN SOLUTION
    ranks = tensor * pipeline  # of one replica
    if world_size % ranks:
        raise ValueError(f"{world_size} ranks cannot be divided into replicas of {ranks}")
    return world_size // ranks
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "replicas-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    replicas,
    cases=[{"world_size": 24, "tensor": 4, "pipeline": 2},
           {"world_size": 2, "tensor": 1, "pipeline": 1},
           {"world_size": 3072, "tensor": 8, "pipeline": 64},
           {"world_size": 12, "tensor": 1, "pipeline": 3}],
    expected=[3, 2, 6, 4],
    hints={
        "Each stage of the pipeline is `tensor` ranks: how many ranks is one replica?":
            [4, 1, 42, 3],
        "Stages are ranks, too.": [6, 2, 384, 12],
        "That is how many ranks one replica takes.": [8, 1, 512, 3],
    })
check.raises(replicas, ValueError, {"world_size": 6, "tensor": 4, "pipeline": 1}, mentions="6",
             hint="It does not come out even: some ranks would be part of no replica.")
### BEGIN HIDDEN TESTS
drawn = check.draw(20, size=range(1, 40), tensor=[1, 2, 4, 8], pipeline=[1, 2, 3, 8, 64])
check.function(
    replicas,
    cases=[(case["size"] * case["tensor"] * case["pipeline"], case["tensor"], case["pipeline"])
           for case in drawn],
    expected=[case["size"] for case in drawn])
check.raises(replicas, ValueError, (24, 8, 2), mentions="24")
check.raises(replicas, ValueError, (4, 2, 4), mentions="4")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="replicas" hint="how many ranks is one replica"
# -    ranks = tensor * pipeline  # of one replica
# +    ranks = tensor + pipeline
# -    if world_size % ranks:
# +    if ranks > world_size:

# %% [raw] tags=["mutant"] answer="replicas" hint="Stages are ranks"
# -    ranks = tensor * pipeline  # of one replica
# +    ranks = tensor

# %% [raw] tags=["mutant"] answer="replicas" hint="one replica takes"
# -    return world_size // ranks
# +    return ranks

# %% [raw] tags=["mutant"] answer="replicas" hint="part of no replica"
# def replicas(world_size, tensor, pipeline):
#     return world_size // (tensor * pipeline)

# %% [markdown]
# ## Where we begin: one GPU
#
# The model is GPT-2 small now, at full size, and the card is a virtual V100 with 16 GB. All runs that
# follow train the **same global batch of 8 samples** in an iteration, in micro-batches of 2: else
# they could not be compared. What goes to every run:

# %% tags=["explore"] short={"--global-batch-size 8 --train-iters 6": "--global-batch-size 4 --train-iters 4"}
GPT2 = ("--device virtual:v100 --global-batch-size 8 --train-iters 6 --log-interval 1 "
        "--profile-execution yes")

# %% tags=["explore"]
!sed --quiet '/^MODEL=/,/^LAYOUT=/p' code/virtual_v100.sh

# %% [markdown]
# That script is made for two nodes; what stands before its name goes to `sbatch` and overrides its
# form.

# %% tags=["explore"]
!sbatch --nodes=1 --gpus-per-node=1 --job-name=gpt2_one code/virtual_v100.sh {GPT2}

# %% tags=["explore"]
one_job = jobs.wait()

# %% tags=["explore"]
one = layouts.read("one GPU", one_job, sequence_length=1024)
layouts.show([one])

# %% [markdown]
# ## Data-parallel
#
# Each of the two GPUs holds a copy of the model and has half of the samples. How many times as fast
# will it be?

# %% nbgrader={"grade": false, "grade_id": "guess-dp", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_dp = 1.9
### END SOLUTION

# %% tags=["explore"]
!sbatch --nodes=1 --gpus-per-node=2 --job-name=gpt2_dp code/virtual_v100.sh {GPT2}

# %% tags=["explore"]
dp_job = jobs.wait()

# %% tags=["explore"]
dp = layouts.read("data-parallel", dp_job, sequence_length=1024)
check.compare("times as fast (virtual)", guess_dp, one.milliseconds / dp.milliseconds)
layouts.show([one, dp])
for run_job in (one_job, dp_job):
    print(logs.lines(run_job.log, "number of micro-batches")[0])

# %% [markdown]
# Nearly twice. Each GPU has half as many micro-batches, and the only thing that is new is that the
# gradients are added up. The memory is what it was: data parallelism makes a training faster, not
# smaller.
#
# ### Exercise 3: gradients on the wire
#
# Every rank has a gradient for every parameter, and needs the sum over all ranks. This operation is
# called an **all-reduce**. In its usual form, a ring, each of n ranks sends 2 (n - 1) / n times the
# size of what is added up. (The next lab shows why.) How many bytes does one rank send in an
# iteration? Look at `Trainer.step` above: how often is it done?

# %% nbgrader={"grade": false, "grade_id": "gradient-bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gradient_bytes(parameters, ranks, micro_batches, bytes_each=4):
    """Bytes (a float) that a rank sends in one iteration under data parallelism.

    micro_batches: that each rank works through in an iteration.
    bytes_each: of one gradient, 4 in fp32.
    """
    ### BEGIN SOLUTION
    return 2 * (ranks - 1) / ranks * parameters * bytes_each
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "gradient-bytes-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    gradient_bytes,
    cases=[{"parameters": 1_000_000, "ranks": 2, "micro_batches": 4},
           {"parameters": 124_000_000, "ranks": 8, "micro_batches": 2, "bytes_each": 2},
           {"parameters": 1_000_000, "ranks": 1, "micro_batches": 8}],
    expected=[4_000_000.0, 434_000_000.0, 0.0],
    hints={
        "The gradients of all micro-batches are added up where they are; they are sent once, when the "
        "last micro-batch is through.": [16_000_000.0, 868_000_000.0, 0.0],
        "A ring goes round twice: look at the factor once more.": [2_000_000.0, 217_000_000.0, 0.0],
        "Those are gradients; each has several bytes.": [1_000_000.0, 217_000_000.0, 0.0],
        "One rank alone has nobody to send to.": [8_000_000.0, 496_000_000.0, 8_000_000.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    gradient_bytes,
    cases=check.draw(20, parameters=range(1024, 10**10, 1024), ranks=[1, 2, 4, 8, 64],
                     micro_batches=range(1, 17), bytes_each=[2, 4]),
    expected=lambda parameters, ranks, micro_batches, bytes_each:
        2.0 * (ranks - 1) * parameters * bytes_each / ranks)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="gradient-bytes" hint="they are sent once"
# -    return 2 * (ranks - 1) / ranks * parameters * bytes_each
# +    return 2 * (ranks - 1) / ranks * parameters * bytes_each * micro_batches

# %% [raw] tags=["mutant"] answer="gradient-bytes" hint="goes round twice"
# -    return 2 * (ranks - 1) / ranks * parameters * bytes_each
# +    return (ranks - 1) / ranks * parameters * bytes_each

# %% [raw] tags=["mutant"] answer="gradient-bytes" hint="each has several bytes"
# -    return 2 * (ranks - 1) / ranks * parameters * bytes_each
# +    return 2 * (ranks - 1) / ranks * parameters

# %% [raw] tags=["mutant"] answer="gradient-bytes" hint="nobody to send to"
# -    return 2 * (ranks - 1) / ranks * parameters * bytes_each
# +    return 2.0 * parameters * bytes_each

# %% [markdown]
# Your run has kept a record of every message: `--profile-execution yes` writes down what each rank
# does in two of the iterations. Do you and the record agree?

# %% tags=["explore"]
by_formula = gradient_bytes(dp.parameters[0, 0], ranks=2, micro_batches=2)
print(f"your formula {result(f'{by_formula / 1e6:,.2f}')} MB, the record of the run "
      f"{result(f'{dp.megabytes:,.2f}')} MB")

# %% [markdown]
# ## Tensor-parallel
#
# Now every layer is cut in two. Most of a layer are matrices. A matrix can be cut by columns, where
# each rank computes some of the outputs, or by rows, where each rank adds up some of the inputs.
# Megatron cuts the first matrix of a pair by columns and the second by rows: then nothing has to be
# exchanged between the two, and one sum ends each pair. There are two pairs in a layer: attention,
# and the MLP (the two large matrices with GELU between them).
#
# ### Exercise 4: a tensor-parallel rank's share
#
# How many parameters does a rank hold? With h for the hidden size, V for the vocabulary:
#
# | part | parameters | on each of t ranks |
# |---|---|---|
# | attention's first matrix (query, key, value), with bias | 3 h^2 + 3 h | divided by t |
# | attention's second matrix | h^2 | divided by t |
# | its bias, added behind the sum | h | a whole copy |
# | the MLP's first matrix, with bias | 4 h^2 + 4 h | divided by t |
# | the MLP's second matrix | 4 h^2 | divided by t |
# | its bias, added behind the sum | h | a whole copy |
# | the layer's two norms | 4 h | a whole copy |
#
# That is one layer. Besides, there is once:
#
# | part | parameters | on each of t ranks |
# |---|---|---|
# | word embedding, one row for each entry of the padded vocabulary (it is the output matrix, too) | V h | divided by t |
# | position embedding, one row for each position | positions x h | a whole copy |
# | the last norm | 2 h | a whole copy |
#
# The vocabulary is **padded** first: rows that no text uses are added until there are a multiple of
# 128 t, so that each rank has the same number of them, and a good one.

# %% nbgrader={"grade": false, "grade_id": "tensor-share", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tensor_share(layers, hidden, vocabulary, positions, t):
    """Parameters (an int) that one of t tensor-parallel ranks holds.

    vocabulary: before it is padded.
    """
    ### BEGIN SOLUTION
    padded = -(-vocabulary // (128 * t)) * 128 * t
    divided = layers * (12 * hidden**2 + 7 * hidden) + padded * hidden
    copied = layers * 6 * hidden + positions * hidden + 2 * hidden
    return divided // t + copied
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "tensor-share-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    tensor_share,
    cases=[{"layers": 12, "hidden": 768, "vocabulary": 50257, "positions": 1024, "t": 2},
           {"layers": 4, "hidden": 256, "vocabulary": 4096, "positions": 256, "t": 2},
           {"layers": 24, "hidden": 1024, "vocabulary": 50257, "positions": 1024, "t": 8},
           {"layers": 12, "hidden": 768, "vocabulary": 50257, "positions": 1024, "t": 1}],
    expected=[62_708_736, 2_172_928, 45_521_920, 124_475_904],
    hints={
        "Not all of it is divided: norms, positions and two of the biases are whole on each rank.":
            [62_287_104, 2_136_832, 44_473_600, 124_475_904],
        "The word embedding is divided, too: each rank has some of its rows.":
            [82_074_624, 2_697_216, 91_397_120, 124_475_904],
        "The vocabulary is not padded here, or not after it was seen that it must be.":
            [62_641_920, 2_172_928, 45_402_112, 124_439_808],
        "Each rank's part is to be a multiple of 128, so the whole is one of 128 t.":
            [62_659_584, 2_172_928, 45_407_232, 124_475_904],
        "All biases are divided here. Two of them are added behind the sum, and whole on each rank.":
            [62_699_520, 2_171_904, 45_478_912, 124_475_904],
    })
### BEGIN HIDDEN TESTS
from minimegatron import formulas

check.function(
    tensor_share,
    cases=check.draw(20, layers=range(1, 97), hidden=range(256, 12544, 128), t=[1, 2, 4, 8],
                     vocabulary=[4096, 32000, 50257, 51200, 128256], positions=[256, 1024, 2048]),
    expected=lambda layers, hidden, vocabulary, positions, t: formulas.stage_parameters(
        formulas.Gpt(layers, hidden, 8, positions, -(-vocabulary // (128 * t)) * 128 * t),
        layers, t))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="tensor-share" hint="Not all of it is divided"
# -    return divided // t + copied
# +    return (divided + copied) // t

# %% [raw] tags=["mutant"] answer="tensor-share" hint="some of its rows"
# -    divided = layers * (12 * hidden**2 + 7 * hidden) + padded * hidden
# +    divided = layers * (12 * hidden**2 + 7 * hidden) + padded * hidden * t

# %% [raw] tags=["mutant"] answer="tensor-share" hint="is not padded"
# -    padded = -(-vocabulary // (128 * t)) * 128 * t
# +    padded = -(-vocabulary // t) * t

# %% [raw] tags=["mutant"] answer="tensor-share" hint="one of 128 t"
# -    padded = -(-vocabulary // (128 * t)) * 128 * t
# +    padded = -(-vocabulary // 128) * 128

# %% [raw] tags=["mutant"] answer="tensor-share" hint="added behind the sum"
# -    divided = layers * (12 * hidden**2 + 7 * hidden) + padded * hidden
# -    copied = layers * 6 * hidden + positions * hidden + 2 * hidden
# +    divided = layers * (12 * hidden**2 + 9 * hidden) + padded * hidden
# +    copied = layers * 4 * hidden + positions * hidden + 2 * hidden

# %% [markdown]
# ### Exercise 5: activations on the wire
#
# What ends each pair is a sum over the ranks: an all-reduce, as for the gradients. But what is added
# up are the **activations** that leave the pair: for each token of the micro-batch a vector as long
# as the hidden size. Two pairs make two all-reduces in the forward pass of a layer. In the backward
# pass the gradients of the activations are added up in the same way, two all-reduces again. And all
# that happens for every micro-batch. How many bytes does a rank send in the layers in an iteration?

# %% nbgrader={"grade": false, "grade_id": "layer-bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def layer_bytes(layers, hidden, sequence, micro_batch, micro_batches, t, bytes_each=4):
    """Bytes (a float) that a rank sends in its layers in one iteration under tensor parallelism.

    micro_batches: that each rank works through in an iteration.   t: tensor-parallel ranks.
    """
    ### BEGIN SOLUTION
    activations = sequence * micro_batch * hidden * bytes_each
    all_reduce = 2 * (t - 1) / t * activations
    return 4 * layers * micro_batches * all_reduce
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "layer-bytes-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    layer_bytes,
    cases=[(12, 768, 1024, 2, 8, 2), (4, 256, 256, 2, 2, 4), (24, 1024, 1024, 1, 8, 8, 2)],
    expected=[2_415_919_104.0, 25_165_824.0, 2_818_572_288.0],
    hints={
        "A factor of 2 is missing: is it the backward pass, which has its all-reduces too, or the "
        "ring, which goes round twice?": [1_207_959_552.0, 12_582_912.0, 1_409_286_144.0],
        "Unlike gradients, activations cannot wait: they are sent in every micro-batch.":
            [301_989_888.0, 12_582_912.0, 352_321_536.0],
        "That is the size of what is added up. In a ring each rank sends 2 (t - 1) / t times as "
        "much.": [2_415_919_104.0, 16_777_216.0, 1_610_612_736.0],
        "Those are numbers; each has several bytes.":
            [603_979_776.0, 6_291_456.0, 1_409_286_144.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    layer_bytes,
    cases=check.draw(20, layers=range(1, 97), hidden=[256, 768, 4096], sequence=[256, 1024, 2048],
                     micro_batch=[1, 2, 4, 8], micro_batches=range(1, 33), t=[1, 2, 4, 8],
                     bytes_each=[2, 4]),
    expected=lambda layers, hidden, sequence, micro_batch, micro_batches, t, bytes_each:
        8.0 * layers * micro_batches * (t - 1) * sequence * micro_batch * hidden * bytes_each / t)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="layer-bytes" hint="A factor of 2 is missing"
# -    return 4 * layers * micro_batches * all_reduce
# +    return 2 * layers * micro_batches * all_reduce

# %% [raw] tags=["mutant"] answer="layer-bytes" hint="in every micro-batch"
# -    return 4 * layers * micro_batches * all_reduce
# +    return 4 * layers * all_reduce

# %% [raw] tags=["mutant"] answer="layer-bytes" hint="That is the size of what is added up"
# -    all_reduce = 2 * (t - 1) / t * activations
# +    all_reduce = activations

# %% [raw] tags=["mutant"] answer="layer-bytes" hint="each has several bytes"
# -    activations = sequence * micro_batch * hidden * bytes_each
# +    activations = sequence * micro_batch * hidden

# %% [markdown]
# That is more than the gradients were. And nothing can be computed while a sum is under way, because
# the next matrix needs it. On the other hand the two cards are joined by NVLink. So: how many times
# as fast as one GPU will it be?

# %% nbgrader={"grade": false, "grade_id": "guess-tp", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_tp = 1.5
### END SOLUTION

# %% tags=["explore"]
!sbatch --nodes=1 --gpus-per-node=2 --job-name=gpt2_tp code/virtual_v100.sh {GPT2} \
    --tensor-model-parallel-size 2

# %% tags=["explore"]
tp_job = jobs.wait()

# %% tags=["explore"]
tp = layouts.read("tensor-parallel", tp_job, sequence_length=1024)
check.compare("times as fast (virtual)", guess_tp, one.milliseconds / tp.milliseconds)
layouts.show([one, dp, tp])
print(f"parameters: yours {tensor_share(12, 768, 50257, 1024, 2):,}, "
      f"the log's {tp.parameters[0, 0]:,}")
in_layers = layer_bytes(12, 768, 1024, micro_batch=2, micro_batches=4, t=2)
print(f"sent: in the layers, by your formula {result(f'{in_layers / 1e6:,.0f}')} MB, in all, by the "
      f"record of the run {result(f'{tp.megabytes:,.0f}')} MB")

# %% [markdown]
# That is far more communication than under data parallelism, and it costs time even over NVLink: these two
# GPUs of a DGX-1 share one NVLink of 25 GB/s in each direction, of the six that each GPU has. The
# rest of what was sent are the sums behind the word embedding and before the output matrix, one each
# in a micro-batch. What is new is the **memory**: each GPU holds half of the parameters, of their
# gradients and of the optimizer's numbers, and half of most activations.

# %% [markdown]
# ## Pipeline-parallel
#
# Now each GPU has whole layers, the first half of them or the second: two **stages**. The first one
# works on a micro-batch, hands the activations on, and takes the next micro-batch.
#
# ### Exercise 6: a stage's share
#
# The layers are dealt out evenly; a layer has 12 h^2 + 13 h parameters (add up the first table of
# exercise 4). What stands beside the layers goes to the ends:
#
# - the first stage has the word embedding (V h) and the position embedding;
# - the last stage has the last norm (2 h) and the output matrix. That is the word embedding once
#   more, so it is there a second time, unless the last stage is also the first.

# %% nbgrader={"grade": false, "grade_id": "stage-shares", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stage_shares(layers, hidden, vocabulary, positions, stages):
    """Parameters of each stage, from the first to the last (a list of ints).

    vocabulary: padded already.   layers: a multiple of stages.
    """
    ### BEGIN SOLUTION
    shares = [layers // stages * (12 * hidden**2 + 13 * hidden)] * stages
    shares[0] += vocabulary * hidden + positions * hidden
    shares[-1] += 2 * hidden
    if stages > 1:
        shares[-1] += vocabulary * hidden
    return shares
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "stage-shares-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    stage_shares,
    cases=[{"layers": 12, "hidden": 768, "vocabulary": 50304, "positions": 1024, "stages": 2},
           {"layers": 4, "hidden": 256, "vocabulary": 4096, "positions": 256, "stages": 4},
           {"layers": 4, "hidden": 256, "vocabulary": 4096, "positions": 256, "stages": 1}],
    expected=[[81_947_136, 81_162_240], [1_903_872, 789_760, 789_760, 1_838_848], [4_273_664]],
    hints={
        "The last stage needs the output matrix, which is the word embedding once more.":
            [[81_947_136, 42_528_768], [1_903_872, 789_760, 789_760, 790_272], [4_273_664]],
        "Only the layers are dealt out evenly; embeddings are at the ends.":
            [[62_237_952, 62_237_952], [1_068_416, 1_068_416, 1_068_416, 1_068_416], [4_273_664]],
        "One stage is the first and the last: it needs the word embedding only once.":
            [[81_947_136, 81_162_240], [1_903_872, 789_760, 789_760, 1_838_848], [5_322_240]],
        "Behind the last layer there is a norm.":
            [[81_947_136, 81_160_704], [1_903_872, 789_760, 789_760, 1_838_336], [4_273_152]],
        "Where are the positions?":
            [[81_160_704, 81_162_240], [1_838_336, 789_760, 789_760, 1_838_848], [4_208_128]],
    })
### BEGIN HIDDEN TESTS
from minimegatron import formulas


def right(layers, hidden, vocabulary, positions, stages):
    gpt = formulas.Gpt(layers, hidden, 8, positions, vocabulary)
    return [formulas.stage_parameters(gpt, layers // stages, first=stage == 0,
                                      last=stage == stages - 1) for stage in range(stages)]


drawn = check.draw(20, each=range(1, 25), hidden=range(256, 12544, 128), stages=[1, 2, 3, 4, 8],
                   vocabulary=[4096, 50304, 51200], positions=[256, 1024, 2048])
cases = [(case["each"] * case["stages"], case["hidden"], case["vocabulary"], case["positions"],
          case["stages"]) for case in drawn]
check.function(stage_shares, cases=cases, expected=[right(*case) for case in cases])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="stage-shares" hint="needs the output matrix"
# -    if stages > 1:
# -        shares[-1] += vocabulary * hidden
# +    # the embedding is in the first stage

# %% [raw] tags=["mutant"] answer="stage-shares" hint="embeddings are at the ends"
# def stage_shares(layers, hidden, vocabulary, positions, stages):
#     whole = layers * (12 * hidden**2 + 13 * hidden) + (vocabulary + positions + 2) * hidden
#     return [whole // stages] * stages

# %% [raw] tags=["mutant"] answer="stage-shares" hint="only once"
# -    if stages > 1:
# -        shares[-1] += vocabulary * hidden
# +    shares[-1] += vocabulary * hidden

# %% [raw] tags=["mutant"] answer="stage-shares" hint="there is a norm"
# -    shares[-1] += 2 * hidden
# -    if stages > 1:
# +    if stages > 1:

# %% [raw] tags=["mutant"] answer="stage-shares" hint="Where are the positions"
# -    shares[0] += vocabulary * hidden + positions * hidden
# +    shares[0] += vocabulary * hidden

# %% [markdown]
# ### Exercise 7: what crosses a boundary
#
# For every micro-batch a stage sends its activations to the next stage (sequence x micro-batch x
# hidden numbers), and in the backward pass it sends the gradients of its *input*, which are as many,
# to the stage before. The first stage has none before it, the last none behind it.
#
# And once an iteration: the word embedding is on the first *and* on the last stage. It is one
# parameter, so its gradients have to be added up: an all-reduce between these two ranks. How many
# bytes does the rank of a stage send?

# %% nbgrader={"grade": false, "grade_id": "stage-bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stage_bytes(stage, stages, hidden, sequence, micro_batch, micro_batches, vocabulary,
                bytes_each=4):
    """Bytes (a float) that the rank of a stage (0 is the first) sends in one iteration."""
    ### BEGIN SOLUTION
    activations = sequence * micro_batch * hidden * bytes_each
    first, last = stage == 0, stage == stages - 1
    sent = micro_batches * activations * ((not last) + (not first))
    if stages > 1 and (first or last):
        sent += vocabulary * hidden * bytes_each  # 2 (n - 1) / n is 1 for two ranks
    return float(sent)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "stage-bytes-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    stage_bytes,
    cases=[(0, 2, 768, 1024, 2, 4, 50304), (1, 4, 256, 256, 2, 8, 4096),
           (3, 4, 256, 256, 2, 8, 4096, 2), (0, 1, 768, 1024, 2, 4, 50304)],
    expected=[179_699_712.0, 8_388_608.0, 4_194_304.0, 0.0],
    hints={
        "The boundaries are right; but the gradient of the word embedding has to be added up between "
        "the ends.": [25_165_824.0, 8_388_608.0, 2_097_152.0, 0.0],
        "A stage in the middle sends in both directions: activations on, their gradients back.":
            [179_699_712.0, 4_194_304.0, 4_194_304.0, 0.0],
        "Every boundary is crossed for every micro-batch.":
            [160_825_344.0, 1_048_576.0, 2_359_296.0, 0.0],
        "The stages in the middle have no word embedding.":
            [179_699_712.0, 12_582_912.0, 4_194_304.0, 0.0],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(24, stages=[1, 2, 4, 8], place=range(8), hidden=[256, 768, 4096],
                   sequence=[256, 1024, 2048], micro_batch=[1, 2, 8], micro_batches=range(1, 33),
                   vocabulary=[4096, 50304], bytes_each=[2, 4])


def right(stage, stages, hidden, sequence, micro_batch, micro_batches, vocabulary, bytes_each):
    neighbors = len({stage - 1, stage + 1} & set(range(stages)))
    ends = vocabulary if stages > 1 and stage in (0, stages - 1) else 0
    return float(bytes_each * hidden * (
        neighbors * micro_batches * sequence * micro_batch + ends))


cases = [(case["place"] % case["stages"], case["stages"], case["hidden"], case["sequence"],
          case["micro_batch"], case["micro_batches"], case["vocabulary"], case["bytes_each"])
         for case in drawn]
check.function(stage_bytes, cases=cases, expected=[right(*case) for case in cases])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="stage-bytes" hint="added up between"
# -    if stages > 1 and (first or last):
# -        sent += vocabulary * hidden * bytes_each  # 2 (n - 1) / n is 1 for two ranks
# +    # nothing else

# %% [raw] tags=["mutant"] answer="stage-bytes" hint="in both directions"
# -    sent = micro_batches * activations * ((not last) + (not first))
# +    sent = micro_batches * activations * (stages > 1)

# %% [raw] tags=["mutant"] answer="stage-bytes" hint="crossed for every micro-batch"
# -    sent = micro_batches * activations * ((not last) + (not first))
# +    sent = activations * ((not last) + (not first))

# %% [raw] tags=["mutant"] answer="stage-bytes" hint="have no word embedding"
# -    if stages > 1 and (first or last):
# +    if stages > 1:

# %% [markdown]
# So little crosses, compared with the other two. How many times as fast as one GPU will it be?

# %% nbgrader={"grade": false, "grade_id": "guess-pp", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_pp = 1.9
### END SOLUTION

# %% tags=["explore"]
!sbatch --nodes=1 --gpus-per-node=2 --job-name=gpt2_pp code/virtual_v100.sh {GPT2} \
    --pipeline-model-parallel-size 2

# %% tags=["explore"]
pp_job = jobs.wait()

# %% tags=["explore"]
pp = layouts.read("pipeline-parallel", pp_job, sequence_length=1024)
check.compare("times as fast (virtual)", guess_pp, one.milliseconds / pp.milliseconds)
layouts.show([one, dp, tp, pp])

# %% [markdown]
# And what your functions say, beside the log and the record of the messages:

# %% tags=["explore"]
mine = stage_shares(12, 768, 50304, 1024, stages=2)
print("parameters: yours", mine, "the log's", [pp.parameters[0, 0], pp.parameters[0, 1]])
at_boundary = stage_bytes(0, 2, 768, 1024, micro_batch=2, micro_batches=4, vocabulary=50304)
print(f"sent by stage 0: your formula {result(f'{at_boundary / 1e6:,.2f}')} MB, the record of the run "
      f"{result(f'{pp.sent[0] / 1e6:,.2f}')} MB")
wire.sent(workspace.home() / "megatron/tensorboard/gpt2_pp/run_default")[0]

# %% [markdown]
# The messages did not slow it down. What did? **Waiting.** While the first stage works on the first
# micro-batch, the second has nothing to do, and at the end it is the other way round. This idle time
# is the pipeline's **bubble**. With p stages and m micro-batches it is (p - 1) / (m + p - 1) of the
# time, even if the stages are equally long. Here they are not: the output matrix is a large product,
# and only the last stage has it.

# %% tags=["explore"]
from minimegatron.formulas import bubble_fraction

ideal = one.milliseconds / 2
print(f"no waiting: {ideal:.0f} ms; with the bubble of 2 stages and 4 micro-batches: "
      f"{ideal / (1 - bubble_fraction(2, 4)):.0f} ms; the run: {pp.milliseconds:.0f} ms (virtual)")
for gpu, gib in sorted(pp.memory.items()):
    print(f"stage {gpu}: {pp.parameters[0, gpu]:,} parameters, {gib:.2f} GiB at the peak (virtual)")

# %% [markdown]
# Look at the memory, too. Each stage has half of the layers, so you might expect half of the
# activations. But the first stage begins the second micro-batch before the first one comes back: it
# keeps the activations of half of the layers for *two* micro-batches. A pipeline saves parameters'
# memory, and on its first stage hardly any of the activations'. (And of the parameters' it does not
# save the embedding.)

# %% [markdown]
# ## Side by side

# %% tags=["explore"]
layouts.plot([one, dp, tp, pp])

# %% [markdown]
# Which one is the fastest, and why? Say it in your own words before you read on.
#
# - **Data-parallel** is the fastest as long as the model fits. It sends the gradients once, whatever
#   the number of micro-batches, and nobody waits for anybody else in between. It saves no memory.
# - **Tensor-parallel** sends the most, and waits for every message. Over NVLink inside of a node that
#   is affordable. It saves the most memory, and is why a model fits that did not.
# - **Pipeline-parallel** sends the least between layers, but waits for the other stage, unless there
#   are many micro-batches. Little has to be sent, so it is what crosses from node to node.
#
# TensorBoard's profiler has all of this, too: in *Distributed* the time in which ranks compute and
# communicate, in *Trace* every message. Compare `gpt2_dp` with `gpt2_tp`.

# %% tags=["explore"]
tensorboard.link("profiler")

# %% [markdown]
# ## Do they learn the same?
#
# Four ways to compute, or four different trainings? The virtual cards cannot tell: nothing is learned
# there. So train the small model on the CPU, for real, with the same three layouts. You have the run
# with one rank already. After the last iteration, **how far apart** will the losses be, the largest
# from the smallest?

# %% nbgrader={"grade": false, "grade_id": "guess-apart", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_apart = 0.01
### END SOLUTION

# %% tags=["explore"] short={"dp_small code/single_node.sh --train-iters 10": "dp_small code/single_node.sh --train-iters 2 --num-layers 2 --hidden-size 64 --seq-length 64", "tp_small code/single_node.sh --train-iters 10": "tp_small code/single_node.sh --train-iters 2 --num-layers 2 --hidden-size 64 --seq-length 64", "pp_small code/single_node.sh --train-iters 10": "pp_small code/single_node.sh --train-iters 2 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch --job-name=dp_small code/single_node.sh --train-iters 10 --log-interval 1 --eval-iters 0
!sbatch --job-name=tp_small code/single_node.sh --train-iters 10 --log-interval 1 --eval-iters 0 \
    --tensor-model-parallel-size 2
!sbatch --job-name=pp_small code/single_node.sh --train-iters 10 --log-interval 1 --eval-iters 0 \
    --pipeline-model-parallel-size 2

# %% tags=["explore"]
three = jobs.wait_latest(3)

# %% tags=["explore"]
small = {"one rank": logs.read(job.log), "data-parallel": logs.read(three[0].log),
         "tensor-parallel": logs.read(three[1].log), "pipeline-parallel": logs.read(three[2].log)}
ends = [log.iterations[-1].loss for log in small.values()]
for name, log in small.items():
    print(f"{name:18} loss {log.iterations[-1].loss:.6f}, grad norm {log.iterations[-1].grad_norm:.3f}")
print(f"apart: you said {guess_apart:g}, it is {result(f'{max(ends) - min(ends):.1g}')}")
plots.loss(**small)

# %% [markdown]
# There is only one curve to be seen: they lie on top of each other. Each iteration sees the same
# samples, whoever works on them, and the sums are the same sums: only the order differs in which
# numbers are added, and with it digits behind those that the log shows, or the last of these. (Even
# dropout draws the same masks here. Other trainers draw other ones in other layouts, and then the
# curves differ a little.) **How ranks share the work is no question of what the model learns. It is a
# question of time and memory.** It is also a good test: when a new layout learns something else, it
# has a bug.
#
# Three trainings at once on one machine take cores from each other, so do not compare their times.

# %% [markdown]
# ## A script of your own
#
# ### Exercise 8: the fastest way
#
# A node has two virtual V100s. Write the script that trains GPT-2 small there with a global batch of
# 16, in the least time for an iteration. What to ask of Slurm, the micro-batch, the layout and the
# start of the ranks are yours; the model, the text and `--device virtual:v100` stay as they are, and
# the numbers stay in fp32. The check works out, as the trainer's planner does, what your job would
# cost on such cards.

# %% nbgrader={"grade": false, "grade_id": "fastest", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_fastest.sh
#!/bin/bash
#SBATCH --job-name=my_fastest
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
### BEGIN SOLUTION
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
### END SOLUTION
set -euo pipefail

DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--num-layers 12 --hidden-size 768 --num-attention-heads 32 \
       --seq-length 1024 --max-position-embeddings 1024 --device virtual:v100"
OPTIMIZER="--lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
OUTPUT="--train-iters 4 --log-interval 1 --eval-iters 0"
TRAINER=$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py
### BEGIN SOLUTION
LAYOUT="--micro-batch-size 2 --global-batch-size 16"

srun torchrun --standalone --nproc_per_node 2 \
    "$TRAINER" $MODEL $LAYOUT $OPTIMIZER $TEXT $OUTPUT
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "fastest-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_fastest.sh", only=[
    "--nodes", "--nproc_per_node",
    "--micro-batch-size", "--global-batch-size", "--tensor-model-parallel-size",
    "--sequence-parallel", "--pipeline-model-parallel-size", "--schedule", "--balance",
    "--use-distributed-optimizer", "--overlap-grad-reduce", "--ddp-bucket-size",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers",
    "--distribute-saved-activations"])
flags = script.flags
check.that(flags.global_batch_size == 16,
           "The global batch is not 16: --global-batch-size counts the samples of all ranks.")
check.that(script.nodes == 1 and script.ranks_per_node == 2,
           "There are two cards, both on one node: one rank for each of them.")
cost = check.figures(script, "virtual:v100")
check.that(cost.fits, "This ends in CUDA out of memory: a micro-batch's activations are what you can "
           "make smaller. Or divide them.")
check.that(cost.bubble < 0.02, "It fits. But the stages wait for each other.")
check.that(cost.communication < 0.07,
           "It fits. But the cards wait for messages in every layer: which way sends less often?")
check.that(cost.milliseconds < 980,
           "It fits, and nobody waits long. But there is a faster way: larger micro-batches make larger "
           "products, as long as they fit, and what is computed twice takes time.")

# %% [raw] tags=["mutant"] answer="fastest" hint="ends in CUDA out of memory"
# -LAYOUT="--micro-batch-size 2 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 8 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="fastest" hint="stages wait for each other"
# -LAYOUT="--micro-batch-size 2 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 2 --global-batch-size 16 --pipeline-model-parallel-size 2"

# %% [raw] tags=["mutant"] answer="fastest" hint="sends less often"
# -LAYOUT="--micro-batch-size 2 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 4 --global-batch-size 16 --tensor-model-parallel-size 2"

# %% [raw] tags=["mutant"] answer="fastest" hint="there is a faster way"
# -LAYOUT="--micro-batch-size 2 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 1 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="fastest" hint="one rank for each"
# -srun torchrun --standalone --nproc_per_node 2 \
# +srun torchrun --standalone --nproc_per_node 1 \

# %% [raw] tags=["mutant"] answer="fastest" hint="The global batch is not 16"
# -LAYOUT="--micro-batch-size 2 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 2"

# %% [raw] tags=["mutant"] answer="fastest" hint="This would go wrong"
# -LAYOUT="--micro-batch-size 2 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 3 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="fastest" hint="--num-layers 6; the exercise uses 12"
# -MODEL="--num-layers 12 --hidden-size 768 --num-attention-heads 32 \
# +MODEL="--num-layers 6 --hidden-size 768 --num-attention-heads 32 \

# %% [raw] tags=["mutant"] answer="fastest" hint="--kv-channels 1; the exercise uses 24"
# -LAYOUT="--micro-batch-size 2 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 2 --global-batch-size 16 --kv-channels 1 --ffn-hidden-size 1"

# %% [markdown]
# Run it: does the job take what the planner says?

# %% tags=["explore"] short={"sbatch code/my_fastest.sh": "sed 's/iters 4/iters 1/' code/my_fastest.sh | sbatch"}
!sbatch code/my_fastest.sh

# %% tags=["explore"]
my_job = jobs.wait()

# %% tags=["explore"]
print(mark(logs.lines(my_job.log, "elapsed time per iteration")[-1], "elapsed time[^|]*"))

# %% [markdown]
# ## When the model does not fit
#
# GPT-2 also exists in a larger size, *large*, with three times as many layers. Its parameters alone,
# in fp32 with gradients and optimizer, take 16 bytes each.

# %% tags=["explore"]
LARGE = ("--device virtual:v100 --num-layers 36 --hidden-size 1280 --num-attention-heads 20 "
         "--micro-batch-size 1 --global-batch-size 16 --train-iters 4 --log-interval 1")
held = tensor_share(36, 1280, 50257, 1024, t=1)
print(f"{held:,} parameters, {result(f'{16 * held / 2**30:.1f}')} GiB before the first activation")

# %% [markdown]
# > **Watch out: the next job is meant to fail.** It trains this model data-parallel on two cards. The
# > parameters fit; the activations that come on top of them do not.

# %% tags=["explore"]
!sbatch --nodes=1 --gpus-per-node=2 --job-name=gpt2_large code/virtual_v100.sh {LARGE}

# %% tags=["explore"]
large_job = jobs.wait()

# %% [markdown]
# The end of the log is the launcher's, which only says that its ranks have failed. The cause stands
# further up:

# %% tags=["explore"]
failures = logs.lines(large_job.log, "CUDA out of memory")
print(bad(failures[-1]))

# %% [markdown]
# Read it from left to right: how much was wanted, how much the card has, how much was taken already.
# The piece that was wanted is small: it was only the last one. **A second card with a copy of the
# same model does not help a model that does not fit on the first.**

# %% [markdown]
# ### Exercise 9: make it fit, and fast
#
# Train this model on the same two cards with a global batch of 16. All of the script is there, but
# for the layout and the micro-batch. It has to fit, and to be within ten percent of the fastest
# that we know. Think first: which of the three ways saves parameters, and which activations?
# (`--sequence-parallel` is worth a try with tensor parallelism, and so is `--recompute-activations`
# anywhere: it saves memory and costs time.) Numbers stay in fp32.

# %% nbgrader={"grade": false, "grade_id": "large", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_large.sh
#!/bin/bash
#SBATCH --job-name=my_large
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--num-layers 36 --hidden-size 1280 --num-attention-heads 20 \
       --seq-length 1024 --max-position-embeddings 1024 --device virtual:v100"
OPTIMIZER="--lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
OUTPUT="--train-iters 3 --log-interval 1 --eval-iters 0"
### BEGIN SOLUTION
LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
### END SOLUTION

srun torchrun --standalone --nproc_per_node 2 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" $MODEL $LAYOUT $OPTIMIZER $TEXT $OUTPUT

# %% nbgrader={"grade": true, "grade_id": "large-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_large.sh", only=[
    "--micro-batch-size", "--global-batch-size", "--tensor-model-parallel-size",
    "--sequence-parallel", "--pipeline-model-parallel-size", "--schedule", "--balance",
    "--use-distributed-optimizer", "--overlap-grad-reduce", "--ddp-bucket-size",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers",
    "--distribute-saved-activations"])
flags = script.flags
check.that(flags.global_batch_size == 16,
           "The global batch is not 16: --global-batch-size counts the samples of all ranks.")
cost = check.figures(script, "virtual:v100")
replicated = flags.data_parallel_size == 2
check.that(cost.fits or not replicated, "This ends in CUDA out of memory: each card holds the whole model.")
check.that(cost.fits or flags.pipeline_model_parallel_size == 1,
           "This ends in CUDA out of memory: the first stage keeps the activations of two micro-batches.")
check.that(cost.fits, "This ends in CUDA out of memory: it is divided well; but how large is the "
           "micro-batch, and is everything divided that could be?")
check.that(cost.milliseconds < 4900,
           "It fits. But there is a faster way: do the stages wait, or is something computed twice?")

# %% [raw] tags=["mutant"] answer="large" hint="each card holds the whole model"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 1 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="large" hint="the activations of two micro-batches"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="large" hint="how large is the"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="large" hint="is something computed twice"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--recompute-granularity full --recompute-method uniform --micro-batch-size 1 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="large" hint="The global batch is not 16"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 4"

# %% [raw] tags=["mutant"] answer="large" hint="This would go wrong"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 3 --micro-batch-size 1 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="large" hint="--ffn-hidden-size 2; the exercise uses 5120"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 --ffn-hidden-size 2"

# %% [raw] tags=["mutant"] answer="large" hint="--fp16; the exercise does not use it"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 --fp16"

# %% [markdown]
# And the table of what you chose among, from the planner:

# %% tags=["explore"]
from layout_estimator import costs

costs.show(costs.of({"data-parallel": "", "tensor-parallel": "--tensor-model-parallel-size 2",
                     "pipeline-parallel": "--pipeline-model-parallel-size 2",
                     "data-parallel, recompute": "--recompute-activations",
                     "pipeline, recompute": "--pipeline-model-parallel-size 2 --recompute-activations"},
                    "--device virtual:v100 --world-size 2 --gpus-per-node 2 --num-layers 36 "
                    "--hidden-size 1280 --num-attention-heads 20 --seq-length 1024 "
                    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16"))

# %% [markdown]
# ## Discuss
#
# 1. **A slower wire.** The two cards of another node have no NVLink and talk over PCIe. Which of the
#    three ways suffers most, which least? And over a network?
# 2. **Eight cards.** Your model needs two cards to fit, and the node has eight. How do you share?
# 3. **Half of the parameters, not half of the memory.** Compare the memory of one GPU, of a
#    tensor-parallel rank and of the first stage. What keeps each of the two from exactly half?
# 4. **The open terminal.** Somebody keeps an `salloc` open over night "so that I can go on tomorrow".
#    What would you say to them?

# %% [markdown]
# ## Clean up
#
# Nothing of yours should go on running. The real runs have saved checkpoints, and profiles are large.

# %% tags=["explore"]
!scancel --user=$USER
!du -sh megatron/checkpoints megatron/tensorboard
!rm -rf megatron/checkpoints/by_hand megatron/checkpoints/one_rank megatron/checkpoints/*_small
!rm -rf megatron/tensorboard/gpt2_*/run_default
!squeue

# %% [markdown]
# ## Summary
#
# - `salloc` gives you an allocation and a shell *where you are*; `srun` in it runs on the node. Close
#   it.
# - World size = replicas x tensor-parallel x pipeline-parallel size. The first is what is left over.
# - Data-parallel: everything on each rank; gradients, once an iteration.
# - Tensor-parallel: a part of every layer; activations, two all-reduces per layer and direction, in
#   every micro-batch. Keep it inside of a node.
# - Pipeline-parallel: some layers; activations at the boundary. The price is waiting, less so with
#   many micro-batches.
# - All of them learn the same. Take the simplest that fits: data-parallel, then tensor-parallel
#   inside of a node, then a pipeline.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# scripts are in it.
#
# **The way on:** in [the next lab](03_multi_node.ipynb) one training runs on two nodes, and a network
# lies between its ranks.
