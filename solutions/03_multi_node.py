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
# You ask Slurm for two nodes. The job starts, the loss falls, and nobody complains. But the second node does nothing,
# and you pay for it until somebody looks.
#
# Failures that stop a job are easy to see. The failures in this lab raise no error. You start one healthy job on two
# nodes, and then diagnose five broken ones. You repair two of them, and design the experiment that proves why a rank is
# slow. At the end, you run out of memory on purpose, and place a model on any cluster.
#
# Some jobs really train, on CPUs. Others run on **virtual GPUs**, whose time and memory are modeled. Commit to each
# guess *before* you run the next cell. The lab takes one to two hours; a good place to stop is before *Detective 4*.
# (After a restart of the kernel, run the cells above again.)

# %% tags=["setup"]
import itertools
import os

import torch
import torch.distributed as dist

from labcore import workspace
from lablib import placements

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("job_monitor.causes", "job_monitor.channels", "job_monitor.logs", "job_monitor.nvidia_smi",
           "job_monitor.traces", "layout_estimator", "minimegatron", "pipeline_schedules",
           "virtualgpu")

# %% tags=["explore"]
import time

from job_monitor import channels, logs, traces
from lab import tensorboard
from labcore.colors import bad, mark, result
from lablib import jobs, plots, stacks
from layout_estimator import costs

jobs.connect()
!sinfo

# %% [markdown]
# ## One job on two nodes
#
# This script trains a small GPT on two nodes with two ranks each:

# %% tags=["explore"]
!sed -n '/^#SBATCH/p;/^# The ranks/,$p' code/dp_two_nodes.sh

# %% [markdown]
# - `scontrol show hostnames` lists the job's nodes. The batch script itself runs on the first of them.
# - `srun` starts one task per node (`--ntasks-per-node=1`). The task is a `torchrun`, which starts the ranks of its
#   node. The ranks are numbered node by node.
# - `bash -c '...' torchrun ...` runs a shell in each task. Because of the single quotes, the batch script does not
#   expand `$SLURM_NODEID`; each task's shell inserts the number of its own node. The first word after the quotes
#   becomes `$0`, and `"$@"` stands for all further words. `exec` replaces the shell with torchrun, so signals reach
#   torchrun.
#
# ![Two nodes, with two ranks on each: ranks 0 and 1 on the first, ranks 2 and 3 on the second. An arrow from every
# rank leads to rank 0's address, where they rendezvous.](../images/multi_node_ranks.svg)
#
# Training starts with a **rendezvous**. All launchers contact one address, here the first node's. Each rank learns its
# number and how to reach the others. The ranks of one rendezvous form a **world**; the **world size** is their number.
#
# Each rank holds a copy of the model, processes a micro-batch of 2, and averages its gradients with all others. So the
# global batch is 8. How many milliseconds does a step take if all four ranks share this machine's CPUs?

# %% answer="guess-milliseconds"
### BEGIN SOLUTION
guess_milliseconds = 500
### END SOLUTION

# %% tags=["explore"] short={"iters 0": "iters 0 --num-layers 2 --hidden-size 64 --seq-length 64", "iters 30": "iters 6"}
STEPS = "--train-iters 30 --log-interval 2 --eval-iters 0"
!sbatch code/dp_two_nodes.sh {STEPS}
!squeue

# %% tags=["explore"]
job = jobs.wait()

# %% tags=["explore"]
!grep "world size" {job.log}
log = logs.read(job.log)
times = [line.milliseconds for line in log.iterations[1:]]  # the first line contains the start
check.compare("milliseconds per step", guess_milliseconds, sum(times) / len(times))

# %% [markdown]
# Now the same training on one node, where each of two ranks processes two micro-batches per step:

# %% tags=["explore"]
!sbatch code/dp_single_node.sh {STEPS}

# %% tags=["explore"]
single = jobs.wait()

# %% tags=["explore"]
plots.loss(two_nodes=log, one_node=logs.read(single.log))

# %% [markdown]
# The curves coincide, even where the loss jumps (the learning rate is high for so small a batch). TensorBoard shows
# them while a job runs:

# %% tags=["explore"]
tensorboard.link()

# %% [markdown]
# Is the second node worth it? These jobs share the same CPUs and cannot tell. A model of real hardware can: GPT-2
# small in fp32 on V100s, with 25 Gbit/s Ethernet between the nodes:

# %% tags=["explore"]
GPT2 = ("--device virtual:v100 --virtual-network ethernet:25gbit --gpus-per-node 2 --num-layers 12 "
        "--hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 ")
costs.show(costs.of({
    "one node, 2 GPUs": "--world-size 2 --micro-batch-size 2 --global-batch-size 8",
    "two nodes, 4 GPUs": "--world-size 4 --micro-batch-size 2 --global-batch-size 8"}, GPT2))

# %% [markdown]
# Twice the GPUs, and the modeled step is slower: the GPUs wait for the network more than half of the time (`waiting`). A
# second node pays off only if its GPUs have enough computation for
# every byte that they send.

# %% [markdown]
# ## Detective 1: silent mistakes
#
# Two colleagues want the same four ranks. What is wrong in each script?

# %% tags=["explore"]
%%writefile code/case_a.sh
#!/bin/bash
#SBATCH --job-name=case_a
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --output=megatron/logs/%x_%j.txt
export OMP_NUM_THREADS=1
torchrun --nproc_per_node 2 "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" "$@"

# %% tags=["explore"]
%%writefile code/case_b.sh
#!/bin/bash
#SBATCH --job-name=case_b
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --output=megatron/logs/%x_%j.txt
export OMP_NUM_THREADS=1
srun torchrun --nproc_per_node 2 "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" "$@"

# %% tags=["explore"] short={"--train-iters 20": "--train-iters 6"}
SMALL = ("--device cpu --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
         "--max-position-embeddings 64 --micro-batch-size 2 --train-iters 20 --lr 1e-3 --eval-iters 0 "
         "--log-interval 3 --data-path data/bpe-4096/text_document --split 949,50,1 "
         "--vocab-file data/bpe-4096/vocab.json --merge-file data/bpe-4096/merges.txt ")
!sbatch code/case_a.sh {SMALL}
!sbatch code/case_b.sh {SMALL}

# %% tags=["explore"]
case_a, case_b = jobs.wait_latest(2)

# %% tags=["explore"]
for case in (case_a, case_b):
    print(f"\n{case.name}: {case.state}")
    !grep -ohE "using world size.*parallel size: 1, |lm loss: [^|]+" {case.log}

# %% [markdown]
# Both jobs end with `COMPLETED`, and the loss falls. In A, `srun` is missing, so the launcher runs only on the first
# node. In B, every node starts a launcher, but without `--nnodes 2`, each launcher assumes that it is the only one. So
# two separate runs train the same model, and would overwrite each other's checkpoints.
#
# Both mistakes show in the first minute. Rank 0 of every world prints one line with `using world size`. In A, the
# number in this line is too small. In B, the line is there twice. Read it whenever you start a job.

# %% [markdown]
# ## Detective 2: a rendezvous that never completes
#
# A third colleague uses the rendezvous backend `c10d`. With it, the launchers agree on their node ranks themselves,
# so the script needs no `bash -c`:

# %% tags=["explore"]
%%writefile code/case_c.sh
#!/bin/bash
#SBATCH --job-name=case_c
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --output=megatron/logs/%x_%j.txt
export OMP_NUM_THREADS=1
srun torchrun --nnodes 2 --nproc_per_node 2 \
    --rdzv_backend c10d --rdzv_endpoint "localhost:29400" --rdzv_id "$SLURM_JOB_ID" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" "$@"

# %% tags=["explore"]
!sbatch code/case_c.sh {SMALL}
while (case_c := jobs.show()).state == "PENDING":
    time.sleep(0.5)

# %% tags=["explore"]
time.sleep(3)
!lab top --once {case_c.job}
# The address that each of the job's nodes finds for localhost:
!srun --jobid={case_c.job} --overlap --label getent ahostsv4 localhost | grep "STREAM localhost"
!scancel {case_c.job}

# %% [markdown]
# No rank has started, and the log is empty. Both nodes print 127.0.0.1, the loopback address, by which every machine
# reaches itself. So **`localhost` is a different machine on every node**. Each launcher waits for the other one at
# its own address, until the rendezvous times out after 10 minutes. (In loopback mode, all nodes share one network, so
# this job does start.)
#
# The same happens when the ranks pick a network that does not connect the nodes. `NCCL_SOCKET_IFNAME` and
# `GLOO_SOCKET_IFNAME` [name the interface](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html) to
# use.
#
# ### Exercise 1: one world of four
#
# Write the correct script. It trains GPT-2 small on two nodes with two V100s each. Add the missing directives: two
# nodes, and two GPUs on each. Launch `$PROGRAM "$@"` with a c10d rendezvous on the first node, at a port that no
# other job uses. Pass on the CPUs with `srun --cpus-per-task="$SLURM_CPUS_PER_TASK"`. Cases B and C forget this, too, on
# top of the mistakes that you have seen.

# %% answer="my-two-nodes"
%%writefile code/my_two_nodes.sh
#!/bin/bash
# GPT-2 small, data-parallel on two nodes with two virtual V100s each.
# From the workspace:  sbatch code/my_two_nodes.sh [more flags of the trainer]
#SBATCH --job-name=my_two_nodes
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
### BEGIN SOLUTION
#SBATCH --nodes=2
#SBATCH --gpus-per-node=2
### END SOLUTION
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
PROGRAM="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py \
    --device virtual:v100 --virtual-network ethernet:25gbit \
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 2 --train-iters 5 --lr 1.5e-4 --log-interval 1 --eval-iters 0 \
    --data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
    --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
### BEGIN SOLUTION
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
    $PROGRAM "$@"
### END SOLUTION

# %% check="my-two-nodes" points=4
job = check.script("code/my_two_nodes.sh", only=["--nodes", "--nproc_per_node", "--gpus-per-node"])
check.that((job.nodes, job.ranks_per_node) == (2, 2),
           f"It starts {job.nodes} x {job.ranks_per_node} ranks instead of 2 x 2.")
check.that(job.gpus_per_node == 2, f"It requests {job.gpus_per_node} GPUs per node for two ranks: "
           "some would be idle.")
more = check.program("code/my_two_nodes.sh", "pretrain_gpt.py", arguments=["--train-iters", "7"], job_id=2)
check.that(list(more.run.arguments[-2:]) == ["--train-iters", "7"],
           'The arguments of the script do not reach the trainer. What does "$@" stand for?')
check.that(job.run.backend == "c10d", "Use the c10d rendezvous, in which the launchers number the nodes.")
check.that(more.run.port != job.run.port, f"Every job uses port {job.run.port}, so two jobs on the same node "
           "collide. Compute the port from the job ID.")
check.that(job.run.cpus_per_task == "4", "srun gives each task one CPU: pass on the job's --cpus-per-task.")

# %% [raw] mutant="my-two-nodes" hint="Use the c10d rendezvous"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
# -    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
# -    $PROGRAM "$@"
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
# +    --nnodes "$SLURM_NNODES" --nproc_per_node 2 --master_addr "$FIRST_NODE" --master_port "$PORT" \
# +    $PROGRAM "$@"

# %% [raw] mutant="my-two-nodes" hint="Every job uses port"
# -PORT=$((20000 + SLURM_JOB_ID % 10000))
# +PORT=29400

# %% [raw] mutant="my-two-nodes" hint="srun gives each task one CPU"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
# +srun torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \

# %% [raw] mutant="my-two-nodes" hint="do not reach the trainer"
# -    $PROGRAM "$@"
# +    $PROGRAM

# %% [raw] mutant="my-two-nodes" hint="use srun to start it on every node"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
# +torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \

# %% [raw] mutant="my-two-nodes" hint="2 separate training runs"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes 1 --nproc_per_node 2 \

# %% [raw] mutant="my-two-nodes" hint="every node resolves it to itself"
# -FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# +FIRST_NODE=localhost

# %% [raw] mutant="my-two-nodes" hint="instead of 2 x 2"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 1 \

# %% [raw] mutant="my-two-nodes" hint="the job requests none"
# -#SBATCH --gpus-per-node=2

# %% [raw] mutant="my-two-nodes" hint="GPUs per node for two ranks"
# -#SBATCH --gpus-per-node=2
# +#SBATCH --gpus-per-node=4

# %% [markdown]
# ## Which ranks are connected?
#
# Run your script. `--profile-execution yes` records what each rank does in two steps. `NCCL_DEBUG=INFO` makes
# **NCCL**, NVIDIA's library of collectives, print which ranks are connected, and how. While the job runs, the cell
# shows its GPUs with `nvidia-smi`. The four GPUs will form a **ring**: every rank sends to the next one, and the last
# to the first. How many of its four hops cross the network?

# %% answer="guess-hops"
### BEGIN SOLUTION
guess_hops = 1
### END SOLUTION

# %% tags=["explore"] short={"iters 20": "iters 5 --num-layers 2"}
!sbatch --export=ALL,NCCL_DEBUG=INFO code/my_two_nodes.sh --train-iters 20 --profile-execution yes \
    --profile-name four --tensorboard-dir megatron/tensorboard/my_two_nodes
while not jobs.show().is_over:
    screen = !nvidia-smi
    if sum("100%" in line for line in screen) == 4:  # the utilization of all GPUs
        break
    time.sleep(0.5)
print("\n".join(screen))

# %% tags=["explore"]
four = jobs.wait()

# %% tags=["explore"]
print(mark(logs.lines(four.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))
!grep -h "NCCL INFO Channel 00" {four.log}
ring = {line.split(" : ")[1].split(" via ")[0].split(" [")[0]: "via NET" in line
        for line in logs.lines(four.log, "NCCL INFO Channel 00 : ")}  # both ends of a hop over the network print it
check.compare("hops over the network", guess_hops, sum(ring.values()))

# %% [markdown]
# The line with `Channel 00/` lists the ranks of the ring in order. Every other line is a connection: the sender `->`
# the receiver, each with its GPU's bus address in brackets, and after `via`, the transport. `P2P` accesses another
# GPU's memory over NVLink or PCIe. `SHM` goes through the host's memory if that is impossible. `NET` crosses the
# network, over TCP (`Socket`) or InfiniBand (`IB`). A ring leaves every node once and comes back once. ([Newer
# versions](https://github.com/NVIDIA/nccl/issues/1027) write `Channel 00/0 : 0[0] -> 1[1] via`.)
#
# NCCL also builds [trees](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/) (Jeaugey,
# 2019), because a ring's latency grows with the number of ranks. For every all-reduce, it picks the algorithm that it
# expects to be faster. Two nodes are a special case: there, a tree sends each byte over the network only once per
# direction, and NCCL [often prefers it](https://github.com/NVIDIA/nccl/issues/946). Our virtual NCCL does not model
# this exception and uses a ring, as the kernel's name in the next section shows. A ring over four ranks sends $2 \cdot
# 3/4 = 1.5$ bytes per byte of gradients over the network in each direction, and a tree over two nodes sends 1. So a
# real job may spend up to a third less time on this all-reduce.
#
# ## Detective 3: busy, yet waiting
#
# `nvidia-smi` showed your GPUs at nearly 100% utilization. Were they working? The **profiler** records every kernel of
# a step in a **trace**. Two viewers open it:
#
# - **Perfetto** is what [PyTorch recommends
#   today](https://docs.pytorch.org/tutorials/intermediate/tensorboard_profiler_tutorial.html), along with Chrome's
#   built-in trace viewer. The next cell prints the
#   path of rank 0's trace. Right-click the file in JupyterLab's file browser, choose *Download*, open
#   [ui.perfetto.dev](https://ui.perfetto.dev), and drag the file into the page. The viewer runs in your browser, and the file does not leave your machine unless
#   you share a link to it. After the first visit, the page also works offline.
# - **TensorBoard's profiler plugin** [is
#   deprecated](https://docs.pytorch.org/tutorials/intermediate/tensorboard_profiler_tutorial.html), but it summarizes a
#   step, which Perfetto does not. Open it below; under *Runs*, choose `my_two_nodes/run_four`.

# %% tags=["explore"]
!ls -sh megatron/tensorboard/my_two_nodes/run_four/*

# %% tags=["explore"]
tensorboard.link("profiler")

# %% [markdown]
# ![The profiler's overview of rank 0. Arrows lead to GPU utilization, 99.9%, and to communication, 57.5% of the
# step.](../images/profiler_overview.svg)
#
# In *Overview*, **GPU Utilization** is the fraction of time in which any kernel ran. *Trace* shows the timeline, as
# Perfetto does (in both, <kbd>W</kbd> <kbd>A</kbd> <kbd>S</kbd> <kbd>D</kbd> move it). Scroll down to the GPU, and
# click a long NCCL kernel. Its name contains `AllReduce` and `RING`.
#
# ![Two steps in the profiler's timeline. In each, kernels fill the compute stream for less than half of the time,
# then all-reduces fill NCCL's stream. The row of GPU utilization is full throughout.](../images/profiler_trace.svg)
#
# The next cell computes these fractions from the profiles:

# %% tags=["explore"]
def shares(folder):
    """Print what every rank's GPU does in the profiled steps; return {rank: fractions}."""
    found = {}
    for trace in traces.read(f"megatron/tensorboard/{folder}", *range(4)):
        kinds, busy = trace.during(0, trace.memory[-1][0])
        waiting = kinds["communication"]
        found[trace.rank] = {"busy": busy, "communication": waiting, "compute": busy - waiting}
        print(f"rank {trace.rank}: GPU busy {busy:.1%}: computes {result(f'{busy - waiting:.1%}')}, "
              f"communicates {bad(f'{waiting:.1%}')} (virtual)")
    return found


found = shares("my_two_nodes/run_four")

# %% [markdown]
# **The GPUs are busy nearly all the time, and more than half of that time they only wait for the network.** A
# collective is a kernel, too, and counts as utilization while it waits for other ranks. So judge useful work by
# tokens/s or MFU.
#
# This makes a slow rank, a **straggler**, hard to find. All ranks wait for it in the next all-reduce. So all ranks have
# the same step time, and all GPUs look busy. Here is such a job. **Do not read its scripts yet:** `code/case_d.sh`
# starts `code/case_d_node.sh` on each node.

# %% tags=["explore"] short={"+ TEXT": "+ TEXT + ' --num-layers 2'"}
DATA = "data/GPT-2_assets"
TEXT = (f"--data-path {DATA}/my-gpt2_text_document --vocab-file {DATA}/gpt2-vocab.json "
        f"--merge-file {DATA}/gpt2-merges.txt --split 949,50,1 --lr 1.5e-4 --log-interval 1 --eval-iters 0")
FLAGS = GPT2.replace("virtual:v100", "virtual").replace("--gpus-per-node 2", "") + TEXT
!sbatch code/case_d.sh {FLAGS} --micro-batch-size 2 --train-iters 5 --profile-execution yes \
    --profile-name slow --tensorboard-dir megatron/tensorboard/case_d

# %% tags=["explore"]
case_d = jobs.wait()

# %% tags=["explore"]
print(mark(logs.lines(case_d.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))
slow = shares("case_d/run_slow")

# %% [markdown]
# The step takes longer than before, and the GPUs of ranks 0 and 1 communicate *more*. Are they the problem?
#
# ### Exercise 2: find the straggler
#
# You get the times of several steps, an odd number. On each rank, fewer than half of the steps may take much more or
# less time than usual, because of noise. Judge a rank by its median step: a straggler takes more than 10% longer than
# the fastest rank to reach the collectives. Return all stragglers, and the milliseconds that a usual step would save if
# all ranks were as fast as the fastest: 0.0 without stragglers.

# %% answer="stragglers"
def stragglers(compute, communication):
    """Return (ranks, milliseconds): the sorted list of stragglers, and what they cost per step.

    Args:
        compute: milliseconds of computation: for each rank a list with one float per step.
        communication: milliseconds in collectives, in the same form.
    """
    ### BEGIN SOLUTION
    usual = [sorted(steps)[len(steps) // 2] for steps in compute]
    slow = [rank for rank, time in enumerate(usual) if time > 1.1 * min(usual)]
    return slow, max(usual) - min(usual) if slow else 0.0
    ### END SOLUTION

# %% tags=["check-setup"]
def recorded(usual, steps=3):
    """Return the computation and communication of each rank and step.

    A rank's median step takes its time in `usual`. Every second rank also has steps that take three times, and steps that
    take 0.7 times as long.
    """
    compute = []
    for rank, time in enumerate(usual):
        others = [0.7 * time if rank % 2 else time - 1.0, 3.0 * time if rank % 2 else time + 1.0] * (steps // 2)
        turn = rank % steps
        compute.append([*others[turn:], time, *others[:turn]])
    ends = [max(times) + 150.0 for times in zip(*compute, strict=True)]
    return {"compute": compute,
            "communication": [[end - time for end, time in zip(ends, row, strict=True)] for row in compute]}

# %% check="stragglers" points=2
check.function(
    stragglers,
    cases=[recorded([200.0, 200.0, 200.0, 300.0]), recorded([200.0, 202.0, 201.0, 204.0]),
           recorded([400.0, 420.0, 200.0, 200.0]), recorded([230.0, 300.0, 215.0, 200.0])],
    expected=[([3], 100.0), ([], 0.0), ([0, 1], 220.0), ([0, 1], 100.0)],
    hints={
        "A rank that waits long in a collective arrived early: these ranks are the victims.": 
            [([0, 1, 2], 100.0), ([0, 1, 2], 4.0), ([0, 2, 3], 220.0), ([0, 2], 100.0)],
        "Small differences are noise: here the network limits all ranks, and there is no straggler.":
            [([3], 100.0), ([1, 3], 4.0), ([0, 1], 220.0), ([0, 1], 100.0)],
        "A whole node can be slow: list all of its ranks.":
            [([3], 100.0), ([], 0.0), ([1], 220.0), ([0, 1], 100.0)],
        "The ranks are late at the same time, so only the slowest one sets the step time.":
            [([3], 100.0), ([], 0.0), ([0, 1], 420.0), ([0, 1], 130.0)],
        "Compare every rank with the fastest one, not with the median or the mean of all ranks.":
            [([3], 100.0), ([], 0.0), ([0, 1], 220.0), ([1], 100.0)],
        "A slow step is noise: judge each rank by its median step, not by the mean.": 
            [([1, 3], 270.0), ([1, 3], 119.6), ([0, 1, 3], 458.0), ([1, 3], 255.0)],
        "A slow step is noise: judge each rank by its median step, not by the slowest.": 
            [([1, 3], 699.0), ([1, 3], 411.0), ([0, 1, 3], 1059.0), ([1, 3], 684.0)],
        "A fast step is noise, too: judge each rank by its median step, not by the fastest.":
            [([0, 2, 3], 70.0), ([0, 2], 58.6), ([0, 1, 2], 259.0), ([0, 1, 2], 89.0)],
    })
### BEGIN HIDDEN TESTS
for case in check.draw(12, ranks=[4, 8, 16], steps=[3, 5, 7], slow=[0, 1, 2, 3], extra=range(30, 200),
                       base=check.between(100, 500)):
    base, cost = case["base"], case["extra"] * case["base"] / 100
    compute = [base + base * 0.03 * ((7 * rank) % 5) / 5 for rank in range(case["ranks"])]
    chosen = sorted({(3 * number + case["extra"]) % case["ranks"] for number in range(case["slow"])})
    for rank in chosen:
        compute[rank] = base + cost
    right = chosen, max(compute) - min(compute) if chosen else 0.0
    check.function(stragglers, cases=[recorded(compute, case["steps"])], expected=[right])
### END HIDDEN TESTS

# %% [raw] mutant="stragglers" hint="these ranks are the victims"
# -    slow = [rank for rank, time in enumerate(usual) if time > 1.1 * min(usual)]
# +    waits = [sorted(steps)[len(steps) // 2] for steps in communication]
# +    slow = [rank for rank, time in enumerate(waits) if time > 1.1 * min(waits)]

# %% [raw] mutant="stragglers" hint="only the slowest one sets"
# -    return slow, max(usual) - min(usual) if slow else 0.0
# +    return slow, float(sum(usual[rank] - min(usual) for rank in slow))

# %% [raw] mutant="stragglers" hint="Small differences are noise"
# -    slow = [rank for rank, time in enumerate(usual) if time > 1.1 * min(usual)]
# -    return slow, max(usual) - min(usual) if slow else 0.0
# +    middle = sorted(usual)[len(usual) // 2 - 1]
# +    return [rank for rank, time in enumerate(usual) if time > middle], max(usual) - min(usual)

# %% [raw] mutant="stragglers" hint="not with the median or"
# -    slow = [rank for rank, time in enumerate(usual) if time > 1.1 * min(usual)]
# +    slow = [rank for rank, time in enumerate(usual) if time > 1.1 * (sum(sorted(usual)[1:3]) / 2)]

# %% [raw] mutant="stragglers" hint="whole node can be slow"
# -    slow = [rank for rank, time in enumerate(usual) if time > 1.1 * min(usual)]
# +    slow = [usual.index(max(usual))] if max(usual) > 1.1 * min(usual) else []

# %% [raw] mutant="stragglers" hint="not by the mean"
# -    usual = [sorted(steps)[len(steps) // 2] for steps in compute]
# +    usual = [sum(steps) / len(steps) for steps in compute]

# %% [raw] mutant="stragglers" hint="not by the fastest"
# -    usual = [sorted(steps)[len(steps) // 2] for steps in compute]
# +    usual = [min(steps) for steps in compute]

# %% [raw] mutant="stragglers" hint="not by the slowest"
# -    usual = [sorted(steps)[len(steps) // 2] for steps in compute]
# +    usual = [max(steps) for steps in compute]

# %% tags=["explore"]
step = logs.read(case_d.log).iterations[-1].milliseconds
late, cost = stragglers(*([[step * slow[rank][what]] for rank in range(4)] for what in ("compute", "communication")))
print(f"stragglers: {late}; they cost {result(f'{cost:.0f} ms')} per step (virtual)")
!grep -h "^using virtual" {case_d.log}
!sed -n 4,5p code/case_d_node.sh

# %% [markdown]
# The profiler's view *Distributed* of `case_d/run_slow` shows all ranks side by side:
#
# ![Two bar charts with a bar for each rank. Ranks 2 and 3 compute for two thirds of the time, ranks 0 and 1 for a
# fifth. Most of their communication is synchronizing.](../images/profiler_straggler.svg)
#
# In practice, a straggler need not be a slow GPU at all: in five months of training jobs at ByteDance, stragglers had
# many causes, and faulty hardware was only one of them ([Lin et al., 2025](https://arxiv.org/abs/2505.05713)).
# MegaScale ([Jiang et al., 2024](https://arxiv.org/abs/2402.15627)) found slow machines among more than 10,000 GPUs
# just as you did.
#
# ### Exercise 3: one experiment
#
# In case D, the log named the slow GPUs. Usually, nothing does: you know *which* rank is slow, but not *why*. Suppose
# that a single rank $s$ takes longer than all others. There are three suspects:
#
# - `"gpu"`: the GPU that rank $s$ uses is slow, for example because it is hot.
# - `"shard"`: the part of the data that rank $s$ reads has longer samples.
# - `"rank"`: the program does more work on rank $s$, for example because Python's garbage collector runs there more often.
#
# In the run that you have seen, rank $r$ used GPU $r$ and shard $r$, so it cannot tell the suspects apart. You may
# start **one** more run, in which you assign GPUs and shards to ranks as you like. Every rank gets one GPU and one
# shard, and nobody else uses them. Write two functions:
#
# - `assign` designs the run. Whatever the cause, its result must prove it.
# - `cause` reads the result. It returns the culprit with its number, such as `("gpu", 5)` if rank 5 was slow and its GPU
#   is to blame, from the assignment and the computation time of each rank. Everything except the culprit varies by at most 3%; the culprit adds at least 20%.

# %% answer="experiment"
def assign(ranks, suspect):
    """Return (gpus, shards) of the experiment: two lists with the GPU and the shard of each rank.

    Args:
        ranks: the number of ranks, GPUs, and shards, at least 3.
        suspect: the rank that was slow when every rank r used GPU r and shard r.
    """
    ### BEGIN SOLUTION
    return ([(rank + 1) % ranks for rank in range(ranks)], [(rank + 2) % ranks for rank in range(ranks)])
    ### END SOLUTION


def cause(gpus, shards, compute, suspect):
    """Return (kind, number) of the culprit; kind is "gpu", "shard", or "rank".

    Args:
        gpus: the GPU of each rank in the experiment.
        shards: the shard of each rank.
        compute: milliseconds of computation per step, one float per rank.
        suspect: as in assign.
    """
    ### BEGIN SOLUTION
    slow = max(range(len(compute)), key=compute.__getitem__)
    if gpus[slow] == suspect:
        return "gpu", suspect
    return ("shard" if shards[slow] == suspect else "rank"), suspect
    ### END SOLUTION

# %% tags=["check-setup"]
def slow_rank(design, kind, suspect):
    """Return the rank that is slow in an experiment if this is the cause."""
    gpus, shards = design
    return {"gpu": gpus.index(suspect), "shard": shards.index(suspect), "rank": suspect}[kind]


def times_of(ranks, slow, base=200.0, extra=0.5):
    """Return milliseconds of computation per rank; other ranks differ by at most 3%."""
    return [base * (1 + 0.006 * ((7 * rank) % 5)) + (base * extra if rank == slow else 0.0) for rank in range(ranks)]


KINDS = ("gpu", "shard", "rank")

# %% check="experiment" points=4
def require_a_proof(ranks, suspect):
    """Require a possible assignment, in which every cause makes another rank slow."""
    gpus, shards = design = check.call(assign, ranks, suspect)
    for name, given in (("GPU", gpus), ("shard", shards)):
        check.that(sorted(given) == list(range(ranks)),
                   f"With {ranks} ranks, {name} numbers {given}: every rank needs one, and none is used twice.")
    slow = {kind: slow_rank(design, kind, suspect) for kind in KINDS}
    check.that(slow["gpu"] != slow["rank"], "The suspect keeps its GPU, so it is slow whether the GPU or the program "
               "is the cause.")
    check.that(slow["shard"] != slow["rank"], "The suspect keeps its shard, so it is slow whether the data or the "
               "program is the cause.")
    check.that(slow["gpu"] != slow["shard"], "The suspect's GPU and its shard go to the same rank, so this rank is "
               "slow whether the GPU or the data is the cause.")
    return design


for ranks, suspect in ((4, 2), (3, 0)):
    require_a_proof(ranks, suspect)
# In this experiment, rank r has GPU r + 1 and shard r + 3. Rank 2 was slow before; now it is rank 1, 3, or 2.
gpus, shards = [1, 2, 3, 0], [3, 0, 1, 2]
check.function(cause, cases=[(gpus, shards, times_of(4, slow), 2) for slow in (1, 3, 2)],
               expected=[("gpu", 2), ("shard", 2), ("rank", 2)],
               hints={"That is the GPU of the slow rank. Did it belong to the suspect in the first run?":
                          [("gpu", 2), ("gpu", 0), ("gpu", 3)],
                      "Which rank is slow now? Follow the suspect's GPU and shard, not the rank.":
                          [("rank", 1), ("rank", 3), ("rank", 2)],
                      "The slow rank has the suspect's shard here, not its GPU.":
                          [("gpu", 2), ("gpu", 2), ("rank", 2)]})
### BEGIN HIDDEN TESTS
for case in check.draw(12, ranks=range(3, 40), suspect=range(40), kind=KINDS, base=check.between(50, 900),
                       extra=check.between(0.2, 2.0), turn=range(1, 40)):
    ranks, suspect = case["ranks"], case["suspect"] % case["ranks"]
    turn = 1 + case["turn"] % (ranks - 1)  # GPUs and shards move by different amounts
    other = 1 + turn % (ranks - 1)
    design = [(rank + turn) % ranks for rank in range(ranks)], [(rank + other) % ranks for rank in range(ranks)]
    slow = slow_rank(design, case["kind"], suspect)
    check.function(cause, cases=[(*design, times_of(ranks, slow, case["base"], case["extra"]), suspect)],
                   expected=[(case["kind"], suspect)])
for case in check.draw(16, size=range(3, 60), suspect=range(60)):
    require_a_proof(case["size"], case["suspect"] % case["size"])
### END HIDDEN TESTS

# %% [raw] mutant="experiment" hint="The suspect keeps its GPU"
# -    return ([(rank + 1) % ranks for rank in range(ranks)], [(rank + 2) % ranks for rank in range(ranks)])
# +    return list(range(ranks)), [(rank + 1) % ranks for rank in range(ranks)]

# %% [raw] mutant="experiment" hint="go to the same rank"
# -    return ([(rank + 1) % ranks for rank in range(ranks)], [(rank + 2) % ranks for rank in range(ranks)])
# +    return ([(rank + 1) % ranks for rank in range(ranks)],) * 2

# %% [raw] mutant="experiment" hint="The suspect keeps its shard"
# -    return ([(rank + 1) % ranks for rank in range(ranks)], [(rank + 2) % ranks for rank in range(ranks)])
# +    gpus = list(range(ranks))
# +    gpus[suspect], gpus[suspect - 1] = gpus[suspect - 1], gpus[suspect]
# +    return gpus, list(range(ranks))

# %% [raw] mutant="experiment" hint="none is used twice"
# -    return ([(rank + 1) % ranks for rank in range(ranks)], [(rank + 2) % ranks for rank in range(ranks)])
# +    return [(suspect + 1) % ranks] * ranks, [(suspect + 2) % ranks] * ranks

# %% [raw] mutant="experiment" hint="not its GPU"
# -    if gpus[slow] == suspect:
# -        return "gpu", suspect
# -    return ("shard" if shards[slow] == suspect else "rank"), suspect
# +    return ("rank" if slow == suspect else "gpu"), suspect

# %% [raw] mutant="experiment" hint="Follow the suspect's GPU and shard"
# -    if gpus[slow] == suspect:
# -        return "gpu", suspect
# -    return ("shard" if shards[slow] == suspect else "rank"), suspect
# +    return "rank", slow

# %% [raw] mutant="experiment" hint="That is the GPU of the slow rank"
# -    if gpus[slow] == suspect:
# -        return "gpu", suspect
# -    return ("shard" if shards[slow] == suspect else "rank"), suspect
# +    return "gpu", gpus[slow]

# %% [markdown]
# On a real cluster, you permute them like this: within a node, `CUDA_VISIBLE_DEVICES=1,0` exchanges two GPUs; across
# nodes, exchange the node ranks. For that, you need a static rendezvous (`--master_addr` and `--node_rank`), because
# with `c10d`, torchrun assigns the node ranks itself. A data loader that takes its shard number from an argument
# instead of the rank lets you permute shards. If the slowness follows the GPU, ask for its node to be drained. If it
# follows the shard, pack or balance samples by length. `#SBATCH --exclude` and a new `--seed` are no substitute: they
# change every rank at once, so you learn only whether the slowness disappears.

# %% [markdown]
# ## Detective 4: a job that hangs
#
# The next program fits a small model on four ranks. Every 10 steps it evaluates the model, and it stops early when
# the validation loss is low enough. Read it, and run it.

# %% tags=["explore"]
!sed -n '/^def average/,/^if __name__/p' code/evaluate.py

# %% tags=["explore"]
!sbatch code/case_e.sh
while (case_e := jobs.show()).state == "PENDING":
    time.sleep(0.5)

# %% [markdown]
# Each rank prints one line, and then the log stays silent. Ask [py-spy](https://github.com/benfred/py-spy) where
# every rank is, innermost call first:

# %% tags=["explore"]
print(*stacks.dump(case_e.job, case_e.log, 4), sep="\n")
!scancel {case_e.job}

# %% [markdown]
# No rank computes, and none will go on.
#
# ### Exercise 4: repair a program that hangs
#
# Repair `fit`. Copy `average`, `evaluate`, and `fit` from the program above into the cell, and change what is wrong.
# Rank 0 still returns the validation losses up to the step at which training stops, and the others return an empty
# list. The stacks show where the program hangs this time. With other data, your `fit` must not hang anywhere else.

# %% answer="fit"
def fit(training, validation, steps, every, goal):
    """Train until the validation loss reaches `goal`; return the validation losses on rank 0.

    Args:
        training: this rank's inputs [n, f] and targets [n].
        validation: the same, for evaluation.
        steps: the maximum number of steps.
        every: steps between two evaluations.
        goal: the validation loss, averaged over all ranks, at which to stop.
    """
    ### BEGIN SOLUTION
    def average(tensor):
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()

    def evaluate(x, y):
        losses = [torch.zeros((), dtype=weight.dtype) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, ((x @ weight - y) ** 2).mean())
        return torch.stack(losses).mean().item()

    x, y = training
    weight, history = torch.zeros(x.shape[1], dtype=x.dtype), []
    for step in range(1, steps + 1):
        gradient = 2 * x.T @ (x @ weight - y) / len(y)
        average(gradient)
        weight -= 0.1 * gradient
        if step % every == 0:
            history.append(evaluate(*validation))
            if history[-1] <= goal:
                break
    return history if dist.get_rank() == 0 else []
    ### END SOLUTION

# %% tags=["driver"]
def fitted(samples, phase, steps, every, goal):
    """Call fit with shards that differ between ranks, because each rank has a phase of its own."""
    def shard(offset):
        angles = torch.arange(3 * samples, dtype=torch.float64).view(samples, 3)
        x = torch.sin(1.7 * angles + phase + offset)
        return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.1 * torch.cos(
            angles[:, 0] + 0.2 * phase)

    return fit(shard(0.0), shard(2.0), steps, every, goal)

# %% check="fit" points=4
check.ranks(
    fitted, cases=[{"samples": 8, "phase": check.by_rank([0.0, 5.0, 10.0, 15.0]), "steps": steps, "every": every,
                    "goal": goal} for steps, every, goal in ((4, 2, 0.0), (9, 3, 0.7))], ranks=4, rel=1e-6,
    expected=[[[1.631329581, 1.04994497], [], [], []],
              [[1.30763222, 0.679994852], [], [], []]],
    hints={"The ranks wait for each other in different places. After which line do they diverge?":
               "deadlock",
           "This is the loss of rank 0's own validation samples. All ranks have some.":
               [[[1.664284861, 1.075736247], [], [], []],
                [[1.336733623, 0.700458125, 0.373038422], [], [], []]],
           "Only rank 0 returns the losses; the others return [].":
               [[[1.631329581, 1.04994497]] * 4,
                [[1.30763222, 0.679994852]] * 4],
           "Training goes on although the goal is reached.":
               [[[1.631329581, 1.04994497], [], [], []],
                [[1.30763222, 0.679994852, 0.35823849], [], [], []]]})
### BEGIN HIDDEN TESTS
import numpy as np


def losses(ranks, samples, phases, steps, every, goal):
    """Return the validation losses, computed by one process."""
    angles = np.arange(3.0 * samples).reshape(samples, 3)
    weight, found = np.zeros(3), []

    def shard(phase, offset):
        x = np.sin(1.7 * angles + phase + offset)
        return x, x @ np.array([1.0, -2.0, 0.5]) + 0.1 * np.cos(angles[:, 0] + 0.2 * phase)

    for step in range(1, steps + 1):
        pairs = [shard(phase, 0.0) for phase in phases]
        weight = weight - 0.1 * sum(2 * x.T @ (x @ weight - y) / samples for x, y in pairs) / ranks
        if step % every == 0:
            pairs = [shard(phase, 2.0) for phase in phases]
            found.append(float(sum(((x @ weight - y) ** 2).mean() for x, y in pairs) / ranks))
            if found[-1] <= goal:
                break
    return found


check.ranks(fitted, ranks=[2, 3], rel=1e-6, cases=check.draw(
                2, samples=range(5, 20), phase=check.for_each_rank(check.between(0, 100)), steps=range(6, 20),
                every=[2, 3, 5], goal=[0.0, 0.8]),
            expected=lambda ranks, samples, phase, steps, every, goal: [
                losses(ranks, samples, phase, steps, every, goal)] + [[]] * (ranks - 1))
### END HIDDEN TESTS

# %% [raw] mutant="fit" hint="wait for each other in different places"
# -        if step % every == 0:
# +        if step % every == 0 and dist.get_rank() == 0:

# %% [raw] mutant="fit" hint="wait for each other in different places"
# -            if history[-1] <= goal:
# +            if dist.get_rank() == 0 and history[-1] <= goal:

# %% [raw] mutant="fit" hint="rank 0's own validation samples"
# -        return torch.stack(losses).mean().item()
# +        return losses[0].item()

# %% [raw] mutant="fit" hint="the others return []"
# -    return history if dist.get_rank() == 0 else []
# +    return history

# %% [raw] mutant="fit" hint="although the goal is reached"
# -            if history[-1] <= goal:
# -                break

# %% [markdown]
# Real hangs follow the same pattern: a rank skips an empty batch, saves a checkpoint with a barrier inside, or stops
# early on a condition that only it can see. PyTorch's timeout (10 minutes with NCCL) then kills the job, and its
# [flight recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html) can dump the last
# collectives of all ranks.
#
# ## Out of memory
#
# With larger micro-batches, the GPUs wait less per sample, until memory runs out. After its first step, your job
# reported:

# %% tags=["explore"]
print(mark(logs.lines(four.log, "(after 1 iterations)")[0], r"allocated: [\d.]+"))

# %% [markdown]
# After the step, only parameters, gradients, and optimizer state remain `allocated`. During the step, the activations
# of two samples come on top; they are most of the difference to `max allocated`. What is the largest micro-batch that
# fits into 16 GB?

# %% answer="guess-largest"
### BEGIN SOLUTION
guess_largest = 6
### END SOLUTION

# %% [markdown]
# > **The next job is meant to fail.** Its micro-batch of 64 is far too large.

# %% tags=["explore"]
!sbatch code/my_two_nodes.sh --micro-batch-size 64 --train-iters 2

# %% tags=["explore"]
full = jobs.wait()

# %% tags=["explore"]
print(bad(logs.lines(full.log, "CUDA out of memory")[0]))
sizes = costs.of({f"micro-batch {size}": f"--micro-batch-size {size}" for size in range(1, 21)},
                 GPT2 + "--world-size 4")
largest = sum(one.fits for one in sizes)
check.compare("the largest micro-batch that fits (virtual)", guess_largest, largest)
costs.show(sizes[:largest + 2])

# %% [markdown]
# Only the **first** error in the log matters. Our virtual GPUs use PyTorch's wording of 2021, in which `reserved in
# total` includes what is allocated. Today's PyTorch writes:
#
# ```text
# torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of
# 31.47 GiB of which 12.73 GiB is free. Including non-PyTorch memory, this process has 18.73 GiB memory in use.
# Of the allocated memory 9.08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated.
# ```
#
# PyTorch reserves large segments and allocates its tensors in them. Freed tensors leave holes. Here, all holes and
# the free memory together are 0.70 GiB smaller than the new tensor, so the memory is simply too small. If the total
# is enough but no single hole is, that is **fragmentation**. Then `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`
# (`PYTORCH_ALLOC_CONF` since PyTorch 2.9) often helps. Which was it in your job?
#
# ## Split the model
#
# Tensor parallelism (TP, lab 02) all-reduces activations or their gradients four times per layer and micro-batch, so
# its ranks belong **on one node**, where NVLink connects them. Pipeline parallelism (PP) communicates only between
# **stages**, so it may cross the network:
#
# ![Ranks 0 and 1 on the first node are stage 0, layers 0 to 5, and share every matmul. Ranks 2 and 3 on the second
# node are stage 1, layers 6 to 11. Activations go from rank 0 to 2 and from 1 to 3, and their gradients
# back.](../images/hybrid_ranks.svg)
#
# ### Exercise 5: place a model on any cluster
#
# A job of $d \cdot p \cdot t$ ranks holds $d$ **replicas** of a model, for data parallelism. Each has $p$ stages, and
# each stage has $t$ tensor-parallel **shards**. Rank $r$ runs on node `r // gpus_per_node`, and you decide what it
# holds. Write `arrange`, so that
#
# - every combination of replica, stage, and shard is on exactly one rank;
# - no tensor-parallel group (the shards of one stage of one replica) is on two nodes;
# - the busiest node sends as little as possible over the network. To pass, it must send no more than with the best
#   placement that we know. No single rule is best for every cluster.
#
# In each step, a rank sends `activation` bytes to the rank with the same shard of the next stage, and receives
# gradients of the same size from it. The $d$ ranks with the same stage and shard all-reduce `gradient` bytes of
# gradients in a ring, ordered by rank. `placements.busiest_node(placement, gpus_per_node, activation, gradient)` adds
# up what every node sends to others, and returns the largest sum.

# %% answer="arrange"
def arrange(nodes, gpus_per_node, t, p, activation, gradient):
    """Return the part that each rank holds: a list of tuples (replica, stage, shard), by rank.

    Args:
        nodes: the number of nodes.
        gpus_per_node: the number of ranks on each; divisible by t.
        t: the tensor-parallel size.
        p: the number of stages; t * p divides the number of ranks.
        activation: bytes that a rank sends to the next stage per step.
        gradient: bytes of the gradients of one rank's parameters.
    """
    ### BEGIN SOLUTION
    d = nodes * gpus_per_node // (t * p)
    parts = list(itertools.product(range(d), range(p), range(t)))
    # Blocks of `wide` replicas of `deep` consecutive stages, one after the other.
    found = [sorted(parts, key=lambda part: (part[0] // wide, part[1] // deep, part))
             for wide in range(1, d + 1) for deep in range(1, p + 1)]
    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))
    ### END SOLUTION

# %% check="arrange" points=4
def orders_of_megatron(ranks, t, p):
    """Return Megatron-LM's two placements: replicas of a stage together, and stages of a replica together."""
    d = ranks // (t * p)
    return ([(rank // t % d, rank // (t * d), rank % t) for rank in range(ranks)],
            [(rank // (t * p), rank // t % p, rank % t) for rank in range(ranks)])


def require_placement(nodes, gpus_per_node, t, p, activation, gradient, least):
    """Require a valid placement whose busiest node sends at most `least` bytes."""
    from lablib import placements

    cluster = f"On {nodes} nodes of {gpus_per_node} GPUs, with t = {t} and p = {p}"
    placement = check.call(arrange, nodes, gpus_per_node, t, p, activation, gradient)
    wrong = placements.problem(placement, gpus_per_node, (nodes * gpus_per_node // (t * p), p, t))
    check.that(wrong is None, f"This placement is not valid. {cluster}, {wrong}.")
    sends, only_activations = (placements.busiest_node(placement, gpus_per_node, activation, size)
                               for size in (gradient, 0))
    cluster += (f", activations of {activation:,} bytes, and gradients of {gradient:,} bytes, the busiest node sends "
                f"{sends:,.0f} bytes per step")
    orders = orders_of_megatron(nodes * gpus_per_node, t, p)
    usual = min(placements.busiest_node(one, gpus_per_node, activation, gradient) for one in orders)
    check.that(sends <= 1.000001 * least or sends < 0.999999 * usual or usual <= 1.000001 * least,
               f"{cluster}. If each node holds as many replicas of one stage as possible, or as many stages of one replica, it "
               f"sends at least {usual:,.0f}. Between these, other placements send less here.")
    mostly_activations = only_activations > sends / 2
    check.that(sends <= 1.000001 * least or not mostly_activations,
               f"{cluster}, most of them activations and their gradients. Could the ranks that exchange these share a node?")
    check.that(sends <= 1.000001 * least or mostly_activations,
               f"{cluster}, most of them for the all-reduce. Could the ranks that take part in it share a node?")


for case in ((2, 2, 2, 2, 50, 900, 100), (4, 8, 2, 4, 100, 900, 1600), (4, 8, 2, 4, 900, 100, 1200),
             (2, 8, 2, 2, 500, 600, 3600), (6, 4, 2, 3, 700, 800, 6200), (1, 8, 2, 2, 100, 100, 0),
             (4, 4, 1, 2, 900, 1000, 3500), (4, 8, 2, 4, 500, 600, 5600), (4, 4, 1, 4, 400, 500, 2300)):
    require_placement(*case)
### BEGIN HIDDEN TESTS
def drawn_cluster(dice):
    t, p, d = dice.choice([1, 2, 4]), dice.choice([1, 2, 3, 4, 6]), dice.choice([1, 2, 3, 4, 8])
    gpus_per_node = t * dice.choice([one for one in (1, 2, 3, 4, 8) if p * d % one == 0])
    return p * d * t // gpus_per_node, gpus_per_node, t, p, dice.randrange(1, 1000), dice.randrange(1, 1000)


def drawn_middle(dice):
    """Draw a cluster on which a node should hold several replicas of several stages."""
    t, p, d = dice.choice([1, 2, 4]), dice.choice([4, 6, 8]), dice.choice([4, 6, 8])
    gradient = dice.randrange(200, 1000)
    return p * d // 4, 4 * t, t, p, round(gradient * dice.uniform(0.7, 0.9)), gradient


def least_traffic(nodes, gpus_per_node, t, p, activation, gradient):
    """Return what the busiest node sends with the best placement that we know."""
    from itertools import product

    from lablib import placements

    d = nodes * gpus_per_node // (t * p)
    parts = list(product(range(d), range(p), range(t)))
    found = (sorted(parts, key=lambda part: (part[0] // wide, part[1] // deep, part))
             for wide in range(1, d + 1) for deep in range(1, p + 1))
    return min(placements.busiest_node(one, gpus_per_node, activation, gradient) for one in found)


for trial in (*check.draw(10, cluster=drawn_cluster), *check.draw(4, cluster=drawn_middle)):
    require_placement(*trial["cluster"], least_traffic(*trial["cluster"]))
### END HIDDEN TESTS

# %% [raw] mutant="arrange" hint="most of them activations"
# -    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))
# +    return found[-p]  # all replicas of a stage together

# %% [raw] mutant="arrange" hint="most of them for the all-reduce"
# -    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))
# +    return parts

# %% [raw] mutant="arrange" hint="Between these, other placements"
# -    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))
# +    found = [sorted(parts, key=lambda part: (part[1], part[0], part[2])), parts]
# +    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))

# %% [raw] mutant="arrange" hint="share a node"
# -    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))
# +    found = [sorted(parts, key=lambda part: (part[1], part[0], part[2])), parts]
# +    return found[gradient < activation]

# %% [raw] mutant="arrange" hint="share a node"
# -    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))
# +    found = [sorted(parts, key=lambda part: (part[1], part[0], part[2])), parts]
# +    return found[t * p <= gpus_per_node]

# %% [raw] mutant="arrange" hint="This placement is not valid"
# -    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))
# +    return [(rank // (t * p), rank % p, rank // p % t) for rank in range(t * p * d)]

# %% [raw] mutant="arrange" hint="This placement is not valid"
# -    return min(found, key=lambda one: placements.busiest_node(one, gpus_per_node, activation, gradient))
# +    return [(rank % d, rank // d % p, rank % t) for rank in range(t * p * d)]

# %% [markdown]
# Which placement does a real model prefer? GPT-2 XL (1.56 billion parameters, width 1,600) in fp16 on four nodes of eight
# GPUs, with $t = 2$ and $p = 4$: for every micro-batch of 4 samples, a rank sends activations of shape `[1024, 4,
# 1600]` in fp16, 2 bytes each.

# %% tags=["explore"]
gradients = int(1.56e9 / (2 * 4) * 2)  # bytes; each rank has an eighth of the parameters
for micro_batches in (4, 16, 64):
    activations = micro_batches * 4 * 1024 * 1600 * 2
    placement = arrange(4, 8, 2, 4, activations, gradients)
    homes = [placement.index((0, stage, 0)) // 8 for stage in range(4)]
    busiest = placements.busiest_node(placement, 8, activations, gradients)
    print(f"{micro_batches:2} micro-batches: the stages of replica 0 are on nodes {result(homes)}, and the busiest node "
          f"sends {busiest / 1e9:.1f} GB per step (computed)")

# %% [markdown]
# Gradients are sent once per step, activations for every micro-batch, so the best placement depends on the batch.
# Megatron-LM [has two](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py): by default, the
# replicas of a stage are next to one another, and with `--use-tp-pp-dp-mapping`, the stages of a replica. With 16
# micro-batches, neither is best. What is fastest also depends on what overlaps with computation.
#
# Your cluster has two nodes of two GPUs, so with $t = p = 2$, there is one replica. Take a global batch of 16 in
# micro-batches of 4. What percentage of the step do the GPUs of the modeled job spend in the bubble? Begin with the formula
# of [lab 02](02_single_node.ipynb), and think about what it leaves out.

# %% answer="guess-bubble"
### BEGIN SOLUTION
guess_bubble = 30
### END SOLUTION

# %% [markdown]
# The next cell also tries tensor parallelism over both nodes, and other micro-batch sizes. Is 4 the best?

# %% tags=["explore"]
LAYOUT = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --global-batch-size 16 --micro-batch-size "
HYBRID = f"{LAYOUT} 4"
yours, across, *others = costs.of({
    "t = p = 2, micro-batch of 4": HYBRID,
    "t = 4, over both nodes": "--tensor-model-parallel-size 4 --micro-batch-size 4 --global-batch-size 16",
    **{f"t = p = 2, micro-batch of {size}": f"{LAYOUT} {size}" for size in (1, 2, 8)}}, GPT2 + "--world-size 4")
print(f"by the formula: {(2 - 1) / (16 // 4 + 2 - 1):.0%}")
check.compare("percent of the step in the bubble (virtual)", guess_bubble, 100 * yours.bubble)
costs.show([yours, across, *others])

# %% [markdown]
# The modeled bubble is larger than the formula's, because the stages are not equal (the last one also computes the
# logits), and because activations and their gradients take time to cross the network. It is not part of `waiting`,
# which counts collectives only, here mostly tensor parallelism's. A larger micro-batch makes matmuls more efficient but
# leaves fewer micro-batches, so the bubble grows. Which groups of ranks should now be connected by NVLink, and which by
# the network? With `NCCL_DEBUG=INFO`, the job's log shows how the ranks of each process group are connected:

# %% tags=["explore"] short={"{HYBRID}": "{HYBRID} --global-batch-size 8 --num-layers 4"}
!sbatch --job-name=my_hybrid --export=ALL,NCCL_DEBUG=INFO code/my_two_nodes.sh {HYBRID}

# %% tags=["explore"]
hybrid_job = jobs.wait()

# %% tags=["explore"]
print(mark(logs.lines(hybrid_job.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))
placement = [(rank // 2, rank % 2) for rank in range(4)]  # Megatron-LM's; with one replica, its two orders are equal
for ranks, lines in channels.read(hybrid_job.log).items():
    held = [placement[int(rank)] for rank in ranks.split(",")]
    print(f"ranks {ranks}, with (stage, shard) {held}:", {one[2] for one in channels.connections(lines)})

# %% [markdown]
# Each process group has a **communicator** of its own. The shards of a stage are connected by `P2P` only, and
# neighboring stages by `NET` only. Does your `arrange` place them like that, too? (All four compute the norm of the
# gradient together.)
#
# ## Discuss
#
# 1. **Who writes the log?** Four ranks compute, but one line per iteration is printed. Which rank prints it, and why
#    does it contain the loss of all ranks?
# 2. **The second node.** In the model, two nodes were slower than one. What would you change first: the batch, the network, or the
#    layout?
# 3. **Split or copied?** At a global batch of 16, compare the hybrid job with four replicas of the model. When would
#    you choose which?
# 4. **A silent mistake.** You start a run on 1,000 GPUs on Friday evening. Which of today's five cases could your
#    script detect within a minute, and how?
#
# ## Cleanup
#
# Cancel what still runs, and delete the large files:

# %% tags=["explore"]
!scancel --quiet {case_c.job} {case_e.job}
!rm -rf megatron/checkpoints/dp_two_nodes megatron/checkpoints/dp_single_node
!rm -rf megatron/tensorboard/my_two_nodes megatron/tensorboard/case_d
!squeue

# %% [markdown]
# ## What you can do now
#
# You can start one job on several nodes, and find out why it is silent, slow, or stuck. In [lab
# 04](04_data_parallelism.ipynb), you build the all-reduce itself, and hide it behind the backward pass.
#
# ## Read next
#
# - [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473), *Efficient large-scale language model training on GPU
#   clusters using Megatron-LM*: why tensor parallelism stays within a node.
# - [Jiang et al., 2024](https://arxiv.org/abs/2402.15627), *MegaScale*: how stragglers and hangs are found on more
#   than 10,000 GPUs.
# - [Bekman, *Machine learning engineering*](https://github.com/stas00/ml-engineering): debugging hanging and failing
#   multi-node jobs.
# - [PyTorch's notes on CUDA memory](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management): the
#   caching allocator and `expandable_segments`.
