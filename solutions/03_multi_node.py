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
# A model that is too slow, or too large, for one machine is trained on several. In this lab you start
# trainings that run on two nodes at once, see who sends what to whom, where the time and the memory go,
# and in the end divide one model among all GPUs.
#
# **You will be able to**
#
# - read a Slurm script line by line, and say which processes it starts and where;
# - work out the global batch and the micro-batches of a step;
# - see which GPUs talk to each other, over which links, and how much they send;
# - read the profiler: what a step's time goes to, and what would make it faster;
# - find the largest micro-batch, and read `CUDA out of memory` word by word;
# - write a job that is tensor-parallel inside the nodes and a pipeline between them, and explain its
#   memory curve.
#
# **How it works.** Cells run with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where it
# says *Your turn*, you replace a line by your answer; the cell below it checks the answer at once and
# gives a hint when it is wrong. You may check as often as you like. Write what your answer needs,
# such as an `import` or a function that helps, into the same cell: cells that you add are not graded.
# Where you are asked for a guess, guess *before* you run: nobody counts how far off you were, but you
# will remember it.
#
# **Real and virtual.** The first job trains for real, on CPUs. The later ones use **virtual** GPUs: the
# job, its ranks and its script are real, the times and the memory are modeled from data sheets and
# published measurements. They are the same on every machine.
#
# A `NameError`, or a `{job.log}` that cannot be found, means that a cell further up has not run yet.
# *Run*, *Run All Above Selected Cell* runs everything again that is above (and submits its jobs
# again).

# %% tags=["setup"]
import os

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace

# %% tags=["check-setup"]
from labkit import check

# What answers cannot import: they would hold the solution.
check.mask("job_monitor.channels", "job_monitor.logs", "job_monitor.nvidia_smi",
           "job_monitor.traces", "layout_estimator", "minimegatron", "pipeline_schedules",
           "virtualgpu")

# %% [markdown]
# ## Clear the queue
#
# First connect this notebook to the cluster. `sinfo` lists its nodes; `idle` means that they wait for
# work.

# %% tags=["explore"]
from job_monitor import channels, logs, traces
from lab import tensorboard
from lab.notebook import jobs, plots
from labcore.colors import bad, mark, result
from layout_estimator import costs

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
# iterations than the script has, and more lines in the log.

# %% tags=["explore"] short={"iters 30": "iters 6 --eval-iters 0 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/dp_two_nodes.sh --train-iters 30 --log-interval 2
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
# Milliseconds per iteration cannot be compared between runs with different batches. **Tokens per second**
# can: how much text goes through the whole job. The sequence length stands in the script.

# %% tags=["explore"]
last = log.iterations[-1]
rate = last.global_batch * 256 / (last.milliseconds / 1000)
print(f"{result(f'{rate:,.0f}')} tokens per second")

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
# ## Four GPUs: who talks to whom?
#
# Now a model of real size: GPT-2 small, on two nodes with two V100s each. The ranks are real processes,
# but their GPUs are virtual: nothing is computed, and so nothing is learned. Instead a clock is told how
# long everything would take, and a ledger how much memory.
#
# While the gradients travel, GPUs wait. What share of a step, in per cent, will that be on these four,
# with an Ethernet of 25 Gbit/s between the nodes? Commit to a number.

# %% nbgrader={"grade": false, "grade_id": "guess-waiting", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_waiting = 20
### END SOLUTION

# %% [markdown]
# `--profile-execution yes` records what every rank does in two steps, for the profiler. And
# `NCCL_DEBUG=INFO` makes NCCL talk. **NCCL** is the library that carries messages between GPUs; with this
# setting every rank says which ranks it is connected to, and how.

# %% tags=["explore"]
VIRTUAL = "--device virtual:v100 --virtual-network ethernet:25gbit --log-interval 1"
!sbatch --export=ALL,NCCL_DEBUG=INFO code/virtual_v100.sh {VIRTUAL} --train-iters 5 \
    --profile-execution yes --profile-name four

# %% tags=["explore"]
four = jobs.wait()

# %% tags=["explore"]
print(mark(logs.lines(four.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))
!grep -h "NCCL INFO Channel 00 " {four.log}

# %% [markdown]
# Read one such line from left to right: node, process and thread; the rank's GPU on its node; the number
# of the *channel*; sender `->` receiver, each with its GPU's address on the bus in brackets; and the way,
# after `via`:
#
# | | |
# |---|---|
# | `P2P/IPC` | peer to peer: one GPU writes into the other's memory, over NVLink or PCIe. Only inside a node |
# | `SHM/...` | through the memory of the host, where GPUs of a node cannot reach each other |
# | `NET/Socket/0` | over the network, with TCP sockets: from node to node |
# | `NET/IB/0` | over the network, with InfiniBand |
#
# A connection over the network is printed twice: by the one who sends (`[send]`) and by the one who
# receives (`[receive]`). And every channel is one ring of its own, so each hop stands there once per
# channel.

# %% [markdown]
# ### Exercise 4: who reaches whom, and how
#
# Turn the log's lines into a list that one can read: each connection once, as `(sender, receiver, way)`,
# with ranks as ints and of the way only the first word (`"P2P"`, `"SHM"`, `"NET"`), sorted. Lines that say
# something else are left out.

# %% nbgrader={"grade": false, "grade_id": "talks", "locked": false, "schema_version": 3, "solution": true, "task": false}
def talks(lines):
    """A sorted list of (sender, receiver, way), each connection once.

    lines: a list of str, of a log with NCCL_DEBUG=INFO. For example
    "slurmnode1:126:126 [1] NCCL INFO Channel 00 : 1[1c000] -> 2[1b000] [send] via NET/Socket/0"
    """
    ### BEGIN SOLUTION
    import re

    found = set()
    for line in lines:
        hop = re.search(r"(\d+)\[\w+\] -> (\d+)\[\w+\].* via (\w+)", line)
        if hop:
            found.add((int(hop[1]), int(hop[2]), hop[3]))
    return sorted(found)
    ### END SOLUTION

# %% tags=["check-setup"]
from virtualgpu.core.cards import find
from virtualgpu.net import nccl, network
from virtualgpu.net.topology import Topology


def channel_lines(nodes, card="v100", link="ethernet:25gbit", channels=2):
    """What the ranks print that sit on `nodes`, one letter for each rank's node."""
    topology = Topology(tuple(nodes), (find(card),) * len(nodes), network.parse(link))
    ranks = range(len(nodes))
    return [line for me in ranks for line in nccl.lines(topology, ranks, me, channels)]

# %% nbgrader={"grade": true, "grade_id": "talks-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check.function(
    talks,
    cases=[{"lines": channel_lines("aabb")},
           {"lines": channel_lines("aa", card="rtx3090", channels=1)},
           {"lines": channel_lines("aabb", link="infiniband:8x200gbit", channels=1)},
           {"lines": ["NCCL version 2.10.3+cuda11.3", ""]}],
    expected=[[(0, 1, "P2P"), (1, 2, "NET"), (2, 3, "P2P"), (3, 0, "NET")],
              [(0, 1, "SHM"), (1, 0, "SHM")],
              [(0, 1, "P2P"), (1, 2, "NET"), (2, 3, "P2P"), (3, 0, "NET")],
              []],
    hints={
        "Each connection once: there are several channels, and over the network both sides report.":
            [[(0, 1, "P2P"), (0, 1, "P2P"), (1, 2, "NET"), (1, 2, "NET"), (1, 2, "NET"),
              (1, 2, "NET"), (2, 3, "P2P"), (2, 3, "P2P"), (3, 0, "NET"), (3, 0, "NET"),
              (3, 0, "NET"), (3, 0, "NET")],
             [(0, 1, "SHM"), (1, 0, "SHM")], [], []],
        "The lines with [send] and [receive] are missing: something may stand between rank and via.":
            [[(0, 1, "P2P"), (2, 3, "P2P")], [(0, 1, "SHM"), (1, 0, "SHM")],
             [(0, 1, "P2P"), (2, 3, "P2P")], []],
        "Of the way only the first word is asked for, up to the slash.":
            [[(0, 1, "P2P/IPC"), (1, 2, "NET/Socket/0"), (2, 3, "P2P/IPC"), (3, 0, "NET/Socket/0")],
             [(0, 1, "SHM/direct/direct"), (1, 0, "SHM/direct/direct")], [], []],
        "Sender and receiver have changed places: look at the arrow.":
            [[(0, 3, "NET"), (1, 0, "P2P"), (2, 1, "NET"), (3, 2, "P2P")],
             [(0, 1, "SHM"), (1, 0, "SHM")],
             [(0, 3, "NET"), (1, 0, "P2P"), (2, 1, "NET"), (3, 2, "P2P")], []],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(12, per_node=[1, 2, 4, 8], nodes=[1, 2, 3, 12], card=["v100", "rtx3090", "a100"],
                   link=["ethernet:25gbit", "infiniband:8x200gbit"], channels=[1, 2, 3])
for case in drawn:
    size = case["per_node"] * case["nodes"]
    if size == 1:
        continue
    inside = "SHM" if case["card"] == "rtx3090" else "P2P"
    places = "".join(letter * case["per_node"] for letter in "abcdefghijkl"[:case["nodes"]])
    rings = Topology(tuple(places), (find(case["card"]),) * size,
                     network.parse(case["link"])).rings(range(size))[:case["channels"]]
    right = sorted({(one, other, inside if places[one] == places[other] else "NET")
                    for ring in rings for one, other in zip(ring, [*ring[1:], ring[0]])})
    check.function(talks, cases=[{"lines": channel_lines(
        places, case["card"], case["link"], case["channels"])}], expected=[right])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="talks" hint="Each connection once"
# -    found = set()
# +    found = []
# -            found.add((int(hop[1]), int(hop[2]), hop[3]))
# +            found.append((int(hop[1]), int(hop[2]), hop[3]))

# %% [raw] tags=["mutant"] answer="talks" hint="[send] and [receive] are missing"
# -        hop = re.search(r"(\d+)\[\w+\] -> (\d+)\[\w+\].* via (\w+)", line)
# +        hop = re.search(r"(\d+)\[\w+\] -> (\d+)\[\w+\] via (\w+)", line)

# %% [raw] tags=["mutant"] answer="talks" hint="up to the slash"
# -        hop = re.search(r"(\d+)\[\w+\] -> (\d+)\[\w+\].* via (\w+)", line)
# +        hop = re.search(r"(\d+)\[\w+\] -> (\d+)\[\w+\].* via (\S+)", line)

# %% [raw] tags=["mutant"] answer="talks" hint="look at the arrow"
# -            found.add((int(hop[1]), int(hop[2]), hop[3]))
# +            found.add((int(hop[2]), int(hop[1]), hop[3]))

# %% [markdown]
# And your own job?

# %% tags=["explore"]
talks(four.log.read_text().splitlines())

# %% [markdown]
# It is a ring, and two of its four hops cross the network: peer to peer inside the nodes, sockets between
# them.

# %% [markdown]
# ### Exercise 5: what the nodes send each other
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
for name, gigabits in [("1 Gbit/s Ethernet", 1), ("25 Gbit/s Ethernet", 25),
                       ("100 Gbit/s InfiniBand", 100)]:
    print(f"{name}: {result(f'{sent * 8 / (gigabits * 1e9) * 1000:,.0f} ms')} per step")
print("\nYour job, by its log (ms, virtual):")
print(mark(logs.lines(four.log, "params-all-reduce")[-1], r"backward-params-all-reduce: [\d.]+"))

# %% [markdown]
# Your job's network has 25 Gbit/s, and it needs a little longer than that: no program reaches all of what
# a link promises.


# %% [markdown]
# ## Where does the time go? Ask the profiler
#
# The link opens the **PyTorch profiler** in another tab. (The first time it takes some seconds.) At its
# left, under *Runs*, choose `virtual_v100/run_four`; it has a *worker* for each rank. Begin with the view
# *Overview*:
#
# - **GPU Summary** (scroll down in that box): how busy the card was.
# - **Execution Summary** and **Step Time Breakdown**: what a step's time went to. *Kernel* is computing,
#   *Communication* is sending, and waiting for those who are late.
# - **Performance Recommendation**, at the bottom: what the profiler would try.
#
# Then choose other *Views* at the left:
#
# - **GPU Kernel**: which kernels (functions that run on the GPU) take the time. `sgemm` is a matrix
#   product in fp32.
# - **Distributed**: the four ranks beside each other. Does one wait for another?
# - **Memory**: what is allocated over time. Remember this curve.
# - **Trace**: everything on a time line. <kbd>W</kbd> <kbd>A</kbd> <kbd>S</kbd> <kbd>D</kbd> move.

# %% tags=["explore"]
tensorboard.link("profiler")

# %% [markdown]
# ### Exercise 6: read the overview
#
# Three numbers of the *Overview* of worker `run_four_gpu0`, all in per cent: the share of a step that goes
# to communication, the GPU's utilization, and the kernel time that uses Tensor Cores (the units of a GPU
# that multiply numbers of 16 bits).

# %% nbgrader={"grade": false, "grade_id": "overview", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
overview = {"communication": 52.0, "utilization": 99.9, "tensor cores": 0.0}
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "overview-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.value(
    overview, {"communication": 52.0, "utilization": 99.9, "tensor cores": 0.0}, rel=0.02,
    hints={
        "47.9 is the row Kernel, what the card computes. Communication is a row further down.":
            {"communication": 47.9, "utilization": 99.9, "tensor cores": 0.0},
        "For utilization this is Est. SM Efficiency, how much of the card its kernels filled. "
        "GPU Utilization is the line above: the share of time in which any kernel ran.":
            {"communication": 52.0, "utilization": 48.8, "tensor cores": 0.0},
        "32 is what could run on Tensor Cores, says the recommendation. How much does run on them?":
            {"communication": 52.0, "utilization": 99.9, "tensor cores": 32.0},
        "These are shares of 1; per cent are asked for.":
            {"communication": 0.52, "utilization": 0.999, "tensor cores": 0.0},
    })

# %% [raw] tags=["mutant"] answer="overview" hint="is the row Kernel"
# overview = {"communication": 47.91, "utilization": 99.93, "tensor cores": 0}

# %% [raw] tags=["mutant"] answer="overview" hint="Est. SM Efficiency"
# overview = {"communication": 52.02, "utilization": 48.76, "tensor cores": 0}

# %% [raw] tags=["mutant"] answer="overview" hint="could run on Tensor Cores"
# overview = {"communication": 52, "utilization": 99.93, "tensor cores": 32}

# %% [raw] tags=["mutant"] answer="overview" hint="per cent are asked for"
# overview = {"communication": 0.52, "utilization": 0.999, "tensor cores": 0.0}

# %% tags=["explore"]
check.compare("per cent of a step for communication (virtual)", guess_waiting,
              overview["communication"])

# %% [markdown]
# Look at the first two numbers together. **The GPU is "busy" nearly all the time, and half of that it only
# waits for the network**: to the counter, a message on its way is a kernel that runs. Never take the
# utilization that `nvidia-smi` shows for work done.
#
# And no kernel uses the Tensor Cores, since this training is in fp32; the recommendation says what to do
# (lab 05 does it). Its other advice, fewer messages for the same work, fits what you have found.

# %% [markdown]
# ### Exercise 7: would a faster network help?
#
# You know how long a step takes, and which share of it is communication. How long would it take with a
# network that is `factor` times as fast? What is not communication takes as long as before. (Leave latency
# aside: these messages are large.)

# %% nbgrader={"grade": false, "grade_id": "faster-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def faster_step(milliseconds, communication, factor):
    """Milliseconds of a step (a float) when the network is `factor` times as fast.

    communication: its share of a step now, from 0.0 to 1.0.
    """
    ### BEGIN SOLUTION
    return milliseconds * (1 - communication + communication / factor)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "faster-step-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    faster_step,
    cases=[{"milliseconds": 100.0, "communication": 0.4, "factor": 2},
           {"milliseconds": 800.0, "communication": 0.25, "factor": 10}],
    expected=[80.0, 620.0],
    hints={
        "Only the communication becomes faster, not the whole step.": [50.0, 80.0],
        "The other way round: here the computing became faster, and the communication stayed.":
            [70.0, 260.0],
        "That is the communication alone; the computing is still there.": [20.0, 20.0],
        "It does not vanish: it takes the factor-th part of its time.": [60.0, 600.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    faster_step,
    cases=check.draw(20, milliseconds=check.between(10.0, 2000.0, digits=1), factor=[1, 2, 4, 16],
                     communication=check.between(0.0, 1.0, digits=2)),
    expected=lambda milliseconds, communication, factor:
        milliseconds * (1.0 - communication) + milliseconds * communication / factor)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="faster-step" hint="not the whole step"
# -    return milliseconds * (1 - communication + communication / factor)
# +    return milliseconds / factor

# %% [raw] tags=["mutant"] answer="faster-step" hint="The other way round"
# -    return milliseconds * (1 - communication + communication / factor)
# +    return milliseconds * ((1 - communication) / factor + communication)

# %% [raw] tags=["mutant"] answer="faster-step" hint="communication alone"
# -    return milliseconds * (1 - communication + communication / factor)
# +    return milliseconds * communication / factor

# %% [raw] tags=["mutant"] answer="faster-step" hint="does not vanish"
# -    return milliseconds * (1 - communication + communication / factor)
# +    return milliseconds * (1 - communication)

# %% [markdown]
# Hold your formula against the model of the cards. `costs` shows what settings would cost without running
# a job.

# %% tags=["explore"]
FOUR = ("--device virtual:v100 --world-size 4 --gpus-per-node 2 --num-layers 12 --hidden-size 768 "
        "--num-attention-heads 32 --seq-length 1024 --max-position-embeddings 1024 ")
networks = costs.of({f"{rate} Gbit/s": f"--virtual-network ethernet:{rate}gbit" for rate in (25, 100)},
                    FOUR + "--micro-batch-size 2")
costs.show(networks)
mine = faster_step(networks[0].milliseconds, overview["communication"] / 100, 4)
check.compare("ms with 100 Gbit/s (virtual)", mine, networks[1].milliseconds)

# %% [markdown]
# ## Larger, until it breaks
#
# The other advice was a larger batch. The gradients are sent once per step, however many samples it had,
# so larger micro-batches wait less for each sample. What is the limit? The memory:

# %% tags=["explore"]
print(mark(logs.lines(four.log, "(after 1 iterations)")[0], r"allocated: [\d.]+"))

# %% [markdown]
# `allocated` is what is still there after the step: weights, gradients, the optimizer's moments. `max
# allocated` is the peak in the middle of it, and the difference are the activations of two samples. The
# card has 16 GB. What is the largest micro-batch that fits? Work it out, then write it down.

# %% nbgrader={"grade": false, "grade_id": "guess-largest", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_largest = 3
### END SOLUTION

# %% [markdown]
# > **Watch out: the next job is meant to fail.** It has twice the micro-batch.

# %% tags=["explore"]
!sbatch code/virtual_v100.sh {VIRTUAL} --train-iters 3 --micro-batch-size 4

# %% tags=["explore"]
full = jobs.wait()

# %% [markdown]
# `FAILED`, and a wall of text: every rank complains, then the launchers, then Slurm. Look for the **first**
# cause, not for the last line. It is a single sentence:

# %% tags=["explore"]
print(bad(logs.lines(full.log, "RuntimeError: CUDA out of memory")[0]))

# %% [markdown]
# Each number in it means something:
#
# | | |
# |---|---|
# | `Tried to allocate` | the tensor that did not fit. Often a small one: the last straw, not the culprit |
# | `total capacity` | the memory of the card |
# | `already allocated` | what PyTorch's tensors take now |
# | `free` | what nobody has, after PyTorch gave back what it could |
# | `reserved` | what PyTorch has taken from the card: its tensors, and gaps that it keeps for the next ones |
#
# ### Exercise 8: read the last words
#
# Work out from the five numbers, in MiB: how much was **missing**; how much PyTorch holds that **no tensor
# uses**; and how much somebody **else** holds: neither PyTorch nor free. (That is CUDA's own part,
# NCCL's buffers, and on a shared machine other processes.) Mind the units: 1 GiB is 1024 MiB.

# %% nbgrader={"grade": false, "grade_id": "last-words", "locked": false, "schema_version": 3, "solution": true, "task": false}
def last_words(tried_mib, capacity_gib, allocated_gib, free_mib, reserved_gib):
    """(missing, unused, others), in MiB: three floats. The arguments are in the message's order."""
    ### BEGIN SOLUTION
    missing = tried_mib - free_mib
    unused = 1024 * (reserved_gib - allocated_gib)
    return missing, unused, 1024 * (capacity_gib - reserved_gib) - free_mib
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "last-words-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    last_words, rel=1e-4,
    cases=[(512.0, 16.0, 14.0, 256.0, 15.0), (20.0, 40.0, 30.5, 10.0, 38.5),
           (96.0, 24.0, 22.0, 24.0, 22.0)],
    expected=[(256.0, 1024.0, 768.0), (10.0, 8192.0, 1526.0), (72.0, 0.0, 2024.0)],
    hints={
        "Missing is more than what was tried for less what was free? A part would have fitted.":
            [(512.0, 1024.0, 768.0), (20.0, 8192.0, 1526.0), (96.0, 0.0, 2024.0)],
        "What is free belongs to nobody, so not to others either.":
            [(256.0, 1024.0, 1024.0), (10.0, 8192.0, 1536.0), (72.0, 0.0, 2048.0)],
        "Gaps that PyTorch keeps are counted as others' here: look at reserved, not at allocated.":
            [(256.0, 1024.0, 1792.0), (10.0, 8192.0, 9718.0), (72.0, 0.0, 2024.0)],
        "1 GiB is 1024 MiB, not 1000.":
            [(256.0, 1000.0, 744.0), (10.0, 8000.0, 1490.0), (72.0, 0.0, 1976.0)],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, free=range(2, 400, 2), more=range(2, 900, 2), gaps=range(0, 64),
                   tensors=range(320, 1000), others=range(8, 64))
cases = [(case["free"] + case["more"],
          (case["tensors"] + case["gaps"] + case["others"]) / 32 + case["free"] / 1024,
          case["tensors"] / 32, case["free"], (case["tensors"] + case["gaps"]) / 32)
         for case in drawn]
check.function(
    last_words, cases=cases, rel=1e-4,
    expected=[(float(case["more"]), 32.0 * case["gaps"], 32.0 * case["others"]) for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="last-words" hint="A part would have fitted"
# -    missing = tried_mib - free_mib
# +    missing = tried_mib

# %% [raw] tags=["mutant"] answer="last-words" hint="belongs to nobody"
# -    return missing, unused, 1024 * (capacity_gib - reserved_gib) - free_mib
# +    return missing, unused, 1024 * (capacity_gib - reserved_gib)

# %% [raw] tags=["mutant"] answer="last-words" hint="not at allocated"
# -    return missing, unused, 1024 * (capacity_gib - reserved_gib) - free_mib
# +    return missing, unused, 1024 * (capacity_gib - allocated_gib) - free_mib

# %% [raw] tags=["mutant"] answer="last-words" hint="not 1000"
# -    unused = 1024 * (reserved_gib - allocated_gib)
# -    return missing, unused, 1024 * (capacity_gib - reserved_gib) - free_mib
# +    unused = 1000 * (reserved_gib - allocated_gib)
# +    return missing, unused, 1000 * (capacity_gib - reserved_gib) - free_mib

# %% [markdown]
# Put the numbers of your own job in. What others hold is a few hundred MiB: a 16 GB card never has 16 GB
# for you.

# %% tags=["explore"]
import re

words = re.search(r"CUDA out of memory.*", full.log.read_text())[0]
numbers = [float(number) * (1 if unit == "MiB" else 1024)
           for number, unit in re.findall(r"([\d.]+) (MiB|GiB)", words)]
tried, capacity, allocated, free, reserved = numbers
found = last_words(tried, capacity / 1024, allocated / 1024, free, reserved / 1024)
for name, mib in zip(("missing", "unused", "others"), found, strict=True):
    print(f"{name:8} {result(f'{mib:,.0f} MiB')} (virtual)")

# %% [markdown]
# ### Exercise 9: the largest micro-batch
#
# Fill in `BATCH`: the largest micro-batch that fits on these cards, with one micro-batch per rank and step.
# Everything else stays as it is. The check works out what the job would take.

# %% nbgrader={"grade": false, "grade_id": "my-largest", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_largest.sh
#!/bin/bash
#SBATCH --job-name=my_largest
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--num-layers 12 --hidden-size 768 --num-attention-heads 32 \
       --seq-length 1024 --max-position-embeddings 1024"
### BEGIN SOLUTION
BATCH="--micro-batch-size 3 --global-batch-size 12"
### END SOLUTION
OTHER="--train-iters 3 --lr 1.5e-4 --log-interval 1 --eval-iters 0 \
       --data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
       --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes 2 --nproc_per_node 2 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 --virtual-network ethernet:25gbit $MODEL $BATCH $OTHER

# %% nbgrader={"grade": true, "grade_id": "my-largest-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_largest.sh", only=["--micro-batch-size", "--global-batch-size"])
flags = script.flags
check.that(flags.global_batch_size == 4 * flags.micro_batch_size,
           "With this global batch each rank has more than one micro-batch per step.")
cost = check.figures(script, "virtual:v100", network="ethernet:25gbit")
check.that(cost.fits, "It does not fit: this job would end in CUDA out of memory.")
check.that(cost.capacity - cost.peak_memory < 4,
           "It fits, and there is room left for another sample of every rank.")

# %% [raw] tags=["mutant"] answer="my-largest" hint="It does not fit"
# -BATCH="--micro-batch-size 3 --global-batch-size 12"
# +BATCH="--micro-batch-size 4 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="my-largest" hint="room left for another sample"
# -BATCH="--micro-batch-size 3 --global-batch-size 12"
# +BATCH="--micro-batch-size 2 --global-batch-size 8"

# %% [raw] tags=["mutant"] answer="my-largest" hint="This would go wrong"
# -BATCH="--micro-batch-size 3 --global-batch-size 12"
# +BATCH="--micro-batch-size 3 --global-batch-size 8"

# %% [raw] tags=["mutant"] answer="my-largest" hint="more than one micro-batch per step"
# -BATCH="--micro-batch-size 3 --global-batch-size 12"
# +BATCH="--micro-batch-size 3 --global-batch-size 24"

# %% [raw] tags=["mutant"] answer="my-largest" hint="--fp16; the exercise does not use it"
# -BATCH="--micro-batch-size 3 --global-batch-size 12"
# +BATCH="--micro-batch-size 8 --global-batch-size 32 --fp16 --recompute-activations"

# %% [raw] tags=["mutant"] answer="my-largest" hint="--tensor-model-parallel-size 2; the exercise uses 1"
# -BATCH="--micro-batch-size 3 --global-batch-size 12"
# +BATCH="--micro-batch-size 6 --global-batch-size 24 --tensor-model-parallel-size 2"

# %% [raw] tags=["mutant"] answer="my-largest" hint="--hidden-dropout 0.0; the exercise uses 0.1"
# -BATCH="--micro-batch-size 3 --global-batch-size 12"
# +BATCH="--micro-batch-size 4 --global-batch-size 16 --attention-dropout 0 --hidden-dropout 0"

# %% [markdown]
# Was it worth it? Compare the tokens per second, and the share of the time in which the cards wait.

# %% tags=["explore"]
sizes = costs.of({f"micro-batch {size}": f"--micro-batch-size {size}" for size in (1, 2, 3, 4)},
                 FOUR + "--virtual-network ethernet:25gbit")
costs.show(sizes)
check.compare("the largest that fits (virtual)", guess_largest, sum(one.fits for one in sizes))

# %% [markdown]
# ## Divide the model: a hybrid job
#
# So far every GPU held the whole model. There are two ways to divide it:
#
# - **Tensor parallelism** (TP): every matrix product is divided between ranks, which put the parts together
#   again several times in each layer. That is many messages, so these ranks belong **on one node**, where
#   NVLink is.
# - **Pipeline parallelism** (PP): the first stage has the first layers, the next one the layers after them.
#   Only activations go from stage to stage, and their gradients back: little, so the network will do.
#
# ![Two nodes side by side. Ranks 0 and 1 on the first node are stage 0: the embedding and layers 1 to 6;
# each has a half of every product, and they talk all the time over NVLink. Ranks 2 and 3 on the second node
# are stage 1: layers 7 to 12, the logits and the loss. Between the nodes activations go from 0 to 2 and
# from 1 to 3, and their gradients back.](../images/hybrid_ranks.svg)
#
# A stage has nothing to do until the one before it has sent something. So the batch is cut into
# micro-batches that follow each other through the pipeline, and the more there are, the less it matters
# that the pipeline fills at the beginning and runs empty at the end. With p stages and m micro-batches in a
# step the cards are idle for a share (p - 1) / (m + p - 1) of the time, the **bubble**. (That is for
# stages that take equally long. If they do not, the quicker ones wait some more.)

# %% [markdown]
# ### Exercise 10: a hybrid script
#
# Write the script of such a job: 2 nodes with 2 ranks each, TP 2 inside the nodes, PP 2 between them, and a
# **global batch of 16**. Choose the micro-batch so that the job fits and its cards wait for other stages
# for less than **20 %** of the time.
# The head, the model and the flags for the text are there; what to ask of Slurm, the layout, the batch, and
# how to start the ranks is yours. `code/dp_two_nodes.sh` starts its ranks the same way; look at it as often
# as you like. The trainer's flags are `--tensor-model-parallel-size` and `--pipeline-model-parallel-size`;
# it makes neighbors (0 and 1, 2 and 3) tensor-parallel.
#
# The check reads no text. It finds out what your script would start, where and with which flags, complains
# about what would hang or fail, and works out what the job would take.

# %% nbgrader={"grade": false, "grade_id": "my-script", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_hybrid.sh
#!/bin/bash
#SBATCH --job-name=my_hybrid
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
### BEGIN SOLUTION
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
### END SOLUTION
set -euo pipefail

NAME=$SLURM_JOB_NAME
export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets

DEVICE="--device virtual:v100 --virtual-network ethernet:25gbit"
MODEL="--num-layers 12 --hidden-size 768 --num-attention-heads 32 \
       --seq-length 1024 --max-position-embeddings 1024"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
OUTPUT="--train-iters 5 --lr 1.5e-4 --log-interval 1 --eval-iters 0 \
        --profile-execution yes --profile-name hybrid \
        --tensorboard-dir $LAB_HOME/megatron/tensorboard/$NAME"
### BEGIN SOLUTION
LAYOUT="--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
BATCH="--micro-batch-size 2 --global-batch-size 16"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes 2 --nproc_per_node 2 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    $DEVICE $LAYOUT $MODEL $BATCH $TEXT $OUTPUT
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "my-script-check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_hybrid.sh", only=[
    "--nodes", "--nproc_per_node", "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size", "--micro-batch-size", "--global-batch-size"])
flags = script.flags
check.that(script.nodes == 2 and script.ranks_per_node == 2,
           "Two nodes with two ranks each are asked for: --nnodes 2 --nproc_per_node 2.")
check.that(flags.tensor_model_parallel_size <= 2,
           "So many tensor-parallel ranks sit on both nodes: their many messages cross the network.")
check.that(flags.tensor_model_parallel_size == 2,
           "Nothing is tensor-parallel inside the nodes: LAYOUT says how the model is divided.")
check.that(flags.pipeline_model_parallel_size == 2,
           "The two nodes are two stages of a pipeline: LAYOUT says how the model is divided.")
check.that(flags.global_batch_size == 16,
           "The global batch is not 16. With a larger one it is another training.")
cost = check.figures(script, "virtual:v100", network="ethernet:25gbit")
check.that(cost.fits, "It does not fit: this job would end in CUDA out of memory.")
check.that(cost.bubble < 0.20, "It fits, but the pipeline is empty for too long: with this "
           "micro-batch, how many of them does the global batch have?")

# %% [raw] tags=["mutant"] answer="my-script" hint="This would go wrong"
# -srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
# +srun --kill-on-bad-exit=1 torchrun --node_rank "$SLURM_NODEID" \

# %% [raw] tags=["mutant"] answer="my-script" hint="This would go wrong"
# -srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
# +torchrun --node_rank "$SLURM_NODEID" \

# %% [raw] tags=["mutant"] answer="my-script" hint="This would go wrong"
# -#SBATCH --nodes=2
# +# SBATCH --nodes=2

# %% [raw] tags=["mutant"] answer="my-script" hint="This would go wrong"
# -BATCH="--micro-batch-size 2 --global-batch-size 16"
# +BATCH="--micro-batch-size 3 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="my-script" hint="empty for too long"
# -BATCH="--micro-batch-size 2 --global-batch-size 16"
# +BATCH="--micro-batch-size 4 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="my-script" hint="It does not fit"
# -BATCH="--micro-batch-size 2 --global-batch-size 16"
# +BATCH="--micro-batch-size 8 --global-batch-size 16"

# %% [raw] tags=["mutant"] answer="my-script" hint="global batch is not 16"
# -BATCH="--micro-batch-size 2 --global-batch-size 16"
# +BATCH="--micro-batch-size 4 --global-batch-size 64"

# %% [raw] tags=["mutant"] answer="my-script" hint="cross the network"
# -LAYOUT="--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
# +LAYOUT="--tensor-model-parallel-size 4 --pipeline-model-parallel-size 1"

# %% [raw] tags=["mutant"] answer="my-script" hint="Nothing is tensor-parallel"
# -LAYOUT="--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
# +LAYOUT="--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4"

# %% [raw] tags=["mutant"] answer="my-script" hint="two stages of a pipeline"
# -LAYOUT="--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
# +LAYOUT="--tensor-model-parallel-size 2"

# %% [raw] tags=["mutant"] answer="my-script" hint="Two nodes with two ranks each"
# -LAYOUT="--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
# +LAYOUT="--tensor-model-parallel-size 2"
# -    --nnodes 2 --nproc_per_node 2 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
# +    --nnodes 2 --nproc_per_node 1 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \

# %% [raw] tags=["mutant"] answer="my-script" hint="--num-layers 6; the exercise uses 12"
# -MODEL="--num-layers 12 --hidden-size 768 --num-attention-heads 32 \
# +MODEL="--num-layers 6 --hidden-size 768 --num-attention-heads 32 \

# %% [raw] tags=["mutant"] answer="my-script" hint="--device auto; the exercise uses virtual:v100"
# -    $DEVICE $LAYOUT $MODEL $BATCH $TEXT $OUTPUT
# +    $LAYOUT $MODEL $BATCH $TEXT $OUTPUT

# %% [raw] tags=["mutant"] answer="my-script" hint="--seq-length 128; the exercise uses 1024"
# -BATCH="--micro-batch-size 2 --global-batch-size 16"
# +BATCH="--micro-batch-size 2 --global-batch-size 16 --seq-length 128"

# %% [markdown]
# Does it run? Guess first: how many GiB will a rank of the first stage take at its peak? (With four copies
# of the model and two samples each, every rank took what the table above says.)

# %% nbgrader={"grade": false, "grade_id": "guess-peak", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_peak = 3
### END SOLUTION

# %% tags=["explore"] short={"!sbatch --export=ALL,NCCL_DEBUG=INFO code/my_hybrid.sh": "!sed 's/size 16/size 4/' code/my_hybrid.sh | sbatch --export=ALL,NCCL_DEBUG=INFO"}
!sbatch --export=ALL,NCCL_DEBUG=INFO code/my_hybrid.sh

# %% tags=["explore"]
hybrid = jobs.wait()

# %% tags=["explore"]
print(mark(logs.lines(hybrid.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))
for ranks, lines in channels.of(hybrid.log).items():
    print(f"ranks {ranks} of the job, numbered anew from 0:", talks(lines))

# %% [markdown]
# Each group of ranks that talk to each other is a *communicator* of its own. Find the tensor-parallel pairs
# (only `P2P`), and the pairs that pass activations on from stage to stage (only `NET`). Does it say that TP
# stays inside the nodes? That is how you check a layout on any cluster.
#
# (0, 1, 2, 3 together is used once per step, for the norm of all gradients.)

# %% [markdown]
# ## The memory curve
#
# Here is the memory of one rank of each stage, from your job's profile. (The profiler shows it too: run
# `my_hybrid/run_hybrid`, view *Memory*.) The longest stretch where a curve stays near its peak is shaded.

# %% tags=["explore"]
stages = traces.read("megatron/tensorboard/my_hybrid/run_hybrid", 0, 2)
traces.memory(stages)

# %% tags=["explore"]
check.compare("GiB at the peak of stage 0, without CUDA's own part (virtual)", guess_peak,
              stages[0].peak)

# %% [markdown]
# Every hill is a micro-batch: up in its forward pass, one stair per layer, down in its backward pass. The
# first stage climbs higher, although it has as many layers: the second micro-batch goes into the pipeline
# before the first one's gradients are back, so **stage 0 keeps the activations of two micro-batches**.
#
# ### Exercise 11: why is there a constant step between forward and backward?
#
# All hills are flat on top. On neither stage the forward pass goes directly over into the backward pass.
# What happens there? This is what the two cards did in the shaded stretch:

# %% tags=["explore"]
traces.show(stages)

# %% [markdown]
# The reasons are not the same. One stage *works*: behind its last layer come the **logits** (for each token
# of the micro-batch one number per word of the vocabulary, in fp32, 4 bytes) and the loss. That is a large
# product, and two more in the backward pass; but they allocate nothing except the logits, which the loss and
# its gradient then overwrite in place. So the curve makes one step up, stays, and steps down when the
# logits are freed. The other stage has no logits. Why does its curve stay where it is?
#
# Write down how high the step is: how many GiB of logits a rank holds while its curve is flat. Under tensor
# parallelism the vocabulary is divided as well.

# %% nbgrader={"grade": false, "grade_id": "logits-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def logits_gib(stage, stages, micro_batch, tensor_parallel, sequence=1024, vocabulary=50304):
    """GiB (a float) of logits on a rank between the forward and the backward pass.

    stage: this rank's, counted from 0; stages: of the pipeline.
    """
    ### BEGIN SOLUTION
    if stage < stages - 1:
        return 0.0
    return micro_batch * sequence * vocabulary / tensor_parallel * 4 / 2**30
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "logits-step-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    logits_gib, rel=1e-4,
    cases=[(1, 2, 2, 2), (0, 2, 2, 2), (0, 1, 4, 1), (3, 4, 1, 4, 2048, 131072)],
    expected=[0.1918945, 0.0, 0.7675781, 0.25],
    hints={
        "Which stage computes the logits? The other one only waits for gradients.":
            [0.1918945, 0.1918945, 0.7675781, 0.25],
        "The first stage has the embedding; the logits come after the last layer.":
            [0.0, 0.1918945, 0.7675781, 0.0],
        "Each rank has its part of the vocabulary only.": [0.3837891, 0.0, 0.7675781, 1.0],
        "Those are numbers; each has four bytes.": [0.04797363, 0.0, 0.1918945, 0.0625],
        "Every sample of the micro-batch has logits of its own.":
            [0.09594727, 0.0, 0.1918945, 0.25],
        "Every token has logits, not only the last one of a sample.":
            [0.0001873970, 0.0, 0.0007495880, 0.0001220703],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(24, stages=[1, 2, 4, 8], place=range(8), micro_batch=range(1, 17),
                   tensor_parallel=[1, 2, 4, 8], sequence=[512, 1024, 4096],
                   vocabulary=[32768, 50304, 131072])
check.function(
    logits_gib, rel=1e-4,
    cases=[(case["place"] % case["stages"], case["stages"], case["micro_batch"],
            case["tensor_parallel"], case["sequence"], case["vocabulary"]) for case in drawn],
    expected=lambda stage, stages, micro_batch, tensor_parallel, sequence, vocabulary:
        micro_batch * sequence * vocabulary / tensor_parallel / 2**28
        if stage + 1 == stages else 0.0)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="logits-step" hint="only waits for gradients"
# -    if stage < stages - 1:
# +    if stage >= stages:

# %% [raw] tags=["mutant"] answer="logits-step" hint="after the last layer"
# -    if stage < stages - 1:
# +    if stage > 0:

# %% [raw] tags=["mutant"] answer="logits-step" hint="part of the vocabulary"
# -    return micro_batch * sequence * vocabulary / tensor_parallel * 4 / 2**30
# +    return micro_batch * sequence * vocabulary * 4 / 2**30

# %% [raw] tags=["mutant"] answer="logits-step" hint="four bytes"
# -    return micro_batch * sequence * vocabulary / tensor_parallel * 4 / 2**30
# +    return micro_batch * sequence * vocabulary / tensor_parallel / 2**30

# %% [raw] tags=["mutant"] answer="logits-step" hint="logits of its own"
# -    return micro_batch * sequence * vocabulary / tensor_parallel * 4 / 2**30
# +    return sequence * vocabulary / tensor_parallel * 4 / 2**30

# %% [raw] tags=["mutant"] answer="logits-step" hint="Every token has logits"
# -    return micro_batch * sequence * vocabulary / tensor_parallel * 4 / 2**30
# +    return micro_batch * vocabulary / tensor_parallel * 4 / 2**30

# %% tags=["explore"]
micro_batch = int(re.search(r"micro_batch_size \.+ (\d+)", hybrid.log.read_text())[1])
print(f"your function, last stage: {result(f'{logits_gib(1, 2, micro_batch, 2):.3f} GiB')}")
traces.show(traces.read("megatron/tensorboard/virtual_v100/run_four", 0))

# %% [markdown]
# Compare it with what the last stage freed at once. And look at the job that divided nothing, printed below:
# it has the same flat top, with logits that are not divided.
#
# So a constant step has one of two causes, and the profiler tells them apart. **Kernels run: it is the
# logits and the loss**, much work in little new memory. **Nothing runs: the stage waits** for the gradients
# of the stage after it, and keeps all activations until they come. The first is work that has to be
# done; the second is the bubble, and a better schedule can shrink it.

# %% [markdown]
# ## Discuss
#
# 1. **Who writes the log?** Four ranks compute, and one line per iteration is printed. Which rank
#    prints it, and why is the loss in it that of all ranks?
# 2. **The second node.** The same four ranks could sit on one node. What becomes faster, what becomes
#    slower, and when would you still take two nodes?
# 3. **Divided or copied?** At a global batch of 16, compare the hybrid job with four copies of the model:
#    time, memory, and who has to wait for whom. When would you choose which?
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
!rm -rf megatron/checkpoints/dp_two_nodes
!rm -rf megatron/tensorboard/virtual_v100/run_four megatron/tensorboard/my_hybrid/run_hybrid
!squeue

# %% [markdown]
# ## Summary
#
# - `sbatch` takes a form (`#SBATCH`) and a script; `srun` starts one launcher per node; `torchrun`
#   starts one rank per GPU and numbers them node by node.
# - Global batch = micro-batch x data-parallel ranks x micro-batches per step. Look at the world size in
#   the log before anything else.
# - NCCL's lines say who reaches whom: `P2P` inside a node, `NET` between nodes.
# - In a ring all-reduce each rank sends less than twice the size of the gradients, whatever the number
#   of ranks; the slowest link sets the pace. A GPU that waits for it looks busy.
# - `CUDA out of memory`: the first line counts, and every number in it says something.
# - Tensor parallelism stays inside a node, the pipeline goes between nodes, and enough micro-batches keep
#   it full. A flat top of the memory curve is either the logits at work, or a stage that waits.
#
# **Next:** in [04 data parallelism](04_data_parallelism.ipynb), you build what kept these replicas equal:
# an all-reduce, and a DistributedDataParallel that hides it behind the backward pass.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# scripts are in it.
