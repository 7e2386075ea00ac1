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
# # Multi-node training: one job, many ranks
#
# A model that is too slow to train on one machine is trained on several. In this lab you start one
# training that runs on two nodes at once, see what it says about itself, and work out what its
# numbers mean.
#
# **You will be able to**
#
# - read a Slurm script line by line, and say which processes it starts and where;
# - work out the global batch, the micro-batches of a step, and the tokens per second of a run;
# - follow a job from `sbatch` to its last line, in the log, in TensorBoard and in the profiler;
# - write a multi-node script of your own, and see what a larger micro-batch changes;
# - tell speed-up from efficiency, and say what the nodes send each other.
#
# **How it works.** Cells run with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where it
# says *Your turn*, you replace a line by your answer; the cell below it checks the answer at once and
# gives a hint when it is wrong. You may check as often as you like. Write what your answer needs,
# such as an `import` or a function that helps, into the same cell: cells that you add are not graded.
# Where you are asked for a guess, guess *before* you run: nobody counts how far off you were, but you
# will remember it.
#
# A `NameError`, or a `{job.log}` that cannot be found, means that a cell further up has not run yet.
# *Run*, *Run All Above Selected Cell* runs everything again that is above (and submits its jobs
# again).

# %% tags=["setup"]
import os

from lab import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace

# %% tags=["check-setup"]
from lab import check

# %% [markdown]
# ## Clear the queue
#
# First connect this notebook to the cluster. `sinfo` lists its nodes; `idle` means that they wait for
# work.

# %% tags=["explore"]
from lab import jobs, logs, plots, tensorboard

jobs.connect()
!sinfo

# %% [markdown]
# `squeue` lists the jobs that wait or run. Yours from earlier would hold up this lab, so cancel
# whatever is left of them. This is a good habit before every experiment: a forgotten job takes cores
# from the one that you measure.

# %% tags=["explore"]
!scancel --user=$USER
!squeue

# %% [markdown]
# ## Read the script
#
# A Slurm script is a shell script with a form to fill in on top.

# %% tags=["explore"]
!cat code/dp_two_nodes.sh

# %% [markdown]
# Four parts, from top to bottom:
#
# | part | what it does |
# |---|---|
# | `#SBATCH --nodes=2` ... | the form: what `sbatch` asks of the cluster. To the shell these are comments |
# | `MODEL`, `BATCH`, ... | the trainer's command line, in pieces that one can read |
# | `MASTER_ADDR`, `MASTER_PORT` | where the ranks meet: on the first node of the job |
# | `srun ... torchrun ...` | `srun` starts one launcher (`torchrun`) per node; each launcher starts its node's ranks |
#
# A **rank** is one process of the training. On a GPU cluster there is one rank per GPU; here a rank
# is a process on a few CPU cores (`--device cpu`), and everything else is the same.
#
# ![Two nodes side by side. On each, one torchrun starts two ranks: ranks 0 and 1 on the first node,
# ranks 2 and 3 on the second, with local ranks 0 and 1 on each. An arrow from every rank leads to
# rank 0's address on the first node, where they meet.](../images/multi_node_ranks.svg)

# %% [markdown]
# ### Exercise 1: who is where
#
# `torchrun` numbers the ranks node by node: the first node has ranks 0, 1, ..., the second goes on
# where the first stopped. Inside its node a rank also has a **local rank**, which begins at 0 again
# and says which GPU is its own. Write the function that gives a rank's node (the first is node 0) and
# its local rank.

# %% nbgrader={"grade": false, "grade_id": "rank-place", "locked": false, "schema_version": 3, "solution": true, "task": false}
def place(rank, ranks_per_node):
    """The node of a rank, and its local rank there: a tuple of two ints."""
    ### BEGIN SOLUTION
    return rank // ranks_per_node, rank % ranks_per_node
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "rank-place-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    place,
    cases=[{"rank": 0, "ranks_per_node": 2}, {"rank": 3, "ranks_per_node": 2},
           {"rank": 13, "ranks_per_node": 8}],
    expected=[(0, 0), (1, 1), (1, 5)],
    hints={
        "Node and local rank have changed places.": [(0, 0), (1, 1), (5, 1)],
        "Nodes and local ranks count from 0, as ranks do.": [(1, 1), (2, 2), (2, 6)],
        "This deals the ranks out in turn, one to every node; torchrun fills a node before the next.":
            [(0, 0), (1, 1), (1, 6)],
    })
### BEGIN HIDDEN TESTS
check.function(
    place, cases=check.draw(20, rank=range(512), ranks_per_node=[1, 2, 4, 8, 16]),
    expected=lambda rank, ranks_per_node: (rank // ranks_per_node, rank % ranks_per_node))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="rank-place" hint="changed places"
# def place(rank, ranks_per_node):
#     return rank % ranks_per_node, rank // ranks_per_node

# %% [raw] tags=["mutant"] answer="rank-place" hint="count from 0"
# def place(rank, ranks_per_node):
#     return rank // ranks_per_node + 1, rank % ranks_per_node + 1

# %% [raw] tags=["mutant"] answer="rank-place" hint="in turn"
# def place(rank, ranks_per_node, nodes=2):
#     return rank % nodes, rank // nodes

# %% [markdown]
# ## What a step works on
#
# Under **data parallelism** every rank holds a copy of the whole model and reads samples of its own.
# All ranks compute gradients, the gradients are averaged, and every rank makes the same step. What one
# rank works on at a time is a **micro-batch** (`--micro-batch-size`); all samples of one step together
# are the **global batch** (`--global-batch-size`).

# %% [markdown]
# ### Exercise 2: the global batch
#
# How large is the global batch when each of the data-parallel ranks works through a number of
# micro-batches, one after the other, before the step is made?

# %% nbgrader={"grade": false, "grade_id": "global-batch", "locked": false, "schema_version": 3, "solution": true, "task": false}
def global_batch(micro_batch, data_parallel, micro_batches=1):
    """Samples in one step of all ranks together (an int).

    micro_batch: samples that a rank works on at a time.
    data_parallel: number of data-parallel ranks.
    micro_batches: micro-batches of one rank in one step.
    """
    ### BEGIN SOLUTION
    return micro_batch * data_parallel * micro_batches
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "global-batch-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    global_batch,
    cases=[{"micro_batch": 4, "data_parallel": 4}, {"micro_batch": 2, "data_parallel": 16},
           {"micro_batch": 2, "data_parallel": 4, "micro_batches": 3}],
    expected=[16, 32, 24],
    hints={
        "That is one rank's share: the other ranks read samples too, and others than this one.":
            [4, 2, 6],
        "Every rank works through several micro-batches before the step is made: all of them count.":
            [16, 32, 8],
        "The batch is not split among the ranks: each has a whole micro-batch of its own.":
            [1, 0, 1],
    })
### BEGIN HIDDEN TESTS
check.function(
    global_batch,
    cases=check.draw(20, micro_batch=range(1, 65), data_parallel=[1, 2, 4, 8, 64, 512],
                     micro_batches=range(1, 33)),
    expected=lambda micro_batch, data_parallel, micro_batches:
        micro_batch * data_parallel * micro_batches)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="global-batch" hint="one rank's share"
# def global_batch(micro_batch, data_parallel, micro_batches=1):
#     return micro_batch * micro_batches

# %% [raw] tags=["mutant"] answer="global-batch" hint="all of them count"
# def global_batch(micro_batch, data_parallel, micro_batches=1):
#     return micro_batch * data_parallel

# %% [raw] tags=["mutant"] answer="global-batch" hint="not split among the ranks"
# def global_batch(micro_batch, data_parallel, micro_batches=1):
#     return micro_batch * micro_batches // data_parallel

# %% [markdown]
# ### Exercise 3: micro-batches in a step
#
# Usually the question comes the other way round: the global batch is chosen, because the learning rate
# depends on it; the micro-batch is what fits into memory. Then the trainer works out how many
# micro-batches each rank has to work through per step. Some combinations do not come out even: refuse
# those with a `ValueError` whose text names the global batch.

# %% nbgrader={"grade": false, "grade_id": "micro-batches", "locked": false, "schema_version": 3, "solution": true, "task": false}
def micro_batches_per_step(global_batch_size, micro_batch, data_parallel):
    """Micro-batches that each rank works through in one step (an int).

    Raises ValueError, which names the global batch, when it does not come out even.
    """
    ### BEGIN SOLUTION
    at_a_time = micro_batch * data_parallel
    if global_batch_size % at_a_time:
        raise ValueError(f"a global batch of {global_batch_size} is no multiple of {at_a_time}, "
                         "which all ranks work on at a time")
    return global_batch_size // at_a_time
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "micro-batches-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    micro_batches_per_step,
    cases=[{"global_batch_size": 8, "micro_batch": 2, "data_parallel": 4},
           {"global_batch_size": 64, "micro_batch": 4, "data_parallel": 2},
           {"global_batch_size": 1536, "micro_batch": 2, "data_parallel": 6}],
    expected=[1, 8, 128],
    hints={
        "These are the micro-batches of all ranks together; the question is how many each rank has.":
            [4, 16, 768],
        "This is the number of samples that each rank reads; how many micro-batches are they?":
            [2, 32, 256],
    })
check.raises(
    micro_batches_per_step, ValueError,
    {"global_batch_size": 10, "micro_batch": 2, "data_parallel": 4}, mentions="10",
    hint="It does not come out even: some ranks would have less to do than others.")
### BEGIN HIDDEN TESTS
drawn = check.draw(20, micro_batch=range(1, 17), data_parallel=[1, 2, 4, 8, 64], steps=range(1, 40))
check.function(
    micro_batches_per_step,
    cases=[{"global_batch_size": case["micro_batch"] * case["data_parallel"] * case["steps"],
            "micro_batch": case["micro_batch"], "data_parallel": case["data_parallel"]}
           for case in drawn],
    expected=lambda global_batch_size, micro_batch, data_parallel:
        global_batch_size // (micro_batch * data_parallel))
check.raises(micro_batches_per_step, ValueError,
             {"global_batch_size": 33, "micro_batch": 4, "data_parallel": 4}, mentions="33")
check.raises(micro_batches_per_step, ValueError,
             {"global_batch_size": 4, "micro_batch": 4, "data_parallel": 2}, mentions="4")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="micro-batches" hint="all ranks together"
# def micro_batches_per_step(global_batch_size, micro_batch, data_parallel):
#     if global_batch_size % micro_batch:
#         raise ValueError(f"{global_batch_size} does not divide")
#     return global_batch_size // micro_batch

# %% [raw] tags=["mutant"] answer="micro-batches" hint="number of samples that each rank reads"
# def micro_batches_per_step(global_batch_size, micro_batch, data_parallel):
#     if global_batch_size % data_parallel:
#         raise ValueError(f"{global_batch_size} does not divide")
#     return global_batch_size // data_parallel

# %% [raw] tags=["mutant"] answer="micro-batches" hint="come out even"
# def micro_batches_per_step(global_batch_size, micro_batch, data_parallel):
#     return global_batch_size // (micro_batch * data_parallel)

# %% [markdown]
# ## Predict, run, compare
#
# The script trains a small GPT on text from this machine: 4 ranks on 2 nodes, each with a micro-batch
# of 2 samples of 256 tokens. How many milliseconds will one iteration take, all four ranks sharing
# this machine? Commit to a number.

# %% nbgrader={"grade": false, "grade_id": "guess-milliseconds", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_milliseconds = 500
### END SOLUTION

# %% [markdown]
# Now submit it. Flags after the script's name go to the trainer, where the last one wins: fewer
# iterations than the script has, more lines in the log, and a profile of two steps for later.

# %% tags=["explore"] short={"iters 30": "iters 6 --eval-iters 0"}
!sbatch code/dp_two_nodes.sh --train-iters 30 --log-interval 2 --profile-execution yes
!squeue

# %% [markdown]
# `squeue` shows the state in the column `ST`: `PD` is pending, `R` is running. The next cell waits for
# your latest job. If it says that the job is not over yet, run it again.

# %% tags=["explore"]
job = jobs.wait()

# %% [markdown]
# ## What the log says
#
# The trainer prints a line for every second iteration now, and before that what it understood of its
# command line. First: how many ranks met?

# %% tags=["explore"]
!grep "world size" {job.log}

# %% [markdown]
# Four ranks, all of them data-parallel, no tensor or pipeline parallelism. A world size of 2 here would
# mean that each node trains for itself, a mistake that costs money on a real cluster, since nothing
# fails. And the iterations:

# %% tags=["explore"]
!grep "elapsed time" {job.log}

# %% [markdown]
# Read one line from left to right: the iteration, the samples that all ranks have read so far, the
# mean time of an iteration since the line before, the learning rate, the global batch, the loss (of
# all ranks together), the loss scale (it matters with fp16 only), and the norm of the gradient.
#
# So how good was your guess? The first line is left out: it holds the start of everything.

# %% tags=["explore"]
log = logs.read(job.log)
times = [line.milliseconds for line in log.iterations[1:]]
check.compare("milliseconds per iteration", guess_milliseconds, sum(times) / len(times))

# %% [markdown]
# ### Exercise 4: tokens per second
#
# Milliseconds per iteration cannot be compared between runs with different batches. Tokens per second
# can: how much text goes through the whole job in a second. Work it out from an iteration line of a
# log and the sequence length. Here is such a line, of another run on another machine.

# %% nbgrader={"grade": false, "grade_id": "tokens-per-second", "locked": false, "schema_version": 3, "solution": true, "task": false}
line = (" iteration      200/     800 | consumed samples:        12800 | elapsed time per iteration "
        "(ms): 512.0 | learning rate: 6.000E-05 | global batch size:    64 | lm loss: 6.114205E+00 | "
        "loss scale: 1.0 | grad norm: 0.873 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |")

def tokens_per_second(line, sequence_length):
    """Tokens that all ranks together work through in one second (a float)."""
    ### BEGIN SOLUTION
    fields = dict(field.rsplit(":", 1) for field in line.split("|") if ":" in field)
    fields = {name.strip(): float(value) for name, value in fields.items()}
    seconds = fields["elapsed time per iteration (ms)"] / 1000
    return fields["global batch size"] * sequence_length / seconds
    ### END SOLUTION

# %% tags=["check-setup"]
def iteration_line(iteration, milliseconds, batch, loss):
    """A log's line, as the trainer prints it."""
    return (f" iteration {iteration:8d}/   10000 | consumed samples: {iteration * batch:12d} | "
            f"elapsed time per iteration (ms): {milliseconds:.1f} | learning rate: 1.500E-04 | "
            f"global batch size: {batch:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | "
            "grad norm: 1.107 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |")

# %% nbgrader={"grade": true, "grade_id": "tokens-per-second-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    tokens_per_second, rel=1e-3,
    cases=[{"line": iteration_line(200, 512.0, 64, 6.1), "sequence_length": 1024},
           {"line": iteration_line(12, 1640.5, 8, 7.2), "sequence_length": 256}],
    expected=[128_000.0, 1_248.4],
    hints={
        "Those are samples per second: a sample has as many tokens as the sequence is long.":
            [125.0, 4.8766],
        "That is the figure of the line above, whichever line it is given.": [128_000.0, 128_000.0],
        "Those are tokens per millisecond.": [128.0, 1.2484],
        "Consumed samples are those of all iterations so far, and the time is that of one.":
            [25_600_000.0, 14_980.8],
        "This grows with the time of an iteration: a slower run must have fewer tokens per second.":
            [33_554.4, 3_359.74],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, iteration=range(2, 10000), batch=[8, 48, 512, 1536],
                   milliseconds=check.between(3.0, 1900.0, digits=1),
                   sequence_length=[256, 1024, 2048])  # at least 1,000 a second: who rounds is right
check.function(
    tokens_per_second, rel=1e-3,
    cases=[{"line": iteration_line(case["iteration"], case["milliseconds"], case["batch"], 5.5),
            "sequence_length": case["sequence_length"]} for case in drawn],
    expected=[case["batch"] * case["sequence_length"] * 1000 / case["milliseconds"]
              for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="tokens-per-second" hint="samples per second"
# def tokens_per_second(line, sequence_length):
#     words = line.split()
#     milliseconds = float(words[words.index("(ms):") + 1])
#     batch = int(words[words.index("batch") + 2])
#     return batch / (milliseconds / 1000)

# %% [raw] tags=["mutant"] answer="tokens-per-second" hint="tokens per millisecond"
# def tokens_per_second(line, sequence_length):
#     words = line.split()
#     milliseconds = float(words[words.index("(ms):") + 1])
#     batch = int(words[words.index("batch") + 2])
#     return batch * sequence_length / milliseconds

# %% [raw] tags=["mutant"] answer="tokens-per-second" hint="of all iterations so far"
# def tokens_per_second(line, sequence_length):
#     words = line.split()
#     milliseconds = float(words[words.index("(ms):") + 1])
#     samples = int(words[words.index("samples:") + 1])
#     return samples * sequence_length / (milliseconds / 1000)

# %% [raw] tags=["mutant"] answer="tokens-per-second" hint="grows with the time"
# def tokens_per_second(line, sequence_length):
#     words = line.split()
#     milliseconds = float(words[words.index("(ms):") + 1])
#     batch = int(words[words.index("batch") + 2])
#     return batch * sequence_length * milliseconds / 1000

# %% [raw] tags=["mutant"] answer="tokens-per-second" hint="whichever line it is given"
# def tokens_per_second(line, sequence_length):
#     return 64 * 1024 / 0.512

# %% [markdown]
# And your own run? The sequence length stands in the script.

# %% tags=["explore"]
!grep "elapsed time" {job.log} | tail -n 1
last = job.log.read_text().splitlines()
last = [line for line in last if "elapsed time" in line][-1]
print(f"{tokens_per_second(last, sequence_length=256):,.0f} tokens per second")

# %% [markdown]
# ## Does it learn?
#
# For every token of the text the model names a probability. The loss is the mean of -log(that
# probability), with the natural logarithm: 0 would be a model that is always sure and always right. A
# model that knows nothing spreads its guess evenly over the whole vocabulary, and its loss is the
# logarithm of the vocabulary's size.

# %% tags=["explore"]
import math

print(f"knowing nothing: {math.log(4096):.2f}")
plots.loss(first=log)

# %% [markdown]
# ### TensorBoard
#
# The same figures, and more, while a job runs: the link opens TensorBoard in another tab. Look for
# `lm loss`, and for `iteration-time`.

# %% tags=["explore"]
tensorboard.link()

# %% [markdown]
# ### The profiler
#
# The job also recorded what every rank did in two steps. Open the profiler and look at
#
# - **Overview**: where the time of a step goes. How much of it is communication?
# - **Distributed**: the same for each of the four ranks beside each other. Do they wait for each other?
# - **Memory**: how the memory of a rank rises during the forward pass and falls during the backward
#   pass, twice, once per step.
# - **Trace**: every operation on a time line. Search for `gloo:all_reduce`: that is the gradients on
#   their way. (On GPUs the same thing is called `nccl:all_reduce`.)

# %% tags=["explore"]
tensorboard.link("profiler")

# %% [markdown]
# ## A script of your own
#
# ### Exercise 5: twice the micro-batch
#
# Write a script which trains the same model on the same two nodes with two ranks each, where every
# rank has a micro-batch of **4** samples, still with **one** micro-batch per step. The head, the model
# and the flags for the text are there; what to ask of Slurm, the batch, and how to start the ranks is
# yours. Look at `code/dp_two_nodes.sh` as often as you like.
#
# The check reads no text. It finds out what your script would start, on which nodes and with which
# flags, and complains about what would hang or fail.

# %% nbgrader={"grade": false, "grade_id": "my-script", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_two_nodes.sh
#!/bin/bash
#SBATCH --job-name=my_two_nodes
#SBATCH --time=00:20:00
#SBATCH --output=megatron/logs/%x_%j.txt
### BEGIN SOLUTION
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
### END SOLUTION
set -euo pipefail

NAME=$SLURM_JOB_NAME
DATA=$LAB_HOME/data/bpe-4096

MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256"
OPTIMIZER="--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--train-iters 15 --log-interval 1 --eval-interval 1000 --eval-iters 1 \
        --save $LAB_HOME/megatron/checkpoints/$NAME --save-interval 1000 \
        --tensorboard-dir $LAB_HOME/megatron/tensorboard/$NAME"
### BEGIN SOLUTION
export OMP_NUM_THREADS=2
BATCH="--micro-batch-size 4 --global-batch-size 16"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes 2 --nproc_per_node 2 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device cpu $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "my-script-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_two_nodes.sh")
check.that(not script.problems, "This would go wrong. " + " ".join(script.problems))
check.that(script.nodes == 2 and script.ranks_per_node == 2,
           "Two nodes with two ranks each are asked for: --nnodes 2 --nproc_per_node 2.")
check.that(script.flags.micro_batch_size == 4,
           "The micro-batch is not 4: --micro-batch-size is what one rank works on at a time.")
check.that(script.flags.global_batch_size == 4 * script.world_size,
           "With this global batch each rank has more than one micro-batch per step, or fewer.")
check.that((script.flags.num_layers, script.flags.hidden_size) == (4, 256)
           and (script.flags.num_attention_heads, script.flags.seq_length) == (8, 256),
           "The model is another one now: leave MODEL as it was and hand it on to the trainer.")
check.that(script.flags.device == "cpu",
           "The device is not named: --device cpu says that this training is real, and on the CPU.")

# %% [raw] tags=["mutant"] answer="my-script" hint="This would go wrong"
# -BATCH="--micro-batch-size 4 --global-batch-size 16"
# +BATCH="--micro-batch-size 4 --global-batch-size 8"

# %% [raw] tags=["mutant"] answer="my-script" hint="This would go wrong"
# -srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
# +srun --kill-on-bad-exit=1 torchrun --node_rank "$SLURM_NODEID" \

# %% [raw] tags=["mutant"] answer="my-script" hint="This would go wrong"
# -srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
# +torchrun --node_rank "$SLURM_NODEID" \

# %% [raw] tags=["mutant"] answer="my-script" hint="This would go wrong"
# -#SBATCH --nodes=2
# +# SBATCH --nodes=2

# %% [raw] tags=["mutant"] answer="my-script" hint="The micro-batch is not 4"
# -BATCH="--micro-batch-size 4 --global-batch-size 16"
# +BATCH="--micro-batch-size 2 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="my-script" hint="more than one micro-batch per step"
# -BATCH="--micro-batch-size 4 --global-batch-size 16"
# +BATCH="--micro-batch-size 4 --global-batch-size 32"

# %% [raw] tags=["mutant"] answer="my-script" hint="Two nodes with two ranks each"
# -BATCH="--micro-batch-size 4 --global-batch-size 16"
# +BATCH="--micro-batch-size 4 --global-batch-size 32"
# -    --nnodes 2 --nproc_per_node 2 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
# +    --nnodes 2 --nproc_per_node 4 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \

# %% [raw] tags=["mutant"] answer="my-script" hint="The model is another one"
# -MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
# +MODEL="--num-layers 2 --hidden-size 256 --num-attention-heads 8 \

# %% [raw] tags=["mutant"] answer="my-script" hint="The device is not named"
# -    --device cpu $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT
# +    $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT

# %% [markdown]
# Does it run? Guess first: an iteration has twice as many samples now. How many times as long will it
# take?

# %% nbgrader={"grade": false, "grade_id": "guess-factor", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_factor = 1.8
### END SOLUTION

# %% tags=["explore"] short={"sbatch code/my_two_nodes.sh": "sed 's/iters 15/iters 3/' code/my_two_nodes.sh | sbatch"}
!sbatch code/my_two_nodes.sh

# %% tags=["explore"]
mine = jobs.wait()

# %% tags=["explore"]
my_log = logs.read(mine.log)
my_times = [line.milliseconds for line in my_log.iterations[1:]]
factor = (sum(my_times) / len(my_times)) / (sum(times) / len(times))
check.compare("times as long per iteration", guess_factor, factor)
print(f"tokens per second: {2 / factor:.2f} times as many")
plots.loss(micro_batch_2=log, micro_batch_4=my_log)

# %% [markdown]
# Whether the larger micro-batch paid off on your machine shows in the tokens per second. On a GPU it
# usually does, up to a point: larger matrices keep it busier, and the gradients are exchanged once for
# more samples. The curves tell the other half: both runs read the same number of samples, but the
# second made half as many steps.

# %% [markdown]
# ## Is it worth the second node?
#
# ### Exercise 6: speed-up and efficiency
#
# **Speed-up** says how many times as fast n ranks do the same work as one rank does. **Efficiency** is
# the speed-up as a share of what n ranks would ideally reach: 1.0 is perfect.

# %% nbgrader={"grade": false, "grade_id": "scaling", "locked": false, "schema_version": 3, "solution": true, "task": false}
def scaling(tokens_per_second_one, tokens_per_second_all, ranks):
    """(speed-up, efficiency) of `ranks` ranks against one, both floats, from their throughputs."""
    ### BEGIN SOLUTION
    speedup = tokens_per_second_all / tokens_per_second_one
    return speedup, speedup / ranks
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "scaling-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    scaling, rel=1e-3,
    cases=[{"tokens_per_second_one": 3_300.0, "tokens_per_second_all": 11_900.0, "ranks": 4},
           {"tokens_per_second_one": 3_300.0, "tokens_per_second_all": 6_420.0, "ranks": 2}],
    expected=[(3.60606, 0.901515), (1.945455, 0.972727)],
    hints={
        "Upside down: these are throughputs, not times, so the faster job has the larger number.":
            [(0.277311, 0.0693277), (0.514019, 0.257009)],
        "The efficiency is in per cent; a share is asked for, where 1.0 is perfect.":
            [(3.60606, 90.1515), (1.945455, 97.2727)],
        "The throughput of all ranks is already that of all together: it is not per rank.":
            [(14.4242, 3.60606), (3.89091, 1.945455)],
        "Efficiency and speed-up have changed places.":
            [(0.901515, 3.60606), (0.972727, 1.945455)],
        "These are rounded: return the numbers as they are, and round where you print them.":
            [(3.61, 0.9), (1.95, 0.97)],
    })
### BEGIN HIDDEN TESTS
check.function(
    scaling, rel=1e-3,
    cases=check.draw(20, tokens_per_second_one=check.between(100.0, 5000.0, digits=1),
                     tokens_per_second_all=check.between(5000.0, 90000.0, digits=1),
                     ranks=[2, 3, 4, 8, 64]),
    expected=lambda tokens_per_second_one, tokens_per_second_all, ranks:
        (tokens_per_second_all / tokens_per_second_one,
         tokens_per_second_all / tokens_per_second_one / ranks))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="scaling" hint="Upside down"
# def scaling(tokens_per_second_one, tokens_per_second_all, ranks):
#     speedup = tokens_per_second_one / tokens_per_second_all
#     return speedup, speedup / ranks

# %% [raw] tags=["mutant"] answer="scaling" hint="in per cent"
# def scaling(tokens_per_second_one, tokens_per_second_all, ranks):
#     speedup = tokens_per_second_all / tokens_per_second_one
#     return speedup, 100 * speedup / ranks

# %% [raw] tags=["mutant"] answer="scaling" hint="not per rank"
# def scaling(tokens_per_second_one, tokens_per_second_all, ranks):
#     return ranks * tokens_per_second_all / tokens_per_second_one, (
#         tokens_per_second_all / tokens_per_second_one)

# %% [raw] tags=["mutant"] answer="scaling" hint="These are rounded"
# def scaling(tokens_per_second_one, tokens_per_second_all, ranks):
#     speedup = tokens_per_second_all / tokens_per_second_one
#     return round(speedup, 2), round(speedup / ranks, 2)

# %% [raw] tags=["mutant"] answer="scaling" hint="changed places"
# def scaling(tokens_per_second_one, tokens_per_second_all, ranks):
#     speedup = tokens_per_second_all / tokens_per_second_one
#     return speedup / ranks, speedup

# %% [markdown]
# ### Exercise 7: what the nodes send each other
#
# After every step's backward pass the gradients of all ranks are added up. The usual way is a **ring
# all-reduce**: the gradients are cut into as many pieces as there are ranks, n. First the pieces go
# round the ring and are added up (n - 1 rounds; each rank sends one piece in each round), then the
# sums go round (n - 1 rounds more), so that all ranks have all sums.
#
# ![A ring of four ranks, 0 to 3, with arrows from each to the next. Each rank's gradient is cut into
# four pieces, and in every round each rank sends one piece to the next.](../images/ring_all_reduce.svg)
#
# How many bytes does **one** rank send in one step?

# %% nbgrader={"grade": false, "grade_id": "ring-bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_bytes(parameters, ranks, bytes_per_gradient=4):
    """Bytes that one rank sends in one ring all-reduce of the gradients of all parameters.

    bytes_per_gradient: 4 with fp32 gradients, 2 with fp16.
    """
    ### BEGIN SOLUTION
    piece = parameters * bytes_per_gradient / ranks
    return 2 * (ranks - 1) * piece
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ring-bytes-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    ring_bytes,
    cases=[{"parameters": 1_000_000, "ranks": 4}, {"parameters": 124_000_000, "ranks": 16},
           {"parameters": 1_000_000, "ranks": 2, "bytes_per_gradient": 2},
           {"parameters": 1_000_000, "ranks": 1}],
    expected=[6_000_000.0, 930_000_000.0, 2_000_000.0, 0.0],
    hints={
        "The pieces go round twice: once to be added up, once to hand the sums to all ranks.":
            [3_000_000.0, 465_000_000.0, 1_000_000.0, 0.0],
        "That is what all ranks send together: in each round a rank sends one piece, not all.":
            [24_000_000.0, 14_880_000_000.0, 4_000_000.0, 0.0],
        "Those are gradients; each has several bytes.":
            [1_500_000.0, 232_500_000.0, 1_000_000.0, 0.0],
        "A round trip has n - 1 rounds, not n: the last rank's piece is where it belongs already.":
            [8_000_000.0, 992_000_000.0, 4_000_000.0, 8_000_000.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    ring_bytes,
    cases=check.draw(20, parameters=range(1024, 10**10, 1024), ranks=[1, 2, 4, 8, 64, 1024],
                     bytes_per_gradient=[2, 4]),
    expected=lambda parameters, ranks, bytes_per_gradient:
        2.0 * (ranks - 1) * parameters * bytes_per_gradient / ranks)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="ring-bytes" hint="go round twice"
# def ring_bytes(parameters, ranks, bytes_per_gradient=4):
#     return (ranks - 1) * parameters * bytes_per_gradient / ranks

# %% [raw] tags=["mutant"] answer="ring-bytes" hint="one piece, not all"
# def ring_bytes(parameters, ranks, bytes_per_gradient=4):
#     return 2 * (ranks - 1) * parameters * bytes_per_gradient

# %% [raw] tags=["mutant"] answer="ring-bytes" hint="each has several bytes"
# def ring_bytes(parameters, ranks, bytes_per_gradient=4):
#     return 2 * (ranks - 1) * parameters / ranks

# %% [raw] tags=["mutant"] answer="ring-bytes" hint="not n"
# def ring_bytes(parameters, ranks, bytes_per_gradient=4):
#     return 2 * parameters * bytes_per_gradient

# %% [markdown]
# Look at what that means: however many ranks there are, one rank sends less than twice the size of the
# gradients. This is why data parallelism scales so far. The slowest link of the ring sets the pace,
# and with two nodes two of the ring's links lead from node to node. For a model of 124 million
# parameters on two nodes with two ranks each:

# %% tags=["explore"]
sent = ring_bytes(parameters=124_000_000, ranks=4)
for name, gigabits in [("1 Gbit/s Ethernet", 1), ("100 Gbit/s InfiniBand", 100)]:
    print(f"{name}: {sent * 8 / (gigabits * 1e9) * 1000:,.0f} ms per step")

# %% [markdown]
# ## Discuss
#
# 1. **Who writes the log?** Four ranks compute, and one line per iteration is printed. Which rank
#    prints it, and why is the loss in it that of all ranks?
# 2. **The second node.** The same four ranks could sit on one node. What becomes faster, what becomes
#    slower, and when would you still take two nodes?
# 3. **The larger batch.** You doubled the micro-batch and with it the global batch. Which other flag
#    would you look at before you compare the two losses after a whole day?
# 4. **A silent mistake.** A colleague forgets `srun` and writes `--nnodes 1`. The job runs, the loss
#    falls. How do you notice?

# %% [markdown]
# ## Clean up
#
# Nothing of yours should go on running. Checkpoints and profiles are large: when you have looked at
# them, delete them. The logs and the curves may stay.

# %% tags=["explore"]
!scancel --user=$USER
!du -sh megatron/checkpoints megatron/tensorboard
!rm -rf megatron/checkpoints/dp_two_nodes megatron/checkpoints/my_two_nodes
!rm -rf megatron/tensorboard/dp_two_nodes/run_default
!squeue

# %% [markdown]
# ## Summary
#
# - `sbatch` takes a form (`#SBATCH`) and a script; `srun` starts one launcher per node; `torchrun`
#   starts one rank per GPU and numbers them node by node.
# - Global batch = micro-batch x data-parallel ranks x micro-batches per step.
# - Compare runs by tokens per second, losses over samples; look at the world size before anything else.
# - In a ring all-reduce each rank sends less than twice the size of the gradients, whatever the number
#   of ranks; the slowest link sets the pace.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# script is in it.
