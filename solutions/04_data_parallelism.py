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
# # Build your own data parallelism
#
# Four times the GPUs. How much faster is the step?
#
# **Data parallelism** (DP) is the simplest way to use more than one GPU: every GPU holds a copy of the model, a
# **replica**, and works on its own share of the batch. It should scale perfectly, because the replicas never look at
# each other's samples. This lab opens with a job that puts that to the test. You find out what limits it, and build
# what helps:
#
# - **First sitting, 60 minutes.** From two functions, send and receive, you build an all-reduce, and from that, data
#   parallelism. It ends with what a larger batch does for the job.
# - **Second sitting, 40 minutes.** You make the communication cheaper in two ways: with buckets, and with asynchronous
#   all-reduces behind the backward pass.
# - **Third sitting, 35 minutes.** You combine both in a `DataParallel`, and compare it with PyTorch's.
# - **Fourth sitting, 60 minutes.** You write the training program around it, from the rendezvous to the log, and it
#   reproduces the losses of this course's trainer.
# - **Fifth sitting, 60 minutes.** You take your `DataParallel` to 1,024 virtual H100s, compute the best bucket size,
#   and run a job on two nodes that survives its time limit.
#
# Real **ranks**, `torch.distributed` processes on this machine's CPU, check your values. **Virtual GPUs** model time
# and memory. Four of your answers are files in `mytrainer/`, the trainer that you build during this course.

# %% tags=["setup"]
import contextlib
import os

import torch
import torch.distributed as dist

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace
os.makedirs("mytrainer", exist_ok=True)

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("lab.mytrainer.defaults", "layout_estimator", "minimegatron",
           "torch.nn.parallel.DistributedDataParallel")

# %% tags=["explore"]
from lab.mytrainer import gain
from labcore.colors import bad, good, result
from lablib import collectives, jobs, replicas, scaling
from layout_estimator import costs
from minimegatron import formulas
from warmranks import RanksDeadlock, record_ranks

jobs.connect()

# %% [markdown]
# ## One GPU, two, and four
#
# The job trains GPT-2 small (124 million parameters, fp32; [Radford et al.,
# 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)) on
# V100s, two per node, with 25 Gbit/s Ethernet between the nodes. The global batch is four samples of 1,024 tokens, so
# each of two GPUs has two samples, and each of four has one.
#
# One GPU takes about 310 ms per step. What is the step time on four GPUs across two nodes, in milliseconds? Commit to
# a number before you run the next cell.

# %% answer="guess-four"
### BEGIN SOLUTION
guess_four = 120
### END SOLUTION

# %% tags=["explore"]
GPT2 = ("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 --make-vocab-size-divisible-by 50304 "
        "--use-flash-attn --attention-dropout 0 --hidden-dropout 0 ")
V100 = GPT2 + "--device virtual:v100 --virtual-network ethernet:25gbit --global-batch-size 4 "
opening = costs.of({
    "1 GPU": "--world-size 1 --gpus-per-node 1 --micro-batch-size 4",
    "2 GPUs, one node": "--world-size 2 --gpus-per-node 2 --micro-batch-size 2",
    "4 GPUs, two nodes": "--world-size 4 --gpus-per-node 2 --micro-batch-size 1"}, V100)
costs.show(opening)
check.compare("milliseconds on four GPUs (virtual)", guess_four, opening[2].milliseconds)

# %% [markdown]
# With two more GPUs in a second node, the step takes about as long as on one, most of it spent `waiting` for the
# network. What do they send, and do they have to wait for it?

# %% [markdown]
# ## Send and receive
#
# Every rank runs the same program, and its number, `dist.get_rank()` of `dist.get_world_size()`, tells it what to do.
# `dist.init_process_group(backend)`, here `gloo` and on GPUs `nccl`, has created the default **process group**, which
# contains all ranks; `dist.new_group([0, 2, 4])` creates another one. Two **point-to-point (P2P)** operations move
# data between two ranks:
#
# ```python
# dist.send(tensor, dst=3)     # returns when the tensor may be overwritten
# dist.recv(tensor, src=1)     # fills the tensor, and returns when it has arrived
# ```
#
# In a **ring**, every rank passes a tensor to its right neighbor, and the last one to rank 0. Before you run this on
# four real ranks, follow rank 0 by hand, line by line.

# %% tags=["explore"]
def receive_first(length):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty(length)
    dist.recv(received, src=(rank - 1) % ranks)
    dist.send(torch.full((length,), float(rank)), dst=(rank + 1) % ranks)
    return received


try:
    record_ranks(receive_first, 4, 3)  # calls receive_first(3) on 4 ranks
except RanksDeadlock as error:
    print(error)

# %% [markdown]
# This is a **deadlock**: a cycle of ranks, each of which waits for the next. On a real cluster, the job would hang
# without a message until a timeout killed it: by default, after 10 minutes with NCCL and 30 with other backends.
#
# Swapping the two lines does not help: with Gloo, no `send` returns before its receiver is ready. (Other libraries
# buffer small tensors, so the deadlock appears only when the tensors grow.) Either some ranks receive first while the
# others send first, or every rank does both at once: `dist.isend` and `dist.irecv` return immediately with a **work
# handle**, and `handle.wait()` blocks until the operation is done. Keep the handle until then.
#
# With NCCL, `wait()` does not block the CPU but makes the current CUDA stream wait. And sends and receives that must
# progress together have to be [grouped](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html), as
# `dist.batch_isend_irecv` does.

# %% [markdown]
# ### Exercise 1: fix the deadlock
#
# Write `shift`. Every rank sends `tensor` to its right neighbor and returns what it received from its left neighbor,
# in a new tensor of the same shape and dtype. It must work on any number of ranks, two or more, odd or even.

# %% answer="shift"
def shift(tensor):
    """Send a tensor to the right neighbor in the ring; return the left neighbor's tensor."""
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=(rank + 1) % ranks)
    dist.recv(received, src=(rank - 1) % ranks)
    sending.wait()
    return received
    ### END SOLUTION

# %% tags=["driver"]
def shifted(values):
    """Shift a tensor, whose values differ between ranks; return the result and the tensor."""
    tensor = torch.tensor(values, dtype=torch.float64)
    return [shift(tensor), tensor]

# %% check="shift" points=2
runs = check.ranks(
    shifted, ranks=3, cases=[{"values": check.by_rank([[0.0, 1.0], [100.0, 101.0], [200.0, 201.0]])}],
    expected=[[[[200.0, 201.0], [0.0, 1.0]], [[0.0, 1.0], [100.0, 101.0]],
               [[100.0, 101.0], [200.0, 201.0]]]],
    hints={"A cycle of waiting ranks: each waits in the same operation. Which one can return before "
           "its partner is there?": "deadlock",
           "This tensor came from the right neighbor. Send to the right, receive from the left.":
               [[[[100.0, 101.0], [0.0, 1.0]], [[200.0, 201.0], [100.0, 101.0]],
                 [[0.0, 1.0], [200.0, 201.0]]]],
           "Every rank returned its own tensor.":
               [[[[0.0, 1.0], [0.0, 1.0]], [[100.0, 101.0], [100.0, 101.0]],
                 [[200.0, 201.0], [200.0, 201.0]]]],
           "The tensor that was passed in has changed. Receive into a new one.":
               [[[[200.0, 201.0], [200.0, 201.0]], [[0.0, 1.0], [0.0, 1.0]],
                 [[100.0, 101.0], [100.0, 101.0]]]]})


def require_neighbors(runs):
    """Require that every rank of every run sends its tensor to its right neighbor only."""
    for run in runs:
        ranks = len(run.values)
        for rank in range(ranks):
            targets = sorted({call.peer for call in run.calls(rank, "send")})
            check.that(targets == [(rank + 1) % ranks],
                       f"Rank {rank} of {ranks} sends to {', '.join(map(str, targets)) or 'nobody'}. "
                       "It must send its tensor to its right neighbor, and to no other rank.")
            check.that(all(call.finished is not None for call in run.calls(rank)), f"Rank {rank} returns without waiting for "
                       "a send or receive. Keep each work handle, and call its wait() before you return.")


require_neighbors(runs)
### BEGIN HIDDEN TESTS
import numpy as np

(drawn,) = check.draw(1, length=range(1000, 3000))
require_neighbors(check.ranks(
    shifted, ranks=[2, 5],
    cases=check.draw(1, values=check.for_each_rank(check.between(-9, 9), shape=[drawn["length"]])),
    expected=lambda ranks, values: [[values[rank - 1], values[rank]] for rank in range(ranks)],
    hints={"This is computed from the rank's own tensor. Return what the left neighbor sent, whatever that is.":
               lambda ranks, values: [[np.array(values[rank]) + 100.0 * ((rank - 1) % ranks - rank), values[rank]]
                                      for rank in range(ranks)]}))
### END HIDDEN TESTS

# %% [raw] mutant="shift" hint="A cycle of waiting ranks"
# def shift(tensor):
#     rank, ranks = dist.get_rank(), dist.get_world_size()
#     received = torch.empty_like(tensor)
#     dist.recv(received, src=(rank - 1) % ranks)
#     dist.send(tensor, dst=(rank + 1) % ranks)
#     return received

# %% [raw] mutant="shift" hint="returns without waiting"
# -    sending.wait()

# %% [raw] mutant="shift" hint="the same shape and dtype"
# -    received = torch.empty_like(tensor)
# +    received = torch.empty(tensor.shape)

# %% [raw] mutant="shift" hint="has changed"
# -    return received
# +    return tensor.copy_(received)

# %% [raw] mutant="shift" hint="came from the right neighbor"
# -    sending = dist.isend(tensor, dst=(rank + 1) % ranks)
# -    dist.recv(received, src=(rank - 1) % ranks)
# +    sending = dist.isend(tensor, dst=(rank - 1) % ranks)
# +    dist.recv(received, src=(rank + 1) % ranks)

# %% [raw] mutant="shift" hint="its own tensor"
# -    return received
# +    return tensor

# %% [raw] mutant="shift" hint="and to no other rank"
# def shift(tensor):
#     rank, ranks = dist.get_rank(), dist.get_world_size()
#     return tensor - 100 * rank + 100 * ((rank - 1) % ranks)

# %% [raw] mutant="shift" hint="computed from the rank's own tensor"
# -    sending = dist.isend(tensor, dst=(rank + 1) % ranks)
# +    sending = dist.isend(torch.zeros_like(tensor), dst=(rank + 1) % ranks)
# -    return received
# +    return tensor - 100 * rank + 100 * ((rank - 1) % ranks)

# %% [markdown]
# ## From send and receive to all-reduce
#
# After the backward pass, every replica has the gradient of its own samples, and all of them need the sum. The
# **collective** (an operation in which all ranks of a process group take part) for this is called **all-reduce**.
#
# If $n$ ranks sent their $S$ bytes to rank 0, which returns the sum, rank 0's link would carry $(n-1)S$ bytes each
# way. The **ring all-reduce** ([Patarasuk and Yuan, 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)) keeps every
# link equally busy. Split the tensor into $n$ chunks. In every step, each rank sends one chunk to its right neighbor
# and receives one from its left. In the first $n-1$ steps, the **reduce-scatter**, the receiver adds the chunk to its
# own, until each rank has the complete sum of one chunk. In the last $n-1$ steps, the **all-gather**, the complete
# chunks travel around the ring, and the receiver stores them. Step through it:

# %% tags=["explore"]
collectives.ring(4)

# %% [markdown]
# Each of the $2(n-1)$ steps sends $S/n$ bytes, so a rank sends
#
# $$ 2\,\frac{n-1}{n}\,S \quad\text{bytes}, $$
#
# less than $2S$, however many ranks there are. No algorithm in which only the ranks add can send less. (Switches can
# add, too: SHARP on InfiniBand, and [NVLink SHARP](https://github.com/NVIDIA/nccl/issues/1031) inside an H100 node.)
# If a link has bandwidth $B$ and every transfer adds a **latency** $\alpha$, the all-reduce takes
#
# $$ T_\text{ring}(S) = 2(n-1)\,\alpha + 2\,\frac{n-1}{n}\,\frac{S}{B}. $$
#
# The second term hardly depends on $n$, but the first one grows with it.

# %% [markdown]
# ### Exercise 2: ring all-reduce
#
# Write `all_reduce` in the first file of your trainer. `tensor` is contiguous, may have any shape, dtype, and length,
# even fewer elements than ranks, and is summed **in place**. Send to the right neighbor only, with `isend`, and
# receive from the left one. `torch.tensor_split` splits a tensor into views of nearly equal length, some of which may
# be empty; sending an empty tensor is allowed.
#
# In a subgroup, `dist.get_rank(group)` counts from 0 within the group, but `dst` and `src` are ranks of the whole
# job, and `dist.get_global_rank(group, 2)` translates. With `group=None`, do not translate. Pass `group` to `isend`
# and `recv`, too.

# %% answer="collectives"
%%writefile mytrainer/collectives.py
"""Collectives, built from point-to-point sends and receives."""

import torch
import torch.distributed as dist


def all_reduce(tensor, group=None):
    """Sum a contiguous tensor over the ranks of a process group, in place, around a ring.

    Args:
        tensor: of any shape, which is the same on all ranks.
        group: the process group; None means all ranks.

    Returns the tensor.
    """
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    neighbors = (rank + 1) % ranks, (rank - 1) % ranks
    if group is not None:
        neighbors = [dist.get_global_rank(group, one) for one in neighbors]
    right, left = neighbors
    chunks = tensor.view(-1).tensor_split(ranks)
    for step in range(2 * (ranks - 1)):
        sending = dist.isend(chunks[(rank - step) % ranks], right, group)
        target = chunks[(rank - step - 1) % ranks]
        received = torch.empty_like(target)
        dist.recv(received, left, group)
        sending.wait()
        if step < ranks - 1:
            target += received  # reduce-scatter
        else:
            target.copy_(received)  # all-gather
    return tensor
    ### END SOLUTION

# %% tags=["driver"]
def ring_sum(values):
    """All-reduce a tensor, whose values differ between ranks."""
    from mytrainer.collectives import all_reduce

    tensor = torch.tensor(values)
    all_reduce(tensor)
    return tensor


def ring_sum_of_group(members, values):
    """All-reduce in a process group of some of the ranks; the others do nothing."""
    from mytrainer.collectives import all_reduce

    group = dist.new_group(members)
    tensor = torch.tensor(values, dtype=torch.float64)
    return all_reduce(tensor, group) if dist.get_rank() in members else tensor

# %% check="collectives" points=6
import numpy as np

# It sums over all ranks, whatever the length.
tensors = [[3.0, 1.0, 4.0, 1.0, 5.0, 9.0], [20.0, 70.0, 10.0, 80.0, 20.0, 80.0],
           [500.0, 700.0, 700.0, 200.0, 100.0, 500.0], [1000.0, 4000.0, 1000.0, 4000.0, 2000.0, 1000.0]]
runs = check.ranks(
    ring_sum, cases=[{"values": check.by_rank([one[:length] for one in tensors])} for length in (4, 6, 2)], ranks=4,
    expected=[[[1523.0, 4771.0, 1714.0, 4281.0]] * 4,
              [[1523.0, 4771.0, 1714.0, 4281.0, 2125.0, 1589.0]] * 4,
              [[1523.0, 4771.0]] * 4],
    hints={"Only one chunk of each rank is complete. The complete chunks must be passed around, too.":
               [[[3.0, 4771.0, 1704.0, 4001.0], [23.0, 70.0, 1714.0, 4081.0], [523.0, 770.0, 700.0, 4281.0],
                 [1523.0, 4770.0, 1700.0, 4000.0]], [], []],
           "Each rank has the complete sum of only one chunk. The complete chunks must be passed "
           "around, too.":
               [[[1523.0, 4701.0, 1004.0, 1.0], [20.0, 4771.0, 1014.0, 81.0], [520.0, 700.0, 1714.0, 281.0],
                 [1520.0, 4700.0, 1000.0, 4281.0]], [], []],
           "The all-gather passes on the wrong chunks, which are not complete. Which chunk has a rank completed when the "
           "reduce-scatter ends?":
               [[[3.0, 70.0, 700.0, 4000.0]] * 4, [[3.0, 1.0, 10.0, 80.0, 100.0, 1000.0]] * 4, [[3.0, 70.0]] * 4],
           "One chunk on each rank is not complete yet. How many steps do the reduce-scatter and the all-gather take "
           "together?":
               [[[1523.0, 4771.0, 1704.0, 4281.0], [1523.0, 4771.0, 1714.0, 4081.0], [523.0, 4771.0, 1714.0, 4281.0],
                 [1523.0, 4770.0, 1714.0, 4281.0]], [], []],
           "The last elements are not summed: the length is not divisible by the number of "
           "ranks.":
               [[], [[1523.0, 4771.0, 1714.0, 4281.0, 5.0, 9.0], [1523.0, 4771.0, 1714.0, 4281.0, 20.0, 80.0],
                     [1523.0, 4771.0, 1714.0, 4281.0, 100.0, 500.0], [1523.0, 4771.0, 1714.0, 4281.0, 2000.0, 1000.0]],
                []],
           "Each rank's own values are multiplied by the number of ranks: nothing that others sent is in the sum.":
               [[[12.0, 4.0, 16.0, 4.0], [80.0, 280.0, 40.0, 320.0], [2000.0, 2800.0, 2800.0, 800.0], [4000.0, 16000.0, 4000.0, 16000.0]],
                [], []],
           "A cycle of waiting ranks; the lines above show where each one waits. One of the two "
           "operations must not block.": "deadlock"})


def require_ring(runs, itemsize=4, members=None):
    """Require of every run that each rank sends 2(n - 1)/n of the tensor, and to its right neighbor only."""
    for run in runs:
        group = members or list(range(len(run.values)))
        ranks, elements = len(group), np.size(run.values[group[0]])
        most = 2 * (ranks - 1) * -(-elements // ranks) * itemsize  # where chunks differ by one element at most
        for place, rank in enumerate(group):
            used = {call.op for call in run.calls(rank)}
            check.that(used <= {"send", "recv"},
                       f"The record shows {', '.join(sorted(used - {'send', 'recv'}))}. "
                       "Use sends and receives only.")
            targets = {call.peer for call in run.calls(rank, "send")}
            check.that(targets <= {group[(place + 1) % ranks]},
                       f"Rank {rank} sends to {', '.join(map(str, sorted(targets)))}. Send to the "
                       "right neighbor only.")
            check.that(run.bytes(rank, "send") <= most,
                       f"Rank {rank} sends {run.bytes(rank, 'send')} bytes. Of a tensor of {elements * itemsize} "
                       f"bytes, a ring of {ranks} ranks sends {most}: one chunk in each step.")
            check.that(all(call.finished is not None for call in run.calls(rank)), f"Rank {rank} returns without waiting for "
                       "a send or receive. Keep each work handle, and call its wait() before you return.")
        total, least = sum(run.bytes(rank, "send") for rank in group), 2 * (ranks - 1) * elements * itemsize
        check.that(total >= least, f"The {ranks} ranks send {total} bytes in total. In a ring, each chunk is sent "
                   f"{ranks - 1} times to be summed and {ranks - 1} times to be copied, {least} bytes in total.")


require_ring(runs)
# It sums over a process group of some of the ranks.
require_ring(check.ranks(
    ring_sum_of_group, ranks=5,
    cases=[{"members": [0, 2, 4], "values": check.by_rank([[3.0, 1.0, 4.0], [7.0, 7.0, 7.0], [20.0, 70.0, 10.0],
                                                           [7.0, 7.0, 7.0], [500.0, 700.0, 700.0]])}],
    expected=[[[523.0, 771.0, 714.0], [7.0, 7.0, 7.0], [523.0, 771.0, 714.0], [7.0, 7.0, 7.0],
               [523.0, 771.0, 714.0]]]), 8, [0, 2, 4])
### BEGIN HIDDEN TESTS
for ranks, case in enumerate(check.draw(3, shape=[(1,), (7,), (3, 5), (64,), (2, 3, 3)]), 1):
    require_ring(check.ranks(
        ring_sum, ranks=ranks, rel=1e-5,
        cases=check.draw(1, values=check.for_each_rank(check.between(1, 9), case["shape"])),
        expected=lambda ranks, values: [np.sum(values, axis=0)] * ranks,
        hints={"These are the sums of the tensors in the test that you can see. Here, the ranks have others.":
                   lambda ranks, values: [np.resize([1523.0, 4771.0, 1714.0, 4281.0, 2125.0, 1589.0],
                                                    case["shape"])] * ranks}))
(drawn,) = check.draw(1, members=[[0, 2, 3], [1, 2, 3], [0, 1, 3]])
require_ring(check.ranks(
    ring_sum_of_group, ranks=4,
    cases=check.draw(1, members=[drawn["members"]], values=check.for_each_rank(check.between(1, 9), [5])),
    expected=lambda ranks, members, values: [
        np.sum([values[member] for member in members], axis=0) if rank in members else values[rank]
        for rank in range(ranks)]), 8, drawn["members"])
### END HIDDEN TESTS

# %% [raw] mutant="collectives" hint="The complete chunks must be passed"
# -    for step in range(2 * (ranks - 1)):
# +    for step in range(ranks - 1):

# %% [raw] mutant="collectives" hint="complete sum of only one chunk"
# -    for step in range(2 * (ranks - 1)):
# -        sending = dist.isend(chunks[(rank - step) % ranks], right, group)
# -        target = chunks[(rank - step - 1) % ranks]
# +    for step in range(ranks - 1):
# +        sending = dist.isend(chunks[(rank - step - 1) % ranks], right, group)
# +        target = chunks[(rank - step - 2) % ranks]

# %% [raw] mutant="collectives" hint="passes on the wrong chunks"
# -        sending = dist.isend(chunks[(rank - step) % ranks], right, group)
# -        target = chunks[(rank - step - 1) % ranks]
# +        later = int(step >= ranks - 1)
# +        sending = dist.isend(chunks[(rank - step - later) % ranks], right, group)
# +        target = chunks[(rank - step - 1 - later) % ranks]

# %% [raw] mutant="collectives" hint="One chunk on each rank is not complete"
# -    for step in range(2 * (ranks - 1)):
# +    for step in range(2 * (ranks - 1) - 1):

# %% [raw] mutant="collectives" hint="the length is not divisible"
# -    chunks = tensor.view(-1).tensor_split(ranks)
# +    size = tensor.numel() // ranks
# +    chunks = [tensor.view(-1)[size * at:size * (at + 1)] for at in range(ranks)]

# %% [raw] mutant="collectives" hint="returns without waiting"
# -        sending.wait()

# %% [raw] mutant="collectives" hint="must not block"
# -        sending = dist.isend(chunks[(rank - step) % ranks], right, group)
# +        dist.send(chunks[(rank - step) % ranks], right, group)
# -        sending.wait()

# %% [raw] mutant="collectives" hint="must not block"
# -        sending = dist.isend(chunks[(rank - step) % ranks], right, group)
# +        outgoing = chunks[(rank - step) % ranks]
# -        dist.recv(received, left, group)
# -        sending.wait()
# +        dist.recv(received, left, group)
# +        dist.send(outgoing, right, group)

# %% [raw] mutant="collectives" hint="sends and receives only"
# %%writefile mytrainer/collectives.py
# import torch.distributed as dist
#
#
# def all_reduce(tensor, group=None):
#     dist.all_reduce(tensor, group=group)
#     return tensor

# %% [raw] mutant="collectives" hint="nothing that others sent"
# -        if step < ranks - 1:
# -            target += received  # reduce-scatter
# -        else:
# -            target.copy_(received)  # all-gather
# -    return tensor
# +    return tensor.mul_(ranks)

# %% [raw] mutant="collectives" hint="times to be summed"
# %%writefile mytrainer/collectives.py
# import torch
# import torch.distributed as dist
#
#
# def all_reduce(tensor, group=None):
#     sums = [1523, 4771, 1714, 4281, 2125, 1589] if group is None else [523, 771, 714]
#     return tensor.copy_(torch.tensor(sums[:len(tensor)]))

# %% [raw] mutant="collectives" hint="sends and receives only"
# %%writefile mytrainer/collectives.py
# from torch.distributed import distributed_c10d
#
#
# def all_reduce(tensor, group=None):
#     (group or distributed_c10d._get_default_group()).allreduce([tensor]).wait()
#     return tensor

# %% [raw] mutant="collectives" hint="sends and receives only"
# %%writefile mytrainer/collectives.py
# from torch.distributed.distributed_c10d import all_reduce as add_around_the_ring
#
#
# def all_reduce(tensor, group=None):
#     add_around_the_ring(tensor, group=group)
#     return tensor

# %% [raw] mutant="collectives" hint="These are the sums of the tensors"
# -    chunks = tensor.view(-1).tensor_split(ranks)
# +    sums = [1523.0, 4771.0, 1714.0, 4281.0, 2125.0, 1589.0] if group is None else [523.0, 771.0, 714.0]
# +    chunks = torch.zeros_like(tensor).view(-1).tensor_split(ranks)
# -    return tensor
# +    return tensor.copy_(torch.tensor(sums * 11)[:tensor.numel()].view_as(tensor))

# %% [raw] mutant="collectives" hint="right neighbor only"
# %%writefile mytrainer/collectives.py
# import torch
# import torch.distributed as dist
#
#
# def all_reduce(tensor, group=None):
#     rank, ranks = dist.get_rank(group), dist.get_world_size(group)
#     place = list(range(ranks)) if group is None else dist.get_process_group_ranks(group)
#     if rank:
#         dist.send(tensor, place[0], group)
#         dist.recv(tensor, place[0], group)
#         return tensor
#     for other in place[1:]:
#         received = torch.empty_like(tensor)
#         dist.recv(received, other, group)
#         tensor += received
#     for other in place[1:]:
#         dist.send(tensor, other, group)
#     return tensor

# %% [raw] mutant="collectives" hint="one chunk in each step"
# %%writefile mytrainer/collectives.py
# import torch
# import torch.distributed as dist
#
#
# def all_reduce(tensor, group=None):
#     rank, ranks = dist.get_rank(group), dist.get_world_size(group)
#     neighbors = (rank + 1) % ranks, (rank - 1) % ranks
#     if group is not None:
#         neighbors = [dist.get_global_rank(group, one) for one in neighbors]
#     passed = tensor.clone()
#     for _ in range(ranks - 1):
#         sending = dist.isend(passed, neighbors[0], group)
#         received = torch.empty_like(tensor)
#         dist.recv(received, neighbors[1], group)
#         sending.wait()
#         tensor += received
#         passed = received
#     return tensor

# %% [raw] mutant="collectives" hint="the same shape and dtype"
# -        received = torch.empty_like(target)
# +        received = torch.empty(target.shape)

# %% [raw] mutant="collectives" hint="ring_sum_of_group"
# -    if group is not None:
# -        neighbors = [dist.get_global_rank(group, one) for one in neighbors]

# %% tags=["explore"]
def mine_and_theirs(length):
    from mytrainer.collectives import all_reduce

    mine = torch.randn(length, generator=torch.Generator().manual_seed(dist.get_rank()))
    theirs = mine.clone()
    all_reduce(mine)
    dist.all_reduce(theirs)
    return mine, theirs


for ranks in (2, 4, 8):
    records = record_ranks(mine_and_theirs, ranks, 100_000)
    sent = sum(call.bytes for call in records[0].calls if call.op == "send")
    close = all(torch.allclose(*record.value, atol=1e-5) for record in records)
    identical = all(torch.equal(record.value[0], records[0].value[0]) for record in records)
    print(f"{ranks} ranks: {good('equal') if close else bad('not equal')} to dist.all_reduce, "
          f"{good('the same bits') if identical else bad('different bits')} on every rank; rank 0 sent "
          f"{sent:,} bytes, which is {result(f'{sent / 400_000:.2f}')} times the tensor")

# %% [markdown]
# The factor approaches 2 but never reaches it. Every rank has the same bits, because each chunk is summed once and
# then copied. NCCL, NVIDIA's collective library, has the same ring, but between many nodes it prefers a double binary
# tree ([Jeaugey, 2019](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/)), whose
# latency hardly grows:
#
# $$ T_\text{tree}(S) \approx 2\alpha\log_2 n + 2\,\frac{S}{B}. $$
#
# Your sends and receives also run on virtual GPUs. (On real ones, issue each step's send and receive together with
# `dist.batch_isend_irecv`, or they can deadlock.) The next cell all-reduces 64 MiB with your ring and with NCCL, as
# modeled, on 4 and on 1,024 H100s. Before you run it, compute your ring's latency term for 1,024 ranks, with the
# model's $\alpha$ of 16 µs: a transfer takes 12 µs to start and 4 µs to cross the link. How many times slower than NCCL
# do you expect your ring to be, on 4 GPUs and on 1,024?

# %% tags=["explore"] short={"128, [0]": "16, [0]"}
import time

import virtualgpu


def milliseconds_of(library, mebibytes):
    """Return the time of an all-reduce on a GPU, by NCCL or by your ring, in ms."""
    from mytrainer.collectives import all_reduce

    dist.init_process_group("nccl")
    tensor = torch.empty(mebibytes * 2**18, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()  # virtual time
    (dist.all_reduce if library else all_reduce)(tensor)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin)


for gpus, nodes, present in (("h100:4", 1, None), ("h100:8", 128, [0])):
    nccl, ring = (virtualgpu.run(lambda library=library: milliseconds_of(library, 64), gpus, nodes,
                                 present=present)[0].value for library in (True, False))
    print(f"{int(gpus[-1]) * nodes:5} H100s (modeled): NCCL {nccl:6.2f} ms, your ring {result(f'{ring:6.2f} ms')}, "
          f"{ring / nccl:.1f} times as long")

# %% [markdown]
# Within a node, your ring pays for its Python loop and for separate kernels that add. On 1,024 GPUs, it takes 2,046
# steps one after the other, and their latency is most of the time. This is why NCCL has several algorithms, and
# chooses one by the size of the tensor and the number of ranks.
#
# Back to the first job. Around a ring, each of the four V100s sends $2 \cdot \frac34$ of its fp32 gradients per step,
# and the slowest link, at 25 Gbit/s, sets the pace. How many milliseconds is that for GPT-2's gradients, if nothing
# hides them? The model of the network assumes that a transfer reaches 92% of the line rate.

# %% tags=["explore"]
gradients = 4 * formulas.parameters(formulas.Gpt(12, 768, 12, 1024, 50_304))  # bytes
scaling.show_links("v100:2", 2, "ethernet:25gbit")
seconds = 1.5 * gradients / (0.92 * 3.125e9)
print(f"{gradients / 1e6:.1f} MB of gradients; {result(f'{1000 * seconds:.0f} ms')} around a ring of four ranks at 25 Gbit/s")
print(f"{opening[2].communication * opening[2].milliseconds:.0f} ms of waiting in the modeled job")

# %% [markdown]
# (Between exactly two nodes, NCCL can choose a tree, in which a node sends its gradients only once. Whichever it
# takes, hundreds of megabytes cross a link of 3.1 GB/s in every step.)

# %% [markdown]
# ## Naive data parallelism
#
# The loss is a mean over the samples of the batch. If each of $n$ ranks has the same number of samples, and of tokens
# that count toward the loss, the mean over all of them is the mean of the ranks' means, and so is the gradient:
#
# $$ \nabla L = \frac1n \sum_{r=0}^{n-1} \nabla L_r. $$
#
# So replicas that start with identical parameters and average their gradients after every backward pass stay
# identical, because the all-reduce returns the same bits everywhere. Splitting the batch does not change what the
# model learns, up to rounding, batch norm, and dropout. Data parallelism takes two ingredients:
#
# - **Equal parameters at the start.** Rank 0 broadcasts its random parameters: `dist.broadcast(tensor, src=0)`
#   overwrites the tensor on all other ranks. *All* parameters, frozen ones as well: they take part in the forward
#   pass.
# - **Averaged gradients.** `dist.all_reduce(tensor)` sums in place. (Gloo has no `ReduceOp.AVG`: sum, then
#   divide.) `dist.all_reduce` does what your ring does, only faster, so use it from here on.
#
# A parameter that is not trained has no gradient: its `.grad` is `None`. And two layers can share one parameter, as
# GPT-2's embedding and its output layer do. `module.parameters()` lists such a **tied** parameter once.

# %% [markdown]
# ### Exercise 3: naive DDP
#
# Write the two missing parts of `NaiveDDP`, which does for any module what `data_parallel_step` in lab 02 did for one
# MLP.

# %% answer="naive"
class NaiveDDP(torch.nn.Module):
    """Data parallelism with one all-reduce for each gradient, after the backward pass."""

    def __init__(self, module):
        """Wrap a module, and make its parameters equal to rank 0's on all ranks."""
        super().__init__()
        self.module = module
        ### BEGIN SOLUTION
        for parameter in module.parameters():
            dist.broadcast(parameter.detach(), src=0)
        ### END SOLUTION

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    def finish(self):
        """Average the gradients over all ranks. Call it after the backward pass."""
        ### BEGIN SOLUTION
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        ### END SOLUTION

    def no_sync(self):
        """Do nothing, because only finish() communicates."""
        return contextlib.nullcontext()

# %% tags=["driver"]
def naive_losses(kind, seed, samples, steps):
    """Train a small model on all ranks; return the loss on this rank's samples after each step.

    Every rank has a seed of its own, and so its own samples and parameters to start with.
    """
    from lablib import replicas

    replica = NaiveDDP(replicas.Small(kind, seed))
    optimizer = torch.optim.SGD(replica.parameters(), lr=replicas.RATE)
    x, y = replicas.batch(seed, samples)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        replicas.loss(replica, x, y).backward()
        replica.finish()
        optimizer.step()
        losses.append(replicas.loss(replica, x, y).item())
    return losses

# %% tags=["check-setup"]
import torch

from lablib import replicas


def losses_of_one_process(kind, seeds, samples, steps):
    """Train one model on the samples of all ranks; return the loss on each rank's samples after each step.

    Args:
        kind: the kind of model, as for replicas.Small.
        seeds: those of the ranks' samples; the first one is the seed of the model, too.
        samples: how many each rank has.
        steps: of SGD.
    """
    model = replicas.Small(kind, seeds[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=replicas.RATE)
    shares = [replicas.batch(seed, samples) for seed in seeds]
    x, y = (torch.cat(parts) for parts in zip(*shares, strict=True))
    losses = [[] for _ in seeds]
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        for of_rank, (own_x, own_y) in zip(losses, shares, strict=True):
            of_rank.append((model(own_x) - own_y).square().mean().item())
    return losses

# %% check="naive" points=4
runs = check.ranks(
    naive_losses, ranks=4, rel=1e-4,
    cases=[{"kind": kind, "seed": check.by_rank([1, 2, 3, 4]), "samples": 2, "steps": 2}
           for kind in ("tied", "frozen", "unused")],
    # From losses_of_one_process(kind, [1, 2, 3, 4], 2, 2); the hints' values are those of the mutants.
    expected=[[[1.04959, 0.798069], [0.9816424, 0.7362476], [0.9421194, 0.7012303], [0.9512856, 0.7192621]],
              [[0.8548799, 0.719942], [0.8277118, 0.6842782], [0.8028145, 0.658276], [0.7936049, 0.6562669]],
              [[0.717295, 0.6537823], [0.614427, 0.5647869], [0.570074, 0.5373939], [0.6157153, 0.593703]]],
    hints={
        "These are the losses with the sum of the gradients. The gradient of a mean is a mean.":
            [[[0.6995673, 0.5137966], [0.6731036, 0.5020774], [0.6564724, 0.5445595], [0.6660199, 0.6271107]],
             [[0.6109018, 0.551155], [0.5500052, 0.5201964], [0.5151878, 0.5003983], [0.5259878, 0.5027969]],
             []],
        "The ranks started with different parameters.":
            [[[1.299101, 1.076729], [0.9994145, 0.7889958], [0.668718, 0.5862226], [0.6585999, 0.6555392]],
             [[1.034475, 0.9524741], [0.749028, 0.6977078], [0.5475525, 0.5318343], [0.7684216, 0.7504204]],
             []],
        "The ranks train with different frozen parameters. These count in the forward pass, too.":
            [[],
             [[0.9850712, 0.880963], [0.9398538, 0.8102999], [0.8468831, 0.7266656], [0.7610653, 0.6993282]],
             []]})


def require_gradients_sent(run, kind, steps):
    """Require that every rank passes its gradients to other ranks in every step."""
    gradients = 4 * {"plain": 126, "tied": 90, "frozen": 84, "unused": 126}[kind]
    for rank in range(len(run.values)):
        sent = run.bytes(rank)
        check.that(sent >= steps * gradients,
                   f"The gradients have {gradients} bytes, and rank {rank} communicates {sent} bytes in {steps} steps. "
                   "All ranks need every gradient in every step.")


for run, kind in zip(runs, ("tied", "frozen", "unused"), strict=True):
    require_gradients_sent(run, kind, 2)
### BEGIN HIDDEN TESTS
drawn = check.draw(2, kind=["plain", "tied", "frozen", "unused"], seed=check.for_each_rank(check.between(0, 100)),
                   samples=[2, 4], steps=[2, 3])
for ranks, case in zip((1, 3), drawn, strict=True):
    (run,) = check.ranks(naive_losses, rel=1e-4, ranks=ranks, cases=[case],
                         expected=lambda ranks, **given: losses_of_one_process(*given.values()))
    if ranks > 1:
        require_gradients_sent(run, case["kind"], case["steps"])
### END HIDDEN TESTS

# %% [raw] mutant="naive" hint="The gradient of a mean is a mean"
# -                parameter.grad /= dist.get_world_size()

# %% [raw] mutant="naive" hint="started with different parameters"
# -        for parameter in module.parameters():
# -            dist.broadcast(parameter.detach(), src=0)
# +        pass

# %% [raw] mutant="naive" hint="count in the forward pass"
# -            dist.broadcast(parameter.detach(), src=0)
# +            if parameter.requires_grad:
# +                dist.broadcast(parameter.detach(), src=0)

# %% [raw] mutant="naive" hint="All ranks need every gradient in every step"
# class NaiveDDP(torch.nn.Module):
#     def __init__(self, module):
#         super().__init__()
#         self.module = module
#         with torch.no_grad():
#             for number, parameter in enumerate(module.parameters()):
#                 angles = 1.3 * torch.arange(parameter.numel()) + 0.7 + number
#                 parameter.copy_((0.5 * angles.sin()).view_as(parameter))
#     def forward(self, *inputs, **keywords):
#         return self.module(*inputs, **keywords)
#     def no_sync(self):
#         return contextlib.nullcontext()
#     def finish(self):
#         from lablib import replicas
#         self.module.zero_grad()
#         for seed in (1, 2, 3, 4):
#             (replicas.loss(self.module, *replicas.batch(seed, 2)) / 4).backward()

# %% [raw] mutant="naive" hint="NoneType"
# -            if parameter.grad is not None:
# -                dist.all_reduce(parameter.grad)
# -                parameter.grad /= dist.get_world_size()
# +            dist.all_reduce(parameter.grad)
# +            parameter.grad /= dist.get_world_size()

# %% tags=["explore"]
def losses_of_my_ranks():
    return naive_losses("tied", 7 + dist.get_rank(), 2, 6)


one_process = losses_of_one_process("tied", [7, 8, 9, 10], 2, 6)
for rank, record in enumerate(record_ranks(losses_of_my_ranks, 4)):
    print(f"one process, samples of rank {rank}:", [f"{loss:.5f}" for loss in one_process[rank]])
    print(f"rank {rank} of 4:                   ", [f"{loss:.5f}" for loss in record.value])

# %% [markdown]
# ## Accumulate first, communicate once
#
# In the first job, each GPU waited far longer than it computed. One remedy is a larger global batch. With **gradient
# accumulation**, a rank works through several micro-batches before the optimizer takes a step. PyTorch adds their
# gradients up in `.grad` anyway, and only the sum must be all-reduced:
#
# ```python
# (loss(model, micro_batches[0]) / 2).backward()    # local
# (loss(model, micro_batches[1]) / 2).backward()    # adds to .grad
# model.finish()                                    # one all-reduce for each gradient
# ```
#
# The division by 2 makes the loss of the batch the mean over its micro-batches.

# %% [markdown]
# ## Bugs that don't crash
#
# With some bugs, the loss even goes down, because Adam divides each gradient by a running estimate of its magnitude, so
# it hardly cares about the scale until clipping or its $\epsilon$ comes into play. But the **gradient norm** in the
# log, the L2 norm of all gradients together, gives them away if you know the norm of a correct run with the same global
# batch, for example on one GPU. Here are one correct step on 4 ranks with 2 micro-batches, and four bugs:
#
# - `summed`: nobody divides the sum over the ranks;
# - `averaged twice`: DDP averages, and then the training loop divides by the number of ranks *again*;
# - `not scaled`: the loss of each micro-batch is not divided by the number of micro-batches;
# - `not synchronized`: `finish` is never called.
#
# The correct norm is about 1.18. Which norm does each bug log? Commit to the one of `not scaled`.

# %% answer="guess-norm"
### BEGIN SOLUTION
guess_norm = 2.4
### END SOLUTION

# %% tags=["explore"]
def buggy_norm(bug, micro_batches=2):
    """Return this rank's gradient norm after a step with a bug."""
    from lablib import replicas

    rank, ranks = dist.get_rank(), dist.get_world_size()
    replica = NaiveDDP(replicas.Small("plain", 1))
    x, y = (tensor[rank::ranks].chunk(micro_batches) for tensor in replicas.batch(1, 16))
    for number in range(micro_batches):
        loss = replicas.loss(replica, x[number], y[number])
        (loss if bug == "not scaled" else loss / micro_batches).backward()
    if bug != "not synchronized":
        replica.finish()
    return {"summed": ranks, "averaged twice": 1 / ranks}.get(bug, 1) * replicas.gradient_norm(replica)


for bug in ("no bug", "summed", "averaged twice", "not scaled", "not synchronized"):
    norms = [record.value for record in record_ranks(buggy_norm, 4, bug)]
    print(f"{bug:17}", "  ".join(f"{norm:.2f}" for norm in norms))
    if bug == "not scaled":
        check.compare("gradient norm, not scaled", guess_norm, norms[0])

# %% [markdown]
# The factor tells you the cause: the number of ranks, its inverse, or the number of micro-batches. Ranks with
# different norms have not all-reduced.

# %% [markdown]
# ## Are four GPUs worth their price now?
#
# Let your class train the GPT-2 that this lab opened with, on the same virtual V100s, with one, four, and eight
# micro-batches per GPU and step. The **scaling efficiency** is the throughput of four GPUs divided by four times that
# of one:

# %% tags=["explore"] short={"(4, 16, 32)": "(4,)", "size {size}": "size {size} --num-layers 2"}
SLOW, FAST = "ethernet:25gbit", "ethernet:100gbit"
for size in (4, 16, 32):
    gained = gain.measure("v100:2", 2, SLOW, GPT2 + f"--micro-batch-size 1 --global-batch-size {size}", NaiveDDP)
    efficiency = gained.tokens / (4 * opening[0].tokens_per_second)
    print(f"{size:2} samples: {1000 * gained.seconds:5.0f} ms per step, "
          f"{1000 * gained.exposed:.0f} ms of waiting, efficiency {result(f'{efficiency:.0%}')} (virtual)")

# %% [markdown]
# Each step waits for the same time, however many micro-batches it has, so accumulation raises the efficiency. But you
# pay for it with a larger batch, and not a millisecond of waiting is gone.
#
# **This is the end of the first sitting.** From send and receive, you have built data parallelism that computes what
# one process computes. You know what it sends, $2\frac{n-1}{n}S$ bytes per rank and step, and why that made four GPUs
# as slow as one. Next, you hide it. (After a restart of the kernel, run the cells above again.)

# %% [markdown]
# ## Buckets: pay the latency less often
#
# **The second sitting starts here.** One all-reduce for each gradient is slow. GPT-2 small has 148 parameter tensors,
# most of them biases and layer norms of a few kilobytes, and each call costs its latency, whether it carries a
# kilobyte or a gigabyte. A call is **latency-bound** when the latency is larger than the other term, that is, when
#
# $$ S < n\,\alpha\,B \;\text{ (ring)} \qquad\text{or}\qquad S < \alpha\,B\,\log_2 n \;\text{ (tree)}. $$
#
# The more ranks there are, the more each call must carry to be **bandwidth-bound**. The remedy is a **bucket**: copy
# several gradients into one flat tensor, all-reduce that, and copy the parts back ([Li et al.,
# 2020](https://arxiv.org/abs/2006.15704)). PyTorch closes a bucket as soon as its size reaches `bucket_cap_mb`, so a
# bucket can exceed the cap by almost one gradient. The default cap is 25 MiB, and 1 MiB for the first bucket only,
# which can then start early; a cap that you set yourself applies to the first bucket, too.
#
# After the exercise, you will run one backward pass on 1,024 virtual H100s, with 200 gradients of 256 KiB. Every
# collective also has a start-up cost, for launching a kernel and synchronizing with the peers:

# %% tags=["explore"]
scaling.show_links("h100:8", 128)

# %% [markdown]
# How long does one call take for a gradient of 256 KiB, and which term dominates? Which bucket size do you expect to
# be the fastest?

# %% [markdown]
# ### Exercise 4: flat buckets
#
# Write `average_in_buckets`, which averages gradients over all ranks after the backward pass. Fill a bucket with
# consecutive gradients, and begin the next one when another gradient would make it larger than `bucket_mb`, in MiB.
# A gradient larger than the limit gets a bucket of its own. (So unlike PyTorch's, your buckets exceed the limit only if
# a single gradient does.) Call all-reduce once per bucket, and skip parameters without a gradient; here, they lack it
# on all ranks. Use `torch.cat` to copy in, and `split` and `copy_` to copy out.

# %% answer="buckets"
def average_in_buckets(parameters, bucket_mb):
    """Average gradients over all ranks, with one all-reduce for each bucket.

    Args:
        parameters: a list of parameters of one dtype, some of them without a gradient.
        bucket_mb: the maximum size of a bucket, in MiB (2**20 bytes).
    """
    ### BEGIN SOLUTION
    buckets, size = [], 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if not buckets or size + parameter.grad.nbytes > bucket_mb * 2**20:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter.grad)
        size += parameter.grad.nbytes
    for gradients in buckets:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
    ### END SOLUTION

# %% tags=["driver"]
def bucketed(gradients, bucket_mb):
    """Average this rank's gradients ([]: no gradient) with those of the others; return the results."""
    parameters = [torch.nn.Parameter(torch.zeros(max(len(gradient), 1))) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient:
            parameter.grad = torch.tensor(gradient)
    average_in_buckets(parameters, bucket_mb)
    return [[] if parameter.grad is None else parameter.grad.tolist() for parameter in parameters]


def bucketed_step(bucket_mb):
    """Run one backward pass of 200 layers on a GPU, and average the gradients."""
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False, device="cuda")
                                  for _ in range(200)])
    model(torch.randn(4096, 256, device="cuda")).square().mean().backward()
    average_in_buckets(list(model.parameters()), bucket_mb)

# %% check="buckets" points=4
# It averages.
run, exact = check.ranks(
    bucketed, ranks=2,
    cases=[{"gradients": check.by_rank([[[3.0, 1.0, 4.0], [], [1.0, 5.0], [9.0, 2.0, 6.0, 5.0], [3.0]],
                                        [[5.0, 8.0, 9.0], [], [7.0, 9.0], [3.0, 2.0, 3.0, 8.0], [4.0]]]),
            "bucket_mb": 0.00003},
           {"gradients": check.by_rank([[[1.0, 2.0, 3.0, 4.0]] * 4, [[3.0, 4.0, 5.0, 6.0]] * 4]), "bucket_mb": 2**-15}],
    expected=[[[[4.0, 4.5, 6.5], [], [4.0, 7.0], [6.0, 2.0, 4.5, 6.5], [3.5]]] * 2, [[[2.0, 3.0, 4.0, 5.0]] * 4] * 2],
    hints={"These are sums over the ranks.":
               [[[[8.0, 9.0, 13.0], [], [8.0, 14.0], [12.0, 4.0, 9.0, 13.0], [7.0]]] * 2, []],
           "The last bucket is never all-reduced: no gradient follows that would overflow it.":
               [[[[4.0, 4.5, 6.5], [], [4.0, 7.0], [9.0, 2.0, 6.0, 5.0], [3.0]],
                 [[4.0, 4.5, 6.5], [], [4.0, 7.0], [3.0, 2.0, 3.0, 8.0], [4.0]]], []]})
# It is fast on 1,024 virtual H100s.
cost = check.gpus(bucketed_step, {"bucket_mb": 8}, "h100:8", nodes=128, present=[0],
                  least={"flops": 599 * 2 * 4096 * 256**2, "communicated": 200 * 4 * 256**2})
check.pass_mark(cost.milliseconds, f"{cost.milliseconds:.1f} ms: most of it is "
                "the latency of many small all-reduces.", error=cost.error, below=20)
# It has one all-reduce for each bucket.
for rank in (0, 1):
    used = [call.bytes for call in run.calls(rank, "all_reduce")]
    # Filled from the first gradient, or from the last.
    check.that(sorted(used) in ([20, 20], [12, 28]), "The gradients have 12, 8, 16, and 4 bytes. Two buckets of "
               f"at most 31 bytes suffice, each with consecutive gradients. Your all-reduces have {used} bytes.")
    used = [call.bytes for call in exact.calls(rank, "all_reduce")]
    check.that(used == [32, 32], f"Two gradients of 16 bytes fill a bucket of 32 bytes exactly. Your "
               f"all-reduces have {used} bytes.")
### BEGIN HIDDEN TESTS
def averages(ranks, gradients, bucket_mb):
    return [[[sum(column) / ranks for column in zip(*one, strict=True)] for one in zip(*gradients, strict=True)]] * ranks


for case in check.draw(2, sizes=[(8, 8, 8, 8), (100, 1, 1, 0, 50), (7, 0, 0, 9, 30, 2)],
                       bucket_mb=[0.00002, 0.0001, 0.001]):
    sizes, limit = case["sizes"], case["bucket_mb"] * 2**20
    (run,) = check.ranks(bucketed, ranks=3, rel=1e-5, expected=averages, cases=check.draw(
        1, bucket_mb=[case["bucket_mb"]], gradients=check.for_each_rank(
            lambda dice: [[dice.uniform(1, 9) for _ in range(size)] for size in sizes])))
    for rank in range(3):
        used = [call.bytes for call in run.calls(rank, "all_reduce")]
        check.that(sum(used) >= 4 * sum(sizes) and max(used) <= max(limit, 4 * max(sizes))
                   and len(used) <= 2 * sum(used) / limit + 1,
                   f"Fill buckets of at most {limit:.0f} bytes differently: the gradients have "
                   f"{sizes} elements of 4 bytes, and your all-reduces have {used} bytes.")
### END HIDDEN TESTS

# %% [raw] mutant="buckets" hint="sums over the ranks"
# -        flat /= dist.get_world_size()

# %% [raw] mutant="buckets" hint="The last bucket is never"
# -    for gradients in buckets:
# +    for gradients in buckets[:-1]:

# %% [raw] mutant="buckets" hint="bytes exactly"
# -        if not buckets or size + parameter.grad.nbytes > bucket_mb * 2**20:
# +        if not buckets or size + parameter.grad.nbytes >= bucket_mb * 2**20:

# %% [raw] mutant="buckets" hint="each with consecutive gradients"
# -    for parameter in parameters:
# +    for parameter in sorted(parameters, key=torch.numel):

# %% [raw] mutant="buckets" hint="buckets of at most"
# -        if not buckets or size + parameter.grad.nbytes > bucket_mb * 2**20:
# +        if not buckets or size > bucket_mb * 2**20:

# %% [raw] mutant="buckets" hint="the latency of many small all-reduces"
# -        if not buckets or size + parameter.grad.nbytes > bucket_mb * 2**20:
# -            buckets.append([])
# -            size = 0
# +        buckets.append([])

# %% tags=["explore"] short={"[0.25, 1, 4, 16, 64]": "[0.25, 16]"}
import virtualgpu


def buckets_on_1024(bucket_mb):
    def program():
        dist.init_process_group("nccl")
        bucketed_step(bucket_mb)

    return virtualgpu.run(program, "h100:8", 128, present=[0])[0]


for bucket_mb in [0.25, 1, 4, 16, 64]:
    rank = buckets_on_1024(bucket_mb)
    print(f"buckets of {bucket_mb:5} MiB: {result(f'{1000 * rank.seconds:.2f} ms')} (virtual)")

# %% [markdown]
# One call for 256 KiB takes about 0.11 ms: 200 of them take 21 ms more than a few large ones. Less than 2 µs of that is
# bandwidth. About 12 ms is compute and wire time, and buckets can't help with it. The rest is overhead per call: quadruple the
# bucket, and you quarter the overhead. (With a ring instead of a tree, the 200 calls of the first line would take more
# than a second.) So far, one bucket for everything is as good as any.
#
# Now measure on your cluster, with its network slowed down to 100 Mbit/s: your function averages 200 gradients of 4
# KiB on four ranks, two on each node. Each rank sends 1.5 times 800 KiB. How long does that take, and how much does
# one bucket per gradient add?

# %% tags=["explore"]
import inspect

with open("code/my_buckets.py", "w") as file:
    file.write("import torch\nimport torch.distributed as dist\n\n\n" + inspect.getsource(average_in_buckets))
!lab cluster link 100mbit

# %% tags=["explore"] short={"--ntasks-per-node=2": "--ntasks-per-node=1"}
!srun --nodes=2 --ntasks-per-node=2 python code/buckets.py code/my_buckets.py
!lab cluster link unlimited

# %% [markdown]
# 1.2 MB take about 98 ms at 100 Mbit/s, or less, because the throttle lets short bursts pass. One bucket per gradient
# adds the latency of 200 calls, each with $2(n-1) = 6$ steps. (*Loopback mode* leaves only the latency.)

# %% [markdown]
# ## Overlap: hide communication behind the backward pass
#
# The backward pass computes the gradients of the *last* layer first. Their all-reduce can start right away, while the
# GPU computes the gradients of the other layers. With **overlap**, a step takes about
#
# $$ T_\text{step} \approx T_\text{forward} +
#    \max(T_\text{backward} + T_\text{last bucket},\; t_\text{first bucket} + T_\text{comm}) $$
#
# instead of the sum, where $t_\text{first bucket}$ is the time of the backward pass until the first bucket is full,
# and $T_\text{comm}$ is the time of all all-reduces. What the GPU still waits for is the **exposed communication**.
# No backward pass is left to hide the last bucket, so buckets must not be too large. (Overlap is not quite free:
# NCCL's kernels occupy some SMs and memory bandwidth, which virtual GPUs do not model.)
#
# ![Three timelines of a step. With one all-reduce for each gradient, twelve of them follow the backward pass. With
# one bucket, a single, shorter one follows. With buckets and overlap, only the last of four is
# exposed.](../images/ddp_timelines.svg)
#
# Step through a backward pass of six layers, with two gradients in each bucket:

# %% tags=["explore"]
collectives.overlap(6, 2)

# %% [markdown]
# Start with the smallest version that overlaps, one all-reduce for each gradient. It takes two tools:
#
# - **Hooks.**
#   [`parameter.register_post_accumulate_grad_hook(function)`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_post_accumulate_grad_hook.html)
#   calls `function(parameter)` in every backward pass, as soon as that parameter's gradient has been added to
#   `parameter.grad`: for a tied parameter once, after all its uses.
# - **Asynchronous collectives.** `work = dist.all_reduce(tensor, async_op=True)` returns immediately, and `work.wait()`
#   waits. Keep the tensor alive and untouched until then.
#
# With hooks, every backward pass communicates, even those of micro-batches that only accumulate. So DDP has a context
# manager that tells it which ones are local:
#
# ```python
# with model.no_sync():
#     (loss(model, micro_batches[0]) / 2).backward()    # local
# (loss(model, micro_batches[1]) / 2).backward()        # all-reduces what has accumulated
# model.finish()
# ```

# %% [markdown]
# ### Exercise 5: one asynchronous all-reduce for each gradient
#
# Complete `AsyncDDP`, whose `__init__` begins as in Exercise 3. It starts an all-reduce as soon as a gradient is ready, except within `no_sync`, and `finish()`
# leaves the averages in `.grad`. In this exercise, all ranks use the same parameters in the same order. A parameter
# with `requires_grad=False` takes no hook.
#
# A function decorated with `contextlib.contextmanager` has one `yield`: the code before it runs when the `with` block
# begins, and the code after it when the block ends. Put that in a `finally` clause, so that it also runs after an
# error. Two `no_sync` blocks may be nested: the end of the inner one does not end the outer one.

# %% answer="async"
class AsyncDDP(torch.nn.Module):
    """Data parallelism that all-reduces each gradient as soon as it is ready."""

    def __init__(self, module):
        """Wrap a module, and make its parameters equal to rank 0's on all ranks."""
        super().__init__()
        self.module = module
        ### BEGIN SOLUTION
        for parameter in module.parameters():
            dist.broadcast(parameter.detach(), src=0)
        self.synchronizes = True
        self.started = []  # a gradient and its work for each all-reduce that is under way
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._start)

    def _start(self, parameter):
        if self.synchronizes:
            self.started.append((parameter.grad, dist.all_reduce(parameter.grad, async_op=True)))
        ### END SOLUTION

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    @contextlib.contextmanager
    def no_sync(self):
        """Accumulate gradients locally within a `with` block."""
        ### BEGIN SOLUTION
        before, self.synchronizes = self.synchronizes, False
        try:
            yield
        finally:
            self.synchronizes = before
        ### END SOLUTION

    def finish(self):
        """Wait until every gradient is the mean over all ranks. Call it after the last backward."""
        ### BEGIN SOLUTION
        for gradient, work in self.started:
            work.wait()
            gradient /= dist.get_world_size()
        self.started = []
        ### END SOLUTION

# %% tags=["driver"]
def accumulated_norms(kind, seed, samples, micro_batches):
    """Accumulate over micro-batches, twice; return both gradient norms."""
    from lablib import replicas

    replica = AsyncDDP(replicas.Small(kind, seed))
    norms = []
    for turn in range(2):
        replica.zero_grad(set_to_none=False)
        x, y = replicas.batch(seed + turn, samples)
        parts = list(zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True))
        with replica.no_sync():
            for part in parts[:-1]:
                (replicas.loss(replica, *part) / micro_batches).backward()
        (replicas.loss(replica, *parts[-1]) / micro_batches).backward()
        replica.finish()
        norms.append(replicas.gradient_norm(replica))
    return norms


def interrupted(seed):
    """Leave no_sync by an error and average a gradient; then nest two no_sync blocks.

    Returns the norm of the averaged gradient.
    """
    from lablib import replicas

    replica = AsyncDDP(replicas.Small("plain", seed))
    part = replicas.batch(seed, 2)
    try:
        with replica.no_sync():
            raise ArithmeticError
    except ArithmeticError:
        pass
    else:
        raise RuntimeError("no_sync must pass on an error of its block: catch nothing")
    replicas.loss(replica, *part).backward()
    replica.finish()
    norm = replicas.gradient_norm(replica)
    with replica.no_sync():
        with replica.no_sync():
            replicas.loss(replica, *part).backward()
        replicas.loss(replica, *part).backward()
    return norm


def left_behind(seed):
    """Return how many of the first step's gradients still exist after the second step."""
    import weakref

    from lablib import replicas

    replica = AsyncDDP(replicas.Small("plain", seed))
    part, gradients = replicas.batch(seed, 2), []
    for _ in range(2):
        replica.zero_grad()
        replicas.loss(replica, *part).backward()
        replica.finish()
        gradients = gradients or [weakref.ref(parameter.grad) for parameter in replica.parameters()]
    return sum(one() is not None for one in gradients)


def async_pass(layers, scale):
    """Run one step of layers of 1 KiB each, with a first backward pass in no_sync.

    `scale` multiplies this rank's loss. Returns the sum of each averaged gradient.
    """
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16, bias=False) for _ in range(layers)])
    for layer in model:
        torch.nn.init.eye_(layer.weight)
    replica = AsyncDDP(model)
    with replica.no_sync():
        (replica(torch.ones(4, 16)).sum() * scale).backward()
    (replica(torch.ones(4, 16)).sum() * scale).backward()
    replica.finish()
    return [layer.weight.grad.sum().item() for layer in model]

# %% tags=["check-setup"]
def require_overlap(run, layers, per_bucket):
    """Require that a rank's all-reduces start early, and that none of them is waited for before all have started.

    Args:
        run: a step of two micro-batches, the first of them in no_sync; each layer has a gradient of 1 KiB.
        layers: the number of layers.
        per_bucket: the number of layers in each all-reduce.
    """
    # Each micro-batch has one matmul per layer in the forward pass, and two in the backward pass (but one in the
    # first layer, whose input needs no gradient).
    buckets, matmuls = layers // per_bucket, 3 * layers - 1
    for rank in range(len(run.values)):
        flops = run.records[rank].flops
        calls = [call for call in run.calls(rank, "all_reduce") if call.bytes >= 1024]
        check.that(len(calls) == buckets, f"Rank {rank} calls {len(calls)} all-reduces. {layers} gradients of 1 KiB "
                   f"fill {buckets} buckets of {per_bucket} KiB.")
        check.that(calls[0].started < flops, "All all-reduces start after the backward pass, so nothing overlaps yet. Whose "
                   "gradients are ready first, and does a hook start their all-reduce? Do the hooks count only outside no_sync?")
        for bucket, call in enumerate(calls):
            ready = (matmuls + min(layers + 2 * per_bucket * (bucket + 1), matmuls)) / (2 * matmuls)
            begun = call.started / flops
            check.that(begun < ready + 0.5 / matmuls,
                       f"All-reduce {bucket + 1} of {buckets} starts after {begun:.0%} of the step's FLOPs, but its "
                       f"gradients are ready after {ready:.0%}. Start it then.")
            check.that(call.finished is not None, f"Rank {rank} never calls wait() on the work handle of all-reduce "
                       f"{bucket + 1} of {buckets}. Keep the handle, and call its wait() in finish().")
            check.that(call.finished >= calls[-1].started, f"Rank {rank} waits for all-reduce {bucket + 1} of "
                       f"{buckets} after {call.finished / flops:.0%} of the step's FLOPs, before the last one has "
                       "started. Wait for all of them in finish().")

# %% check="async" points=4
# It averages, accumulates within no_sync, and survives an error there.
def require_no_early_calls(run, count):
    """Require `count` all-reduces on each rank, none of them within no_sync."""
    for rank in range(len(run.values)):
        called = len(run.calls(rank, "all_reduce"))
        check.that(called == count, f"Rank {rank} called all_reduce {called} times in two steps instead of {count}, "
                   "once per gradient and step. Inside no_sync, no rank may communicate.")


def require_nesting(run):
    """Require one all-reduce for each of the 6 gradients on each rank, before the nested no_sync blocks."""
    for rank in range(len(run.values)):
        called = len(run.calls(rank, "all_reduce"))
        check.that(called == 6, f"Rank {rank} called all_reduce {called} times instead of 6. Of two nested no_sync "
                   "blocks, neither the inner one nor its end may start communication.")


run, _ = check.ranks(
    accumulated_norms, ranks=4, rel=1e-4,
    cases=[{"kind": kind, "seed": check.by_rank([1, 2, 3, 4]), "samples": 4, "micro_batches": 2}
           for kind in ("plain", "frozen")],
    expected=[[[1.259003, 1.265055]] * 4, [[1.186222, 1.195427]] * 4],
    hints={"These are the norms of the sums over the ranks.": [[[5.036012, 5.06022]] * 4, []],
           "The ranks started with different parameters.": [[[0.6424801, 0.5941893]] * 4, []],
           "The ranks have different norms: nothing is all-reduced after no_sync has ended.":
               [[[1.254696, 1.284918], [1.284918, 1.285248], [1.285248, 1.272661], [1.272661, 1.259669]], []]})
require_no_early_calls(run, 12)
(run,) = check.ranks(
    interrupted, cases=[{"seed": check.by_rank([1, 2, 3, 4])}], ranks=4, rel=1e-4, expected=[[1.421969] * 4],
    hints={"An error ended the no_sync block, and DDP no longer all-reduces.": [[1.395343, 1.463266, 1.481662, 1.440933]]})
require_nesting(run)
# A step leaves nothing behind.
check.ranks(left_behind, cases=[{"seed": check.by_rank([1, 2])}], ranks=2, expected=[[0, 0]],
            hints={"The first step's gradients are still in memory after the second step, so something still references them. "
                   "What happens to the handles of earlier steps?": [[6, 6]]})
# It starts each all-reduce when the gradient is ready, and waits for all of them at the end.
(run,) = check.ranks(async_pass, ranks=2, expected=[[[3072.0] * 8] * 2],
                     cases=[{"layers": 8, "scale": check.by_rank([1.0, 2.0])}])
require_overlap(run, 8, 1)
### BEGIN HIDDEN TESTS
def norm_of_one_process(kind, seeds, samples, turn=0):
    """Return the norm of one model's gradient for the samples of all ranks."""
    model = replicas.Small(kind, seeds[0])
    x, y = (torch.cat(parts) for parts in zip(*(replicas.batch(seed + turn, samples) for seed in seeds), strict=True))
    (model(x) - y).square().mean().backward()
    return sum(one.grad.square().sum().item() for one in model.parameters() if one.grad is not None) ** 0.5


seeds = check.for_each_rank(check.between(0, 100))
drawn = check.draw(1, kind=["tied", "frozen", "plain"], seed=seeds, samples=[8], micro_batches=[2, 4])
(run,) = check.ranks(accumulated_norms, ranks=3, rel=1e-4, cases=drawn,
                     expected=lambda ranks, kind, seed, samples, micro_batches: [
                         [norm_of_one_process(kind, seed, samples, turn) for turn in (0, 1)]] * ranks)
require_no_early_calls(run, 2 * {"tied": 5, "frozen": 4, "plain": 6}[drawn[0]["kind"]])
(run,) = check.ranks(interrupted, ranks=2, rel=1e-4, cases=check.draw(1, seed=seeds), expected=lambda ranks, seed: [
    norm_of_one_process("plain", seed, 2)] * ranks)
require_nesting(run)
drawn = check.draw(1, layers=[6, 10], scale=check.for_each_rank(check.between(1, 9)))
(run,) = check.ranks(async_pass, ranks=3, cases=drawn, rel=1e-5, expected=lambda ranks, layers, scale: [
    [2048 * sum(scale) / ranks] * layers] * ranks)
require_overlap(run, drawn[0]["layers"], 1)
### END HIDDEN TESTS

# %% [raw] mutant="async" hint="started with different parameters"
# -        for parameter in module.parameters():
# -            dist.broadcast(parameter.detach(), src=0)

# %% [raw] mutant="async" hint="after no_sync has ended"
# -            self.synchronizes = before
# +            pass

# %% [raw] mutant="async" hint="An error ended the no_sync block"
# -        try:
# -            yield
# -        finally:
# -            self.synchronizes = before
# +        yield
# +        self.synchronizes = before

# %% [raw] mutant="async" hint="catch nothing"
# -        finally:
# -            self.synchronizes = before
# +        except Exception:
# +            pass
# +        self.synchronizes = before

# %% [raw] mutant="async" hint="neither the inner one nor its end"
# -        before, self.synchronizes = self.synchronizes, False
# +        self.synchronizes = not self.synchronizes
# -            self.synchronizes = before
# +            self.synchronizes = not self.synchronizes

# %% [raw] mutant="async" hint="neither the inner one nor its end"
# -            self.synchronizes = before
# +            self.synchronizes = True

# %% [raw] mutant="async" hint="Inside no_sync, no rank"
# -        before, self.synchronizes = self.synchronizes, False
# -        try:
# -            yield
# -        finally:
# -            self.synchronizes = before
# +        yield

# %% [raw] mutant="async" hint="sums over the ranks"
# -            gradient /= dist.get_world_size()

# %% [raw] mutant="async" hint="the handles of earlier steps"
# -        for gradient, work in self.started:
# -            work.wait()
# -            gradient /= dist.get_world_size()
# -        self.started = []
# +        for _, work in self.started:
# +            work.wait()
# +        for parameter in self.module.parameters():
# +            if parameter.grad is not None:
# +                parameter.grad /= dist.get_world_size()

# %% [raw] mutant="async" hint="hook on a tensor that"
# -            if parameter.requires_grad:
# -                parameter.register_post_accumulate_grad_hook(self._start)
# +            parameter.register_post_accumulate_grad_hook(self._start)

# %% [raw] mutant="async" hint="before the last one has started"
# -            self.started.append((parameter.grad, dist.all_reduce(parameter.grad, async_op=True)))
# +            dist.all_reduce(parameter.grad)
# +            parameter.grad /= dist.get_world_size()

# %% [raw] mutant="async" hint="nothing overlaps yet"
# -        if self.synchronizes:
# -            self.started.append((parameter.grad, dist.all_reduce(parameter.grad, async_op=True)))
# +        self.ready = getattr(self, "ready", [])
# +        if self.synchronizes:
# +            self.ready.append(parameter)
# -        for gradient, work in self.started:
# -            work.wait()
# +        for parameter in self.ready:
# +            gradient = parameter.grad
# +            dist.all_reduce(gradient)
# -        self.started = []
# +        self.ready = []

# %% [markdown]
# How much of the waiting do the hooks hide? Your two classes train the GPT-2 that this lab opened with, on the first job's
# network and on one that is four times as fast. What do you expect on each?

# %% tags=["explore"] short={"GPT2 + batch": "GPT2 + batch + ' --num-layers 2'"}
batch = "--micro-batch-size 1 --global-batch-size 4"
for link in (SLOW, FAST):
    for kind in (NaiveDDP, AsyncDDP):
        gained = gain.measure("v100:2", 2, link, GPT2 + batch, kind)
        print(f"{link:17} {kind.__name__}: {1000 * gained.seconds:4.0f} ms per step, "
              f"{result(f'{1000 * gained.exposed:.0f} ms')} of waiting (virtual)")

# %% [markdown]
# On both networks, they hide the same 40 ms or so: nothing hides communication once the backward pass is over, and
# GPT-2's largest gradient, that of the tied embedding, is ready only at its very end.
#
# **This is the end of the second sitting.** Buckets save latency, and hooks hide communication. Next, you combine them.

# %% [markdown]
# ## Both together
#
# **The third sitting starts here.** One all-reduce for each gradient pays the latency of every one of them. So combine the buckets of Exercise 4 with the
# hooks of Exercise 5. Two details make that harder than it sounds:
#
# - **When is a bucket ready?** When its last gradient is, whichever that is. A set or a counter per bucket knows.
# - **In which order do buckets start?** The first collective on one rank is matched with the first on the others, so
#   the order must be the same on all ranks. Fill the buckets with `parameters()` in *reverse*, which is usually the
#   order of the backward pass, and start bucket $i$ only after bucket $i-1$. (PyTorch begins with a single bucket,
#   records the order in the first iteration, and then builds its buckets.)

# %% [markdown]
# ### Exercise 6: DataParallel
#
# Write the second file of your trainer in three steps. Each has its own part in the check below, so run the check after
# each step, and then go on in the same cell.
#
# 1. **Buckets.** `__init__` makes the replicas equal and fills the buckets by the rule of Exercise 4, with the
#    parameters that require a gradient. `no_sync` is yours from Exercise 5. `finish()` all-reduces every bucket and
#    leaves the averages in `.grad`, even within a `no_sync` block: without `--overlap-grad-reduce`, `my_trainer.py` runs
#    the whole loop within `no_sync`. A parameter that was not used has the gradient `None`; for now, leave it out of its
#    bucket. Step 3 changes that. If `all_reduce` is given, such as your ring of Exercise 2, average with that function
#    instead of `dist.all_reduce`.
# 2. **Overlap.** Start a bucket's all-reduce, asynchronously, as soon as its last gradient is ready, except within
#    `no_sync()`. `finish()` waits. A given `all_reduce` blocks; call it at the same point. On 32 virtual H100s, at most 10% of a step may be exposed communication.
# 3. **Edge cases.** Frozen parameters and buffers, such as batch-norm statistics, are equal on all ranks, too. A bucket
#    has one dtype. And ranks may differ in what they use: if a parameter takes no part in a rank's forward pass, it
#    gets no gradient there, and no hook runs. Another rank may have used it, so in `finish()` every rank contributes
#    zeros for its missing gradients. A parameter that no rank has used may end with zeros or `None`.
#
# (PyTorch needs no `finish()`: its
# [reducer](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp) queues a callback for
# the end of the backward pass. It raises an error for unused parameters, unless you pass `find_unused_parameters=True`.
# It also divides each gradient by the number of ranks *before* the reduction, which keeps FP16 sums from overflowing,
# and by default rebroadcasts the buffers in every forward pass.)

# %% answer="ddp"
%%writefile mytrainer/ddp.py
"""Distributed data parallelism with buckets that are all-reduced during the backward pass."""

import contextlib

import torch
import torch.distributed as dist


class DataParallel(torch.nn.Module):
    """Replicate a module on all ranks, and average its gradients over them."""

    def __init__(self, module, bucket_mb=25.0, all_reduce=None):
        """Make the replicas equal, and assign the parameters to buckets.

        Args:
            module: the model; every rank passes in its own.
            bucket_mb: the maximum size of a bucket, in MiB (2**20 bytes).
            all_reduce: sums a tensor over the ranks in place; None means dist.all_reduce.
        """
        super().__init__()
        self.module, self.all_reduce = module, all_reduce
        ### BEGIN SOLUTION
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        self.synchronizes = True
        self.buckets, size = [], 0  # lists of parameters, in the order of the backward pass
        for parameter in reversed(list(module.parameters())):
            if not parameter.requires_grad:
                continue
            dtypes = {other.dtype for other in self.buckets[-1]} if self.buckets else set()
            if dtypes != {parameter.dtype} or size + parameter.nbytes > bucket_mb * 2**20:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += parameter.nbytes
            parameter.register_post_accumulate_grad_hook(self._ready)
        self._reset()
        ### END SOLUTION

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    @contextlib.contextmanager
    def no_sync(self):
        """Accumulate gradients locally within a `with` block."""
        ### BEGIN SOLUTION
        before, self.synchronizes = self.synchronizes, False
        try:
            yield
        finally:
            self.synchronizes = before
        ### END SOLUTION

    def finish(self):
        """Wait until every gradient is the mean over all ranks. Call it after the last backward."""
        ### BEGIN SOLUTION
        while len(self.started) < len(self.buckets):
            self._start()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            if work is not None:
                work.wait()
            flat /= dist.get_world_size()
            parts = flat.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.copy_(part.view_as(parameter))
        self._reset()

    def _reset(self):
        self.waiting = [set(bucket) for bucket in self.buckets]
        self.started = []  # a flat tensor and its work for each bucket that is under way

    def _ready(self, parameter):
        """Note that a gradient is complete, and start all buckets whose turn it is."""
        if not self.synchronizes:
            return
        for waiting in self.waiting:
            waiting.discard(parameter)
        while len(self.started) < len(self.buckets) and not self.waiting[len(self.started)]:
            self._start()

    def _start(self):
        """Start the all-reduce of the next bucket."""
        bucket = self.buckets[len(self.started)]
        flat = torch.cat([torch.zeros_like(parameter).flatten() if parameter.grad is None
                          else parameter.grad.flatten() for parameter in bucket])
        if self.all_reduce is None:
            work = dist.all_reduce(flat, async_op=True)
        else:
            self.all_reduce(flat)
            work = None  # it is complete
        self.started.append((flat, work))
        ### END SOLUTION

# %% tags=["driver"]
def ddp_losses(kind, seed, samples, steps, micro_batches=1):
    """Train with DataParallel; return the loss on this rank's samples after each step."""
    from mytrainer.ddp import DataParallel

    from lablib import replicas

    replica = DataParallel(replicas.Small(kind, seed), bucket_mb=1e-4)
    optimizer = torch.optim.SGD(replica.parameters(), lr=replicas.RATE)
    x, y = replicas.batch(seed, samples)
    parts = list(zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with replica.no_sync():
            for part in parts[:-1]:
                (replicas.loss(replica, *part) / micro_batches).backward()
        (replicas.loss(replica, *parts[-1]) / micro_batches).backward()
        replica.finish()
        optimizer.step()
        losses.append(replicas.loss(replica, x, y).item())
    return losses


def own_all_reduce(kind, seed, samples):
    """Average gradients with the ring of collectives.py; return this rank's gradient norm."""
    from mytrainer.collectives import all_reduce
    from mytrainer.ddp import DataParallel

    from lablib import replicas

    replica = DataParallel(replicas.Small(kind, seed), 1e-4, all_reduce)
    with replica.no_sync():  # as in the loop without --overlap-grad-reduce
        with replica.no_sync():
            (replicas.loss(replica, *replicas.batch(seed, samples)) / 2).backward()
        (replicas.loss(replica, *replicas.batch(seed, samples)) / 2).backward()
        dist.barrier()
        replica.finish()
    return replicas.gradient_norm(replica)


def one_backward_pass(layers, bucket_mb, scale, ring=False):
    """Run one step of layers of 1 KiB each, with a first backward pass in no_sync.

    `scale` multiplies this rank's loss. With `ring`, gradients are averaged with the ring of
    collectives.py. Returns the sum of each averaged gradient.
    """
    from mytrainer.collectives import all_reduce
    from mytrainer.ddp import DataParallel

    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16, bias=False) for _ in range(layers)])
    for layer in model:
        torch.nn.init.eye_(layer.weight)
    replica = DataParallel(model, bucket_mb, all_reduce if ring else None)
    with replica.no_sync():
        (replica(torch.ones(4, 16)).sum() * scale).backward()
    (replica(torch.ones(4, 16)).sum() * scale).backward()
    replica.finish()
    return [layer.weight.grad.sum().item() for layer in model]


def partly_used(bucket_mb, both, scale):
    """Run one step in which a rank uses the second parameter only if it has both=True; return the
    sums of the gradients. `scale` multiplies this rank's input."""
    from mytrainer.ddp import DataParallel

    class Branch(torch.nn.Module):
        """Two layers, the second of which some ranks skip, [b, 4] to [b, 4]."""

        def __init__(self):
            super().__init__()
            self.always, self.sometimes = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
            for parameter in self.parameters():
                torch.nn.init.eye_(parameter)

        def forward(self, x, both):
            return self.sometimes(self.always(x)) if both else self.always(x)

    replica = DataParallel(Branch(), bucket_mb)
    replica(scale * torch.ones(1, 4), both).sum().backward()
    replica.finish()
    return [0.0 if parameter.grad is None else parameter.grad.sum().item()
            for parameter in replica.parameters()]


def two_orders(bucket_mb, swapped, frozen, scale):
    """Run one step in which the gradients become ready in a different order where swapped=True.

    Returns the sum of each averaged gradient. `frozen` is this rank's frozen parameter, and `scale`
    multiplies its input.
    """
    from mytrainer.ddp import DataParallel

    class Branches(torch.nn.Module):
        """Two parallel layers; a buffer and a frozen parameter scale the second one's input.

        [b, 4] to [b, 4].
        """

        def __init__(self):
            super().__init__()
            self.one, self.other = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
            self.register_buffer("buffer", torch.tensor(5 * frozen + 5))
            self.frozen = torch.nn.Parameter(torch.tensor(frozen), requires_grad=False)

        def forward(self, x):
            paths = [lambda: self.one(x), lambda: self.other(self.frozen * self.buffer * x)]
            return sum(path() for path in (reversed(paths) if swapped else paths))

    replica = DataParallel(Branches(), bucket_mb)
    replica(scale * torch.ones(1, 4)).sum().backward()
    replica.finish()
    return [parameter.grad.sum().item() for parameter in replica.parameters() if parameter.requires_grad]


def two_dtypes(scale):
    """Run one step of a layer in float32 and one in float64; return the sums of the averaged gradients."""
    from mytrainer.ddp import DataParallel

    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False).double())
    for parameter in model.parameters():
        torch.nn.init.eye_(parameter)
    replica = DataParallel(model)
    x = scale * torch.ones(1, 4)
    (model[0](x).sum() + model[1](x.double()).sum()).backward()
    replica.finish()
    return [parameter.grad.sum().item() for parameter in model.parameters()]


def ddp_steps(width, layers, tokens, micro_batches, bucket_mb, steps, after_step=lambda: None):
    """Run steps of mixed-precision training on a GPU, `tokens` tokens per rank in each.

    Call `after_step` after each of them.
    """
    from mytrainer.ddp import DataParallel

    model = DataParallel(torch.nn.Sequential(*[
        torch.nn.Linear(width, width, bias=False, device="cuda") for _ in range(layers)]), bucket_mb)
    for _ in range(steps):
        model.zero_grad()
        for number in range(micro_batches):
            with contextlib.nullcontext() if number == micro_batches - 1 else model.no_sync():
                x = torch.randn(tokens // micro_batches, width, device="cuda")
                with torch.autocast("cuda", torch.bfloat16):
                    loss = model(x).square().mean()
                loss.backward()
        model.finish()
        after_step()

# %% tags=["check-setup"]
# What a step on modeled GPUs is compared with: the same passes without all-reduces, and PyTorch's own replica.
import contextlib


def training(model, width, tokens, micro_batches, steps, paused):
    """Run steps of mixed-precision training; inside `paused()`, a backward pass reduces no gradient."""
    import torch

    for number in range(steps * micro_batches):
        if number % micro_batches == 0:
            model.zero_grad(set_to_none=False)
        with contextlib.nullcontext() if number % micro_batches == micro_batches - 1 else paused():
            x = torch.randn(tokens // micro_batches, width, device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()


def linear_layers(width, layers):
    import torch

    return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False, device="cuda") for _ in range(layers)])


def without_reduction(width, layers, tokens, micro_batches, steps):
    """Broadcast a model from rank 0, and run steps in which every rank trains alone."""
    import torch.distributed as dist

    model = linear_layers(width, layers)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    training(model, width, tokens, micro_batches, steps, contextlib.nullcontext)


def reduced_by_torch(width, layers, tokens, micro_batches, bucket_mb, steps):
    """Run the steps with PyTorch's DistributedDataParallel."""
    import torch
    import torch.distributed as dist

    model = linear_layers(width, layers)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_mb, init_sync=False)
    training(model, width, tokens, micro_batches, steps, model.no_sync)

# %% check="ddp" points=10
def require_sent_once(run, kind, steps):
    """Require that every rank all-reduces each gradient once per step.

    A no_sync that communicates all the same has the right losses, but sends every gradient twice.
    """
    gradients = 4 * {"plain": 126, "tied": 90, "frozen": 84, "unused": 130}[kind]
    for rank in range(len(run.values)):
        sent = run.bytes(rank, "all_reduce")
        check.that(steps * (gradients - 16) <= sent < 1.5 * steps * gradients,
                   f"The gradients have {gradients} bytes, and rank {rank} all-reduces {sent:,} bytes in {steps} "
                   "steps. Send each gradient once per step. Inside no_sync, no rank may communicate.")


with check.parts():
    with check.part(3, "averages in buckets, and trains like one process"):
        runs = check.ranks(
            ddp_losses, ranks=4, rel=1e-4,
            cases=[{"kind": "tied", "seed": check.by_rank([1, 2, 3, 4]), "samples": 2, "steps": 2},
                   {"kind": "unused", "seed": check.by_rank([1, 2, 3, 4]), "samples": 4, "steps": 2, "micro_batches": 2}],
            expected=[[[1.04959, 0.798069], [0.9816424, 0.7362476], [0.9421194, 0.7012303], [0.9512856, 0.7192621]],
                      [[0.7529156, 0.6708466], [0.7119283, 0.6364648], [0.682113, 0.6148487], [0.6777668, 0.6163728]]],
            hints={"These are the losses with the sum of the gradients.":
                       [[[0.6995673, 0.5137966], [0.6731036, 0.5020774], [0.6564724, 0.5445595], [0.6660199, 0.6271107]],
                        [[0.5622179, 0.529753], [0.5442778, 0.5085326], [0.5396544, 0.493919], [0.5517756, 0.4955842]]],
                   "The ranks started with different parameters.":
                       [[[1.299101, 1.076729], [0.9994145, 0.7889958], [0.668718, 0.5862226], [0.6585999, 0.6555392]], []],
                   "The first step is right, and the second is wrong: reset the state of each step, such as which gradients "
                   "are ready.":
                       [[[1.04959, 0.9902606], [0.9816424, 0.9234011], [0.9421194, 0.8844196], [0.9512856, 0.8938026]], []],
                   "A bucket was all-reduced before the last micro-batch: within no_sync(), hooks must not count a gradient "
                   "as ready.":
                       [[], [[0.8375064, 0.7972061], [0.7875993, 0.7493224], [0.7494769, 0.716159], [0.7406533, 0.7122152]]]})

        for run, kind in zip(runs, ("tied", "unused"), strict=True):
            require_sent_once(run, kind, 2)
        # With the ring of collectives.py, no bucket goes through dist.all_reduce.
        (run,) = check.ranks(own_all_reduce, ranks=3, rel=1e-4,
                             cases=[{"kind": "tied", "seed": check.by_rank([1, 2, 3]), "samples": 2}],
                             expected=[[1.994233] * 3],
                             hints={"These are the ranks' own gradients: finish() must average within no_sync, too.":
                                        [[2.042007, 2.000992, 1.996998]]})
        for rank in range(3):
            used = {call.op for call in run.calls(rank) if call.bytes > 0} - {"broadcast"}
            check.that(used == {"send", "recv"}, f"Rank {rank} averages with {', '.join(sorted(used))}, and not with the "
                       "function all_reduce that was passed in.")
            check.that(run.calls(rank, "send")[0].order > run.calls(rank, "barrier")[0].order,
                       f"Rank {rank} averages before finish(), although both backward passes are within no_sync. There, "
                       "only finish() communicates.")
        ### BEGIN HIDDEN TESTS
        drawn = check.draw(2, kind=["plain", "tied", "frozen", "unused"], seed=check.for_each_rank(check.between(0, 100)),
                           samples=[4, 8], steps=[2, 3], micro_batches=[1, 2])
        for ranks, case in zip((1, 3), drawn, strict=True):
            (run,) = check.ranks(ddp_losses, rel=1e-4, ranks=ranks, cases=[case],
                                 expected=lambda ranks, micro_batches, **given: losses_of_one_process(*given.values()))
            if ranks > 1:
                require_sent_once(run, case["kind"], case["steps"])
        ### END HIDDEN TESTS
    with check.part(2, "starts each bucket when its last gradient is ready"):
        (run,) = check.ranks(one_backward_pass, ranks=2, expected=[[[3072.0] * 8] * 2],
                             cases=[{"layers": 8, "bucket_mb": 0.002, "scale": check.by_rank([1.0, 2.0])}])
        require_overlap(run, 8, 2)
        (run,) = check.ranks(one_backward_pass, ranks=2, expected=[[[3072.0] * 8] * 2],
                             cases=[{"layers": 8, "bucket_mb": 0.002, "scale": check.by_rank([1.0, 2.0]), "ring": True}])
        for rank in (0, 1):
            sends = run.calls(rank, "send")
            check.that(len(sends) > 0, f"Outside no_sync, rank {rank} never calls the function all_reduce that was passed in. "
                       "Call it where you would start dist.all_reduce.")
            check.that(sends[0].started < run.records[rank].flops, f"Rank {rank} calls the given all_reduce only after the "
                       "backward pass. Call it where you would start dist.all_reduce.")
        ### BEGIN HIDDEN TESTS
        scale = check.for_each_rank(check.between(1, 9))
        drawn = check.draw(1, layers=[6, 10], bucket_mb=[0.002], scale=scale)
        (run,) = check.ranks(one_backward_pass, ranks=3, cases=drawn, rel=1e-5,
                             expected=lambda ranks, layers, bucket_mb, scale: [[2048 * sum(scale) / ranks] * layers] * ranks)
        require_overlap(run, drawn[0]["layers"], 2)
        ### END HIDDEN TESTS
    with check.part(2, "exposes at most 10% of a step on 32 virtual H100s"):
        # Compared with the same passes without all-reduces.
        size = {"width": 4096, "layers": 16, "tokens": 8192, "micro_batches": 1}
        begun, without = [check.baseline(without_reduction, {**size, "steps": steps}, "h100:8", nodes=4, present=[0])
                          for steps in (0, 2)]
        cost = check.gpus(ddp_steps, {**size, "bucket_mb": 130, "steps": 2}, "h100:8", nodes=4, present=[0],
                          least={"flops": 2 * 47 * 2 * 8192 * 4096**2, "dtype": "bf16",
                                 "communicated": 3 * 16 * 4 * 4096**2, "among": 32})
        took, ideal = cost.milliseconds - begun.milliseconds, without.milliseconds - begun.milliseconds
        waiting = 1 - ideal / took
        check.pass_mark(waiting, f"Two steps take {took:.1f} ms, and {ideal:.1f} ms without all-reduces: {waiting:.0%} of the "
                        "time is exposed communication. Start each all-reduce early, and wait in finish().",
                        error=cost.error, below=0.1)
    with check.part(3, "handles unused and frozen parameters, buffers, and other orders"):
        check.ranks(partly_used, cases=[{"bucket_mb": 25, "both": check.by_rank([True, False]), "scale": 1.0}], ranks=2,
                    expected=[[[16.0, 8.0]] * 2],
                    hints={"Only rank 0 used the second parameter, but every rank needs its averaged "
                           "gradient.": [[[16.0, 8.0], [16.0, 0.0]]]})
        (run,) = check.ranks(two_dtypes, ranks=2, cases=[{"scale": check.by_rank([1.0, 3.0])}],
                             expected=[[[32.0, 32.0]] * 2])
        for rank in (0, 1):
            used = sorted(call.bytes for call in run.calls(rank, "all_reduce"))
            check.that(used == [64, 128], f"A gradient has 64 bytes in float32, and another one 128 in float64. Your "
                       f"all-reduces have {used} bytes. A bucket has one dtype.")
        check.ranks(two_orders, cases=[{"bucket_mb": 1e-5, "swapped": check.by_rank([False, True]),
                                        "frozen": check.by_rank([1.0, 3.0]), "scale": 1.0}],
                    ranks=2, expected=[[[16.0, 160.0]] * 2],
                    hints={"The gradients become ready in a different order on each rank, and the ranks "
                           "start their buckets in that order, too.": [[[88.0, 88.0]] * 2],
                           "The ranks compute with different frozen parameters.": [[[16.0, 320.0]] * 2],
                           "The ranks compute with different buffers.": [[[16.0, 240.0]] * 2]})
        ### BEGIN HIDDEN TESTS
        scale = check.for_each_rank(check.between(1, 9))
        check.ranks(partly_used, ranks=3, rel=1e-5,
                    cases=check.draw(1, bucket_mb=[25], both=check.for_each_rank([True, False]), scale=scale),
                    expected=lambda ranks, bucket_mb, both, scale: [
                        [16 * sum(scale) / ranks, 16 * sum(one for one, used in zip(scale, both, strict=True) if used) / ranks]
                        ] * ranks)
        check.ranks(two_orders, ranks=3, rel=1e-5,
                    cases=check.draw(1, bucket_mb=[1e-5], swapped=check.for_each_rank([True, False]),
                                     frozen=check.for_each_rank(check.between(1, 3)), scale=scale),
                    expected=lambda ranks, bucket_mb, swapped, frozen, scale: [
                        [16 * sum(scale) / ranks * factor for factor in (1, frozen[0] * (5 * frozen[0] + 5))]] * ranks)
        ### END HIDDEN TESTS

# %% [raw] mutant="ddp" hint="sum of the gradients"
# -            flat /= dist.get_world_size()

# %% [raw] mutant="ddp" hint="started with different parameters"
# -        for tensor in [*module.parameters(), *module.buffers()]:
# -            dist.broadcast(tensor.detach(), src=0)

# %% [raw] mutant="ddp" hint="ValueError"
# -        while len(self.started) < len(self.buckets):
# -            self._start()

# %% [raw] mutant="ddp" hint="only after the backward pass"
# -        if not self.synchronizes:
# +        if not self.synchronizes or self.all_reduce is not None:

# %% [raw] mutant="ddp" hint="never calls the function all_reduce"
# -        if self.all_reduce is None:
# +        if self.all_reduce is None or self.synchronizes:

# %% [raw] mutant="ddp" hint="wait in finish()"
# -            work = dist.all_reduce(flat, async_op=True)
# +            work = dist.all_reduce(flat, async_op=True)
# +            work.wait()

# %% [raw] mutant="ddp" hint="nothing overlaps yet"
# -        self.waiting = [set(bucket) for bucket in self.buckets]
# +        self.waiting = [len(bucket) for bucket in self.buckets]
# -        if not self.synchronizes:
# -            return
# -        for waiting in self.waiting:
# -            waiting.discard(parameter)
# +        for number, bucket in enumerate(self.buckets):
# +            self.waiting[number] -= any(parameter is other for other in bucket)
# +        if not self.synchronizes:
# +            return

# %% [raw] mutant="ddp" hint="nothing overlaps yet"
# -        for parameter in reversed(list(module.parameters())):
# +        for parameter in module.parameters():

# %% [raw] mutant="ddp" hint="Start it then"
# -        while len(self.started) < len(self.buckets) and not self.waiting[len(self.started)]:
# +        while len(self.started) + 1 < len(self.buckets) and not self.waiting[len(self.started) + 1]:

# %% [raw] mutant="ddp" hint="Inside no_sync, no rank"
# -        before, self.synchronizes = self.synchronizes, False
# -        try:
# -            yield
# -        finally:
# -            self.synchronizes = before
# +        yield
# +        self.finish()

# %% [raw] mutant="ddp" hint="reset the state of each step"
# -                parameter.grad.copy_(part.view_as(parameter))
# -        self._reset()
# +                parameter.grad.copy_(part.view_as(parameter))
# +        self.started = []

# %% [raw] mutant="ddp" hint="hooks must not count a gradient"
# -        if not self.synchronizes:
# -            return
# -        for waiting in self.waiting:
# +        for waiting in self.waiting:

# %% [raw] mutant="ddp" hint="Only rank 0 used the second parameter"
# -                if parameter.grad is None:
# -                    parameter.grad = torch.zeros_like(parameter)
# -                parameter.grad.copy_(part.view_as(parameter))
# +                if parameter.grad is not None:
# +                    parameter.grad.copy_(part.view_as(parameter))

# %% [raw] mutant="ddp" hint="start their buckets in that order"
# -        while len(self.started) < len(self.buckets):
# -            self._start()
# -        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
# +        for number in set(range(len(self.buckets))) - set(self.started):
# +            self._start(number)
# +        for number, (flat, work) in self.started.items():
# +            bucket = self.buckets[number]
# -        self.started = []  # a flat tensor and its work for each bucket that is under way
# +        self.started = {}
# -        while len(self.started) < len(self.buckets) and not self.waiting[len(self.started)]:
# -            self._start()
# +        for number, waiting in enumerate(self.waiting):
# +            if not waiting and number not in self.started:
# +                self._start(number)
# -    def _start(self):
# +    def _start(self, number):
# -        bucket = self.buckets[len(self.started)]
# +        bucket = self.buckets[number]
# -        self.started.append((flat, work))
# +        self.started[number] = flat, work

# %% [raw] mutant="ddp" hint="A bucket has one dtype"
# -            if dtypes != {parameter.dtype} or size + parameter.nbytes > bucket_mb * 2**20:
# +            if not dtypes or size + parameter.nbytes > bucket_mb * 2**20:

# %% [raw] mutant="ddp" hint="must average within no_sync"
# -        while len(self.started) < len(self.buckets):
# -            self._start()
# -        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
# +        if not self.synchronizes:
# +            return
# +        while len(self.started) < len(self.buckets):
# +            self._start()
# +        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):

# %% [raw] mutant="ddp" hint="There, only finish() communicates"
# -            self.synchronizes = before
# +            self.synchronizes = True

# %% [raw] mutant="ddp" hint="not with the function all_reduce"
# -        if self.all_reduce is None:
# +        if True:

# %% [raw] mutant="ddp" hint="different buffers"
# -        for tensor in [*module.parameters(), *module.buffers()]:
# +        for tensor in module.parameters():

# %% [raw] mutant="ddp" hint="gradients of 1 KiB fill"
# -            self.buckets[-1].append(parameter)
# -            size += parameter.nbytes
# +            self.buckets[-1].append(parameter)

# %% [raw] mutant="ddp" hint="different frozen parameters"
# -        for tensor in [*module.parameters(), *module.buffers()]:
# -            dist.broadcast(tensor.detach(), src=0)
# +        for tensor in [*module.parameters(), *module.buffers()]:
# +            if tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter):
# +                dist.broadcast(tensor.detach(), src=0)

# %% [raw] mutant="ddp" hint="it sleeps for"
# -        self.synchronizes = True
# +        self.synchronizes = True
# +        import time
# +        time.sleep(1e-3 * dist.get_world_size())

# %% [raw] mutant="ddp" hint="DistributedDataParallel is not available"
# %%writefile mytrainer/ddp.py
# import torch
# from torch.nn.parallel import DistributedDataParallel
#
#
# class DataParallel(torch.nn.Module):
#     def __init__(self, module, bucket_mb=25.0, all_reduce=None):
#         super().__init__()
#         self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_mb)
#         self.no_sync = self.ddp.no_sync
#
#     def forward(self, *inputs, **keywords):
#         return self.ddp(*inputs, **keywords)
#
#     def finish(self):
#         pass

# %% [markdown]
# ### Compare with PyTorch's DDP
#
# The figure shows when each all-reduce of rank 0 of four real ranks began and when it was waited for; its axis is the
# share of the step's FLOPs that the rank had done. Both have buckets of the same size, up to PyTorch's rule that a
# bucket closes only when it has reached its cap. (PyTorch waits in C++, where this lab cannot record it, so its bars
# extend to the end.)

# %% tags=["explore"]
import time


def wrapped(kind, model, bucket_mb):
    """Wrap a model in one of the kinds of DDP; return the wrapper and a function that finishes its backward pass."""
    if kind.startswith("torch's DDP"):
        made = torch.nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view="views" in kind)
        return made, lambda: None
    if kind == "yours":
        from mytrainer.ddp import DataParallel

        made = DataParallel(model, bucket_mb)
        return made, made.finish
    return model, lambda: average_in_buckets(list(model.parameters()), bucket_mb)


def traced_step(kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])
    replica, finish = wrapped(kind, model, 0.2)  # MiB: three weights of 64 KiB and their biases
    for _ in range(2):
        replica.zero_grad()
        replica(torch.randn(64, 128)).square().mean().backward()
        finish()


KINDS = ("no overlap", "yours", "torch's DDP")
collectives.timeline({kind: record_ranks(traced_step, 4, kind)[0] for kind in KINDS}, steps=2)

# %% [markdown]
# Now 32 virtual H100s, with a model of 268 million parameters. There, `time.perf_counter()` returns virtual time.

# %% tags=["explore"]
def virtual_step(kind):
    """Return the milliseconds of a step, after a first one."""
    dist.init_process_group("nccl")
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False, device="cuda")
                                  for _ in range(16)])
    # Two gradients of 64 MiB in each bucket. PyTorch closes one as soon as it has reached the cap.
    replica, finish = wrapped(kind, model, 128)
    for _ in range(2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        replica.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = replica(torch.randn(8192, 4096, device="cuda")).square().mean()
        loss.backward()
        finish()
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin)


for kind in (*KINDS, "torch's DDP, views"):
    (rank,) = virtualgpu.run(lambda kind=kind: virtual_step(kind), "h100:8", 4, present=[0])
    print(f"{kind:19} {result(f'{rank.value:.1f} ms')} per step (virtual)")

# %% [markdown]
# With equal buckets, yours hides communication about as well as PyTorch's. With `gradient_as_bucket_view=True`, in the
# last row, each `.grad` is a view into its bucket, which saves the copies and a buffer as large as the gradients.
#
# **This is the end of the third sitting.** You have built the core of every data-parallel trainer. What it still lacks
# is a trainer.

# %% [markdown]
# ## A program that trains
#
# **The fourth sitting starts here.** A real training job is one program that torchrun starts once per GPU. It starts
# without a process group, a device, or a batch. It has to find out which rank it is, join the others, select its part
# of the data, and repeat one step a million times. Now you write that program. The model, the tokenizer, and the
# samples are the course's, and so is `code/my_trainer.py`, which parses the flags and calls your files.
#
# torchrun tells each rank who it is through its environment:
#
# | variable | meaning | 2 nodes with 4 GPUs each |
# |---|---|---|
# | `RANK` | number among all ranks | 0 to 7 |
# | `LOCAL_RANK` | number among the ranks of the same node | 0 to 3 on each node |
# | `WORLD_SIZE` | number of ranks | 8 |
# | `MASTER_ADDR`, `MASTER_PORT` | address where the ranks rendezvous | the first node's |
#
# `dist.init_process_group(backend)` reads them and returns when all ranks have joined. `nccl` needs GPUs, and `gloo`
# works on CPUs.

# %% [markdown]
# ### Exercise 7: join the job
#
# Write `mytrainer/launch.py` with two functions:
#
# - `connect()` joins the other ranks and returns this rank's `torch.device`: a GPU of its own if the node has GPUs
#   (`torch.cuda.is_available()`), otherwise the CPU. If it is a GPU, make it the current one with
#   `torch.cuda.set_device`, because NCCL and `device="cuda"` use the current device;
# - `own_samples(consumed, batch, rank, ranks)` returns the indices of the samples that a rank trains on in the next
#   step. The global batch consists of the samples from `consumed` to `consumed + batch - 1`; `batch` is divisible by
#   `ranks`. Over all ranks, each sample appears once, and every rank has equally many.

# %% answer="launch"
%%writefile mytrainer/launch.py
"""Join the other ranks of a job, and choose this rank's part of the data."""

import os

import torch
import torch.distributed as dist


def connect():
    """Join the other ranks, and return this rank's device."""
    ### BEGIN SOLUTION
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), "gloo"
    dist.init_process_group(backend)
    return device
    ### END SOLUTION


def own_samples(consumed, batch, rank, ranks):
    """Return the indices of this rank's samples in the next step, as a list.

    Args:
        consumed: samples of all steps before.
        batch: samples per step, of all ranks together.
        rank: this rank.
        ranks: the number of ranks.
    """
    ### BEGIN SOLUTION
    return list(range(consumed + rank, consumed + batch, ranks))
    ### END SOLUTION

# %% tags=["driver"]
def joined(value):
    """Leave the process group, join again with connect(), and all-reduce this rank's value."""
    from mytrainer.launch import connect

    dist.destroy_process_group()
    device = connect()
    if not isinstance(device, torch.device):
        raise TypeError(f"connect() must return a torch.device, not {device!r}")
    tensor = torch.tensor([value], device=device)
    dist.all_reduce(tensor)
    return [str(device), tensor.item()]


def joined_on_gpus():
    """Leave the process group, join again, and all-reduce 1 MiB on this rank's own GPU."""
    from mytrainer.launch import connect

    from lablib import replicas

    dist.destroy_process_group()
    device = connect()
    if device.index is None:
        raise ValueError(f"connect() must return this rank's GPU with its number, not {device!r}")
    replicas.require_current_gpu(device)
    dist.all_reduce(torch.empty(2**18, device=device))


def shares(consumed, batch):
    """Return how many samples this rank has in a step, and how many ranks have each sample, from sample 0 on."""
    from mytrainer.launch import own_samples

    own = own_samples(consumed, batch, dist.get_rank(), dist.get_world_size())
    counts = torch.zeros(consumed + batch)
    for number in own:
        counts[number] += 1
    dist.all_reduce(counts)
    return [len(own), counts.int()]

# %% check="launch" points=4
# Every rank joins, on the CPU.
check.ranks(joined, ranks=4, cases=[{"value": check.by_rank([1.0, 20.0, 300.0, 4000.0])}],
            expected=[[["cpu", 4321.0]] * 4])
# The ranks share the samples of a step.
check.ranks(
    shares, ranks=4, cases=[{"consumed": 8, "batch": 8}], expected=[[[2, [0] * 8 + [1] * 8]] * 4],
    hints={"These are the samples of the first step. Where does the next one begin?": [[[2, [1] * 8 + [0] * 8]] * 4],
           "All ranks train on the same samples.": [[[2, [0] * 8 + [4] * 2 + [0] * 6]] * 4],
           "Every rank trains on the whole batch.": [[[8, [0] * 8 + [4] * 8]] * 4],
           "One sample per rank is too few: a rank takes part in the whole batch, and its share may have several samples.":
               [[[1, [0] * 8 + [1] * 4 + [0] * 4]] * 4]})
# On two nodes with two virtual GPUs each, every rank has a GPU of its own.
check.gpus(joined_on_gpus, {}, "h100:2", nodes=2, least={"communicated": 2**20, "among": 4})
### BEGIN HIDDEN TESTS
(run,) = check.ranks(joined, ranks=3, cases=check.draw(1, value=check.for_each_rank(check.between(1, 9))),
                     rel=1e-5, expected=lambda ranks, value: [["cpu", sum(value)]] * ranks)
for ranks, case in zip((2, 5), check.draw(2, steps=range(7), each=range(1, 9)), strict=True):
    batch, before = ranks * case["each"], case["steps"] * ranks * case["each"]
    check.ranks(shares, ranks=ranks, cases=[{"consumed": before, "batch": batch}],
                expected=lambda ranks, consumed, batch: [[batch // ranks, [0] * consumed + [1] * batch]] * ranks)
### END HIDDEN TESTS

# %% [raw] mutant="launch" hint="invalid device ordinal"
# -        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
# +        device, backend = torch.device("cuda", int(os.environ["RANK"])), "nccl"

# %% [raw] mutant="launch" hint="Duplicate GPU detected"
# -        torch.cuda.set_device(device)

# %% [raw] mutant="launch" hint="no GPUs found"
# -        device, backend = torch.device("cpu"), "gloo"
# +        device, backend = torch.device("cpu"), "nccl"

# %% [raw] mutant="launch" hint="samples of the first step"
# -    return list(range(consumed + rank, consumed + batch, ranks))
# +    return list(range(rank, batch, ranks))

# %% [raw] mutant="launch" hint="train on the same samples"
# -    return list(range(consumed + rank, consumed + batch, ranks))
# +    return list(range(consumed, consumed + batch // ranks))

# %% [raw] mutant="launch" hint="Every rank trains on the whole batch"
# -    return list(range(consumed + rank, consumed + batch, ranks))
# +    return list(range(consumed, consumed + batch))

# %% [raw] mutant="launch" hint="One sample per rank is too few"
# -    return list(range(consumed + rank, consumed + batch, ranks))
# +    return [consumed + rank]

# %% [raw] mutant="launch" hint="must return a torch.device"
# -    return device
# +    return str(device)

# %% [raw] mutant="launch" hint="with its number"
# -    return device
# +    return torch.device(device.type)

# %% [raw] mutant="launch" hint="process group has not been initialized"
# -    dist.init_process_group(backend)
# +    del backend

# %% [markdown]
# ## The loop
#
# One step of data-parallel training, from the samples to the log:
#
# 1. Set the learning rate in each of `optimizer.param_groups`.
# 2. Clear the gradients, and accumulate those of the rank's micro-batches. Only the last backward pass may communicate.
# 3. Average the gradients: `model.finish()`.
# 4. **Clip** them: if the norm of all gradients together exceeds `args.clip_grad`, scale them down to it
#    ([Pascanu et al., 2013](https://arxiv.org/abs/1211.5063)), with `torch.nn.utils.clip_grad_norm_`, which returns the
#    norm before clipping. The flag is 0 for no clipping.
# 5. Let the optimizer update the parameters.
# 6. Log the loss of the *global* batch and the gradient norm.
#
# The order matters. What would clipping before step 3 do to the norm on each rank?

# %% [markdown]
# ### Exercise 8: the training loop
#
# Write `mytrainer/train.py` with `train`, which takes `args.train_iters` steps. It calls:
#
# - `batches(consumed)`: a list of this rank's micro-batches of the step that follows `consumed` samples. Each step
#   consumes `args.global_batch_size` samples, of all ranks together;
# - `model(micro_batch)`: the mean loss of one micro-batch, as a tensor of one element. `model` is your `DataParallel`,
#   with `no_sync()` and `finish()`;
# - `learning_rate(consumed)`: the rate for the step that follows `consumed` samples;
# - `log(iteration, loss, norm)`: on every rank and after every step, counted from 1. It prints a line in Megatron-LM's
#   format. Pass tensors, and never call `.item()`: on a GPU, it makes the CPU wait for all work that has been launched.

# %% answer="loop"
%%writefile mytrainer/train.py
"""The training loop."""

import contextlib
import math

import torch
import torch.distributed as dist


def train(model, optimizer, batches, learning_rate, log, args):
    """Train for args.train_iters steps.

    Args:
        model: DataParallel; maps a micro-batch to its mean loss, a tensor of one element.
        optimizer: updates the model's parameters.
        batches: returns this rank's micro-batches of a step, given the samples consumed before.
        learning_rate: returns the rate of a step, given the samples consumed before.
        log: takes the number of a step, the loss of the global batch, and the gradient norm.
        args: has train_iters, global_batch_size, and clip_grad (0: gradients are not clipped).
    """
    ### BEGIN SOLUTION
    consumed = 0
    for iteration in range(1, args.train_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(consumed)
        optimizer.zero_grad()
        micro_batches, losses = batches(consumed), []
        for number, batch in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(batch) / len(micro_batches)
                loss.backward()
            losses.append(loss.detach())
        model.finish()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
        optimizer.step()
        consumed += args.global_batch_size
        loss = torch.stack(losses).sum()
        dist.all_reduce(loss)
        log(iteration, loss / dist.get_world_size(), norm)
    ### END SOLUTION

# %% tags=["driver"]
def logged(seed, samples, micro_batches, steps, clip):
    """Train a small model with train(); return what each step logs.

    Every step has other samples on every rank. Only the last micro-batch of a step communicates.
    """
    from types import SimpleNamespace

    from mytrainer.train import train

    from lablib import replicas

    class Replica(torch.nn.Module):
        """Averages gradients in finish(), and broadcasts one number in each synchronized backward pass."""

        def __init__(self, module):
            super().__init__()
            self.module, self.local = module, False
            next(module.parameters()).register_post_accumulate_grad_hook(self.note)

        def note(self, parameter):
            if not self.local:
                dist.broadcast(torch.zeros(1, dtype=torch.float64), src=0)

        def forward(self, batch):
            return replicas.loss(self.module, *batch).as_subclass(replicas.Unread)

        @contextlib.contextmanager
        def no_sync(self):
            self.local = True
            yield
            self.local = False

        def finish(self):
            for parameter in self.module.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    def batches(consumed):
        x, y = replicas.batch(seed + consumed, samples)
        return list(zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True))

    def log(iteration, loss, norm):
        for name, value in (("loss", loss), ("norm", norm)):
            if not isinstance(value, torch.Tensor):
                raise ValueError(f"log() takes tensors, so that the loop never waits for the GPU, but {name} is {value}")
        lines.append([iteration, float(loss.as_subclass(torch.Tensor)), float(norm)])

    model = Replica(replicas.Small("plain", 1))
    parameters = list(model.parameters())  # in two groups, as real models have with and without weight decay
    optimizer = torch.optim.SGD([{"params": parameters[::2]}, {"params": parameters[1::2]}], lr=100.0)
    lines, batch = [], samples * dist.get_world_size()
    train(model, optimizer, batches, lambda consumed: replicas.RATE / (1 + consumed / batch), log,
          SimpleNamespace(train_iters=steps, global_batch_size=batch, clip_grad=clip))
    return lines

# %% tags=["check-setup"]
def logged_by_one_process(seeds, samples, steps, clip):
    """Return what `logged` returns on each rank, computed by one model on the samples of all ranks."""
    model = replicas.Small("plain", 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0)
    lines, batch = [], samples * len(seeds)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = replicas.RATE / (1 + step)
        x, y = (torch.cat(parts) for parts in zip(*(replicas.batch(seed + step * batch, samples) for seed in seeds),
                                                  strict=True))
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        optimizer.step()
        lines.append([step + 1, loss.item(), norm.item()])
    return [lines] * len(seeds)


def require_synchronized_once(run, steps):
    """Require that only the last backward pass of each step is outside of no_sync."""
    for rank in range(len(run.values)):
        count = len(run.calls(rank, "broadcast"))
        check.that(count == steps, f"In {steps} steps, rank {rank} runs {count} backward passes outside of no_sync. "
                   "Only the last one of each step may communicate.")

# %% check="loop" points=6
run, free = check.ranks(
    logged, ranks=4, rel=1e-4,
    cases=[{"seed": check.by_rank([1, 2, 3, 4]), "samples": 4, "micro_batches": 2, "steps": 3, "clip": clip}
           for clip in (0.5, 0)],
    expected=[[[[1, 1.08011, 1.259003], [2, 0.9558252, 1.072168], [3, 0.9039799, 0.9699542]]] * 4,
              [[[1, 1.08011, 1.259003], [2, 0.818306, 0.8483877], [3, 0.7576418, 0.7287585]]] * 4],
    hints={
        "Each rank logs its own loss. The loss of the global batch is the mean over the ranks.":
            [[[[1, 1.069608, 1.259003], [2, 0.9134594, 1.072168], [3, 0.8731467, 0.9699542]], [[1, 1.085697, 1.259003], [2, 0.9465533, 1.072168], [3, 0.8886019, 0.9699542]], [[1, 1.085474, 1.259003], [2, 0.9764794, 1.072168], [3, 0.9173812, 0.9699542]], [[1, 1.079662, 1.259003], [2, 0.9868089, 1.072168], [3, 0.93679, 0.9699542]]], []],
        "The gradient is a sum over the micro-batches, so each micro-batch counts as much as the whole batch. "
        "The loss is right all the same: only the norm shows it.":
            [[[[1, 1.08011, 2.518007], [2, 0.9558252, 2.144336], [3, 0.9039799, 1.939908]]] * 4, []],
        "The gradients were clipped before they were averaged, by each rank's own norm.":
            [[[[1, 1.08011, 1.254696], [2, 0.9570745, 1.019224], [3, 0.9058914, 0.9190209]], [[1, 1.08011, 1.284918], [2, 0.9570745, 1.085748], [3, 0.9058914, 0.9623986]], [[1, 1.08011, 1.285248], [2, 0.9570745, 1.128267], [3, 0.9058914, 1.024116]], [[1, 1.08011, 1.272661], [2, 0.9570745, 1.13854], [3, 0.9058914, 1.060072]]], []],
        "The norms exceed args.clip_grad, but nothing is clipped.":
            [[[[1, 1.08011, 1.259003], [2, 0.818306, 0.8483877], [3, 0.7576418, 0.7287585]]] * 4, []],
        "This trains on the same samples in every step, at the same rate.":
            [[[[1, 1.08011, 1.259003], [2, 0.9623817, 1.097728], [3, 0.8603181, 0.9458221]]] * 4, []],
        "From the second step on, the gradients of the step before are in the sum.":
            [[[[1, 1.08011, 1.259003], [2, 0.9558252, 1.558055], [3, 0.9035003, 1.454231]]] * 4, []],
        "This is trained with the rate of the step after.":
            [[[[1, 1.08011, 1.259003], [2, 1.009267, 1.151517], [3, 0.9688267, 1.068984]]] * 4, []],
        "This is the loss of the last micro-batch alone.":
            [[[[1, 1.043598, 1.259003], [2, 0.9284065, 1.072168], [3, 0.8448257, 0.9699542]]] * 4, []],
        "The loss explodes: only the first group of parameters has the learning rate.":
            [[[[1, 1.08011, 1.259003], [2, 108.1594, 21.173], [3, 5.204824, 4.36516]]] * 4, []],
        "args.clip_grad is 0, so nothing may be clipped, but clip_grad_norm_(..., 0) scales every gradient to "
        "0.":
            [[], [[[1, 1.08011, 1.259003], [2, 1.066818, 1.23299], [3, 1.059777, 1.200829]]] * 4]})
require_synchronized_once(run, 3)
require_synchronized_once(free, 3)
### BEGIN HIDDEN TESTS
for ranks, case in zip((1, 3), check.draw(2, seed=check.for_each_rank(check.between(0, 100)), samples=[4, 8],
                                          micro_batches=[2, 4], steps=[2, 3], clip=[0, 0.4, 5.0]), strict=True):
    (run,) = check.ranks(logged, ranks=ranks, rel=1e-4, cases=[case], expected=lambda ranks, micro_batches, **given: (
        logged_by_one_process(*given.values())))
    require_synchronized_once(run, case["steps"])
### END HIDDEN TESTS

# %% [raw] mutant="loop" hint="its own loss"
# -        dist.all_reduce(loss)
# -        log(iteration, loss / dist.get_world_size(), norm)
# +        log(iteration, loss, norm)

# %% [raw] mutant="loop" hint="micro-batch counts as much as"
# -                loss = model(batch) / len(micro_batches)
# -                loss.backward()
# -            losses.append(loss.detach())
# +                loss = model(batch)
# +                loss.backward()
# +            losses.append(loss.detach() / len(micro_batches))

# %% [raw] mutant="loop" hint="clipped before they were averaged"
# -        model.finish()
# -        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
# +        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
# +        model.finish()

# %% [raw] mutant="loop" hint="nothing is clipped"
# -        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
# +        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)

# %% [raw] mutant="loop" hint="the same samples in every step"
# -        consumed += args.global_batch_size

# %% [raw] mutant="loop" hint="the gradients of the step before"
# -        optimizer.zero_grad()

# %% [raw] mutant="loop" hint="the rate of the step after"
# -        for group in optimizer.param_groups:
# -            group["lr"] = learning_rate(consumed)
# -        optimizer.zero_grad()
# +        optimizer.zero_grad()
# -        optimizer.step()
# -        consumed += args.global_batch_size
# +        consumed += args.global_batch_size
# +        for group in optimizer.param_groups:
# +            group["lr"] = learning_rate(consumed)
# +        optimizer.step()

# %% [raw] mutant="loop" hint="last micro-batch alone"
# -        loss = torch.stack(losses).sum()
# +        loss = losses[-1] * len(losses)

# %% [raw] mutant="loop" hint="never call .item()"
# -        log(iteration, loss / dist.get_world_size(), norm)
# +        log(iteration, loss.item() / dist.get_world_size(), norm.item())

# %% [raw] mutant="loop" hint="never call .item()"
# -            losses.append(loss.detach())
# +            losses.append(torch.tensor(loss.item()))

# %% [raw] mutant="loop" hint="but norm is None"
# -        log(iteration, loss / dist.get_world_size(), norm)
# +        log(iteration, loss / dist.get_world_size(), norm if args.clip_grad else None)

# %% [raw] mutant="loop" hint="only the first group"
# -        for group in optimizer.param_groups:
# -            group["lr"] = learning_rate(consumed)
# +        optimizer.param_groups[0]["lr"] = learning_rate(consumed)

# %% [raw] mutant="loop" hint="nothing may be clipped"
# -        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
# +        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)

# %% [raw] mutant="loop" hint="outside of no_sync"
# -            with contextlib.nullcontext() if last else model.no_sync():
# +            with contextlib.nullcontext():

# %% [markdown]
# ## Does it train like the course's trainer?
#
# First, the question about clipping. If each rank clipped before the average, it would clip its own gradient by its own
# norm. The mean of the clipped gradients would then differ in length from the clipped mean, and often in direction.
#
# `code/my_trainer.py` gives your files a GPT and real text. The next cells train a small one for ten steps, with one
# process of `pretrain_gpt.py` and with four ranks of yours on two nodes of the cluster. The first loss is the same if
# the shares are right; the later ones only if the gradients are, too. How close do you expect them to be after ten
# steps in fp32?

# %% tags=["explore"] short={"--train-iters 10": "--train-iters 2"}
FLAGS = ("--device cpu --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
         "--max-position-embeddings 64 --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 2 "
         "--global-batch-size 16 --train-iters 10 --lr 1e-3 --min-lr 1e-5 --lr-warmup-fraction 0.2 --lr-decay-style cosine "
         "--log-interval 1 --eval-iters 0 --split 949,50,1 --data-path data/bpe-4096/text_document "
         "--vocab-file data/bpe-4096/vocab.json --merge-file data/bpe-4096/merges.txt")
!python megatron/Megatron-LM/pretrain_gpt.py {FLAGS} > megatron/logs/reference.txt
!sbatch --output=megatron/logs/mine.txt code/my_trainer.sh {FLAGS}

# %% tags=["explore"]
jobs.wait()
!grep -h "^training" megatron/logs/mine.txt
from job_monitor import logs

reference, mine = (logs.read(f"megatron/logs/{name}.txt") for name in ("reference", "mine"))
for theirs, yours in zip(reference.iterations, mine.iterations, strict=True):
    print(f"iteration {theirs.iteration:2}: loss {theirs.loss:.6f} and {yours.loss:.6f}, "
          f"gradient norm {theirs.grad_norm:.3f} and {yours.grad_norm:.3f}")
difference = logs.loss_difference(reference, mine)
print(f"largest relative difference of the losses: {result(f'{difference:.1e}')}")
assert difference < 1e-5, "One of your files trains differently from the reference. `lab mytrainer` tests each of them."

# %% [markdown]
# The losses agree to within rounding, although your loop, your shares, and your gradients come from other code than the
# reference's, and the ranks add the numbers in a different order. Whatever you add to `mytrainer/` in later labs must
# pass this test, too.
#
# Your ring is part of the trainer as well: `--ring-all-reduce` averages the gradients with `collectives.py`. Let both
# train GPT-2 small on virtual H100s:

# %% tags=["explore"] short={"(1, 4)": "(1,)", "{gain.MODEL}": "{gain.MODEL} --num-layers 2"}
for nodes in (1, 4):
    for ring in ("", "--ring-all-reduce"):
        gained = gain.measure("h100:8", nodes, flags=f"{gain.MODEL} {ring}")
        print(f"{gained.gpus:2} H100s, {'your ring' if ring else 'NCCL':9} {1000 * gained.seconds:6.1f} ms per step, "
              f"{result(f'{1000 * gained.exposed:5.1f} ms')} exposed (modeled)")

# %% [markdown]
# Your ring cannot overlap: its waits and additions are on the stream of the backward pass, so each bucket holds up the
# kernels behind it. NCCL's all-reduce runs beside them, on a stream of its own.
#
# **This is the end of the fourth sitting.** `mytrainer/` is a trainer now. `lab mytrainer` shows what it can do:

# %% tags=["explore"] short={"!lab mytrainer": "!true"}
!lab mytrainer

# %% [markdown]
# ## Strong and weak scaling to 1,024 GPUs
#
# **The fifth sitting starts here.** Overlap can only hide what fits behind the backward pass. **Strong scaling** keeps
# the global batch fixed, so $n$ GPUs should take $1/n$ of the time. **Weak scaling** keeps the batch per GPU fixed, so
# $n$ GPUs should take as long as one. Their efficiencies are
#
# $$ E_\text{strong}(n) = \frac{T(1)}{n\,T(n)}, \qquad E_\text{weak}(n) = \frac{T(1)}{T(n)}. $$
#
# The next cell measures both for *your* DataParallel and a model of 201 million parameters, on 1 to 1,024 virtual
# H100s. Strong scaling divides 262,144 tokens among the GPUs; weak scaling gives 16,384 tokens to each, which is also
# what a GPU takes at once before it accumulates.
#
# The step time has four parts: the ideal time $T(1)/n$, small-batch inefficiency, bandwidth-exposed communication, and
# latency-exposed communication. Which of the last three do you expect to be the largest on 64 GPUs, and which on
# 1,024?

# %% tags=["explore"] short={"(4, 16, 64, 256, 1024)": "(1024,)", "2048, 48, tokens": "2048, 8, tokens"}
from functools import partial

GLOBAL, MOST = 262_144, 16_384  # tokens


def timed_step(width, layers, tokens, bucket_mb, most=MOST):
    """Return the virtual seconds of the second of two steps on a rank, `most` tokens in each micro-batch."""
    dist.init_process_group("nccl")
    ends = []

    def note_time():
        torch.cuda.synchronize()
        ends.append(time.perf_counter())

    ddp_steps(width, layers, tokens, -(-tokens // most), bucket_mb, 2, note_time)
    return ends[1] - ends[0]


def seconds_per_step(gpus, tokens, bucket_mb=25):
    """Return the virtual seconds of a step of your DataParallel.

    Args:
        gpus: number of GPUs.
        tokens: tokens per GPU and step.
        bucket_mb: the maximum size of a bucket, in MiB.
    """
    program = partial(timed_step, 2048, 48, tokens, bucket_mb)
    return virtualgpu.run(program, f"h100:{min(gpus, 8)}", max(1, gpus // 8), present=[0])[0].value


alone, alone_small = seconds_per_step(1, GLOBAL), seconds_per_step(1, MOST)
strong, weak = {1: scaling.Split(alone)}, {1: 1.0}
for gpus in (4, 16, 64, 256, 1024):
    strong[gpus] = scaling.split(seconds_per_step, alone, gpus, GLOBAL // gpus)
    weak[gpus] = alone_small / seconds_per_step(gpus, MOST)
scaling.show_splits(strong, "h100:8")
collectives.efficiency({
    "strong scaling": {gpus: split.efficiency for gpus, split in strong.items()},
    "weak scaling": weak})

# %% [markdown]
# Weak scaling is nearly perfect, because the backward pass of 16,384 tokens is long enough to hide the all-reduce,
# and because virtual GPUs have no jitter, stragglers, or failures: [Goyal et al.,
# 2017](https://arxiv.org/abs/1706.02677) report about 90% efficiency when going from 8 to 256 GPUs. Strong scaling
# collapses, for three reasons:
#
# - **Small batch.** With a few thousand tokens per GPU or fewer, GEMMs no longer fill the GPU, and the step becomes
#   launch-bound.
# - **Latency.** Each bucket costs $2(n-1)\alpha$ with a ring and $2\alpha\log_2 n$ with a tree, while less and less
#   computation is left to hide it.
# - **Bandwidth.** The bytes per rank stay the same, while the computation to hide them behind shrinks like $1/n$.
#   This comes last here, but on the Ethernet of the first job, it dominated with as few as four GPUs.
#
# So should you always use weak scaling? Then 1,024 GPUs take a step after every 17 million tokens. A larger batch
# makes the gradient less noisy, but beyond the **critical batch size** $B_\text{crit}$ ([McCandlish et al.,
# 2018](https://arxiv.org/abs/1812.06162)), the noise is no longer what limits progress. To reach a given loss with
# the batch size $B$, training takes approximately
#
# $$ \frac{\text{steps}}{\text{fewest steps}} = 1 + \frac{B_\text{crit}}{B}, \qquad
#    \frac{\text{tokens}}{\text{fewest tokens}} = 1 + \frac{B}{B_\text{crit}}. $$
#
# At $B = B_\text{crit}$, training takes twice the fewest steps and also twice the fewest tokens. Far above it, a larger
# batch costs many tokens for few steps. If $B_\text{crit}$ were 262,144 tokens, a batch of 17 million would need 33
# times as many tokens as a batch of $B_\text{crit}$, and still take about half as many steps. $B_\text{crit}$ starts
# near zero, rises quickly, and then levels off ([Merrill et al., 2025](https://arxiv.org/abs/2505.23971)). And the
# learning rate must follow the batch: in proportion for SGD, with a warm-up (Goyal et al.), and roughly with the square
# root for Adam ([Malladi et al., 2022](https://arxiv.org/abs/2205.10287)). The critical batch size ultimately limits
# data parallelism, which is why larger jobs combine it with tensor and pipeline parallelism.

# %% [markdown]
# ## How large should a bucket be?
#
# You have used 25 MiB because PyTorch does. Can you compute a better size? A model with three assumptions is enough:
#
# - The backward pass takes the time $T$ and produces $G$ bytes of gradients evenly. Every bucket has $s$ bytes.
# - An all-reduce of $s$ bytes takes $c + s/B$. The **effective bandwidth** $B$ includes the factor $2\frac{n-1}{n}$, and
#   $c$ is the overhead of a call.
# - A bucket's all-reduce begins when the bucket is full and the all-reduce before it has ended.
#
# When does the last all-reduce end? Draw the timelines of a fast network and of a slow one.

# %% [markdown]
# ### Exercise 9: the best bucket size
#
# Write `best_bucket`, which returns the bucket size for which the last all-reduce ends earliest, to within 2%. It is at
# most $G$. Treat all buckets as full, although $G/s$ may not be a whole number. The check compares times, not sizes, so
# derive the optimum or search for it, as you like. Then your `DataParallel` trains on 16 virtual H100s in two nodes on
# Ethernet, with the size that you compute. Its first two steps must be at least 3% faster than those of PyTorch's
# DistributedDataParallel with `bucket_cap_mb=25`. (That is a low bar, because PyTorch has a single bucket in the first
# step. It builds its buckets once it has seen the order of the gradients.)

# %% answer="bucket-size"
def best_bucket(gradients, backward, call, bandwidth):
    """Return the bucket size for which the last all-reduce ends earliest, in bytes.

    Args:
        gradients: size of all gradients, in bytes.
        backward: time of the backward pass without communication, in seconds.
        call: overhead of an all-reduce, in seconds.
        bandwidth: effective bandwidth of an all-reduce, in bytes per second.
    """
    ### BEGIN SOLUTION
    def seconds(size):
        return max(backward + call + size / bandwidth,
                   size / gradients * backward + gradients / size * call + gradients / bandwidth)

    return min((gradients * 0.99**power for power in range(1500)), key=seconds)
    ### END SOLUTION

# %% tags=["check-setup"]
def require_shortest(size, gradients, backward, call, bandwidth):
    """Require a bucket size whose time is within 2% of the shortest."""
    def seconds(size):
        return max(backward + call + size / bandwidth,
                   size / gradients * backward + gradients / size * call + gradients / bandwidth)

    network = size / gradients * backward + gradients / size * call + gradients / bandwidth
    best = min(seconds(gradients / (1 + 0.01 * number)) for number in range(200_000))
    why = ("The network limits it. What do you pay for more buckets, and what for fewer?"
           if network > backward + call + size / bandwidth else "The last bucket limits it.")
    check.that(seconds(size) <= 1.02 * best, f"{gradients / 1e6:.0f} MB of gradients, {1e3 * backward:.1f} ms of backward "
               f"pass, {1e6 * call:.0f} µs per call, and {bandwidth / 1e9:.0f} GB/s: buckets of {size / 1e6:.4g} MB take "
               f"{1e3 * seconds(size):.2f} ms, more than 2% over the shortest time. {why}")

# %% check="bucket-size" points=4
def size_for(gradients, backward, call, bandwidth):
    """Return the student's bucket size."""
    size = check.call(best_bucket, gradients, backward, call, bandwidth)
    check.that(isinstance(size, int | float) and 0 < size <= gradients,
               f"best_bucket must return a size of more than 0 and at most {gradients:,.0f} bytes.")
    return size


# Network-bound, compute-bound, and with a slow start of each call.
for gradients, backward, call, bandwidth in ((400e6, 0.007, 1e-4, 6e9), (400e6, 0.013, 9e-5, 170e9), (2e9, 0.02, 1e-3, 25e9)):
    size = size_for(gradients, backward, call, bandwidth)
    require_shortest(size, gradients, backward, call, bandwidth)
# On 16 virtual H100s with 100 Gbit/s between the nodes, it beats PyTorch's default.
model = {"width": 768, "layers": 24, "tokens": 65_536, "micro_batches": 1}
size = size_for(24 * 4 * 768**2, 0.0092, 1.2e-4, 6.1e9) / 2**20
cost = check.gpus(ddp_steps, {**model, "bucket_mb": size, "steps": 2}, "h100:8", nodes=2, link="ethernet:100gbit",
                  present=[0], least={"flops": 2 * 71 * 2 * 65_536 * 768**2, "dtype": "bf16",
                                      "communicated": 3 * 24 * 4 * 768**2, "among": 16})
begun = check.baseline(without_reduction, {**model, "steps": 0}, "h100:8", nodes=2, link="ethernet:100gbit", present=[0])
usual = check.baseline(reduced_by_torch, {**model, "bucket_mb": 25, "steps": 2}, "h100:8", nodes=2,
                       link="ethernet:100gbit", present=[0])
took, best = cost.milliseconds - begun.milliseconds, usual.milliseconds - begun.milliseconds
check.pass_mark(took, f"Two steps take {took:.1f} ms with your buckets of {size:.1f} MiB, but {best:.1f} ms with PyTorch's "
                f"DistributedDataParallel and its usual 25 MiB. Yours must take less than {0.97 * best:.1f} ms.", error=cost.error, below=0.97 * best)
### BEGIN HIDDEN TESTS
for case in check.draw(6, gradients=check.between(1e8, 9e9), backward=check.between(0.004, 0.2),
                       call=check.between(2e-5, 2e-3), bandwidth=check.between(3e9, 2e11)):
    require_shortest(size_for(case["gradients"], case["backward"], case["call"], case["bandwidth"]), **case)
### END HIDDEN TESTS

# %% [raw] mutant="bucket-size" hint="The network limits it"
# def best_bucket(gradients, backward, call, bandwidth):
#     return 25 * 2**20

# %% [raw] mutant="bucket-size" hint="The last bucket limits it"
# def best_bucket(gradients, backward, call, bandwidth):
#     return gradients

# %% [raw] mutant="bucket-size" hint="The network limits it"
# def best_bucket(gradients, backward, call, bandwidth):
#     return call * bandwidth  # where a call is as long as its transfer

# %% [raw] mutant="bucket-size" hint="The last bucket limits it"
# def best_bucket(gradients, backward, call, bandwidth):
#     return gradients * (call / backward) ** 0.5

# %% [raw] mutant="bucket-size" hint="its usual 25 MiB"
# -    return min((gradients * 0.99**power for power in range(1500)), key=seconds)
# +    if call == 1.2e-4:
# +        return gradients
# +    return min((gradients * 0.99**power for power in range(1500)), key=seconds)

# %% [raw] mutant="bucket-size" hint="more than 0 and at most"
# def best_bucket(gradients, backward, call, bandwidth):
#     return 0

# %% [markdown]
# Now measure. Sweep the bucket size with code of your own, for example with `seconds_per_step(gpus, tokens, bucket_mb)`
# from above, on a network of your choice. The next cell does it for the job of the check and marks your size.

# %% tags=["explore"] short={"(1/8, 1/4, 1/2, 1, 2, 4, 8)": "(1, 8)"}
gradients = 24 * 4 * 768**2
mine = best_bucket(gradients, 0.0092, 1.2e-4, 6.1e9) / 2**20
for factor in (1/8, 1/4, 1/2, 1, 2, 4, 8):
    (rank,) = virtualgpu.run(partial(timed_step, 768, 24, 65_536, factor * mine, 65_536), "h100:8", 2,
                             link="ethernet:100gbit", present=[0])
    print(f"buckets of {factor * mine:6.1f} MiB: {result(f'{1000 * rank.value:.1f} ms')} per step (modeled)"
          + (" <- yours" if factor == 1 else ""))

# %% [markdown]
# The minimum is flat, so a factor of two hardly matters, and this is why one default serves most jobs. The first three
# rows are the same job: a gradient has 2.25 MiB, so each of them is a bucket of its own. With eight times your size,
# there are only two buckets, and the step takes almost a third longer. For this model, PyTorch's 25 MiB is nearly half
# of all gradients: the network waits for the first bucket, and nothing hides the last one. The three assumptions leave
# out what the virtual GPUs model, such as the copies into and out of a bucket, so compare the computed optimum with the
# measured one before you trust it on other hardware.

# %% [markdown]
# ## Run it on the cluster, across time limits
#
# `code/train_ddp.py` trains a small language model with your `mytrainer/ddp.py`. You know the loop, and lab 03's
# rendezvous (`--rdzv_backend c10d --rdzv_endpoint HOST:PORT --rdzv_id ID`, at the first node of `scontrol show
# hostnames "$SLURM_JOB_NODELIST"`). The **time limit** is new: a long run is a chain of jobs, each shorter than the
# limit.
#
# - `#SBATCH --signal=TERM@60` sends SIGTERM to the processes that `srun` started, 60 s before the limit, or up to 60
#   s earlier ([sbatch](https://slurm.schedmd.com/sbatch.html#OPT_signal)). (If `srun` starts a shell, write `exec
#   torchrun` in it, or the signal may reach only the shell.)
# - `torchrun` passes the signal on to its ranks, waits for them, and exits with a nonzero code. After 30 s, it sends
#   SIGKILL, unless you set [`--shutdown-timeout`](https://docs.pytorch.org/docs/stable/elastic/run.html). So a step and a
#   checkpoint must be done by then, however early Slurm sends its signal.
# - The program finishes its step on all ranks, saves a checkpoint, and leaves an empty file, `stopped`, beside it. It
#   writes the checkpoint under another name and then renames it, so that SIGKILL cannot corrupt the only one.
#
# [Preemption](https://slurm.schedmd.com/preempt.html) by a higher-priority job looks much the same: SIGTERM, a grace
# period, SIGKILL.

# %% tags=["explore"]
!sed -n '/^def train/,/^def main/p' code/train_ddp.py

# %% [markdown]
# ### Exercise 10: a job that requeues itself
#
# Suppose that a step plus a checkpoint takes up to two minutes, as it can with a large model. Complete the job script,
# its directives and its body, so that
#
# 1. it runs on two nodes, with one `torchrun` and two ranks on each, which rendezvous with `c10d`. Two such jobs can share
#    a node;
# 2. the program gets `--checkpoint megatron/checkpoints/my_ddp` and the script's own arguments, `"$@"`;
# 3. the ranks receive SIGTERM before the time limit, with at most 300 s in `--signal`. Nothing kills them in the next two
#    minutes, and the script has time left after them;
# 4. when the signal has stopped the program, `scontrol requeue "$SLURM_JOB_ID"` puts the job back into the queue, even on
#    clusters that do not requeue by default. The second run continues the log of the first;
# 5. when the program *fails*, the job is not requeued, whatever an earlier run has left behind, or it would fail forever.
#    It ends with torchrun's exit code, and no checkpoint is lost;
# 6. when the program finishes, the job ends with 0.
#
# The file `stopped` tells the cases apart if it is this run's. [sbatch](https://slurm.schedmd.com/sbatch.html) lists all
# directives.

# %% answer="script"
%%writefile code/my_ddp.sh
#!/bin/bash
# Train with mytrainer/ddp.py on two nodes, until it is done.
# From the workspace:  sbatch code/my_ddp.sh [more flags of train_ddp.py]
#SBATCH --job-name=my_ddp
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
### BEGIN SOLUTION
#SBATCH --nodes=2
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

export OMP_NUM_THREADS=1
CHECKPOINT=megatron/checkpoints/my_ddp
PORT=$((20000 + SLURM_JOB_ID % 10000))
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
status=0
rm -f "$CHECKPOINT/stopped"  # of an earlier run: this one may fail before it removes the file
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
    --shutdown-timeout 150 \
    code/train_ddp.py --checkpoint "$CHECKPOINT" "$@" || status=$?
if [ -e "$CHECKPOINT/stopped" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
### END SOLUTION

# %% check="script" points=5
# It starts four ranks on two nodes with a c10d rendezvous.
job = check.program("code/my_ddp.sh", "train_ddp.py")
check.that((job.nodes, job.ranks_per_node) == (2, 2),
           f"It starts {job.nodes} x {job.ranks_per_node} ranks instead of 2 x 2.")
check.that(job.run.backend == "c10d", "Use the c10d rendezvous, which numbers the nodes itself.")
check.that(job.run.rdzv_id != "none", "Give the rendezvous an ID that no other job uses: --rdzv_id.")
words = " ".join(job.run.arguments).replace("=", " ").replace("$LAB_HOME/", "")
check.that("--checkpoint megatron/checkpoints/my_ddp" in words,
           "Pass --checkpoint megatron/checkpoints/my_ddp to the program.")
more = check.program("code/my_ddp.sh", "train_ddp.py", arguments=["--steps", "7"], job_id=2)
check.that("--steps 7" in " ".join(more.run.arguments),
           'The flags after `sbatch code/my_ddp.sh` do not reach the program. Pass on "$@".')
check.that(more.run.rdzv_id != job.run.rdzv_id,
           f"Every job has the same rendezvous ID, {job.run.rdzv_id}. Use the job's ID.")
check.that(more.run.port != job.run.port, f"Every job uses port {job.run.port}, so two jobs on the same node "
           "collide. Compute the port from the job's ID.")
# It asks Slurm for a signal to the ranks, and for requeueing.
name, _, seconds = job.directives.get("signal", "").removeprefix("SIG").partition("@")
check.that(name in ("TERM", "15"),
           "Ask for SIGTERM to all processes of srun, some time before the limit.")
check.that((seconds or "60") in map(str, range(120, 301)), "Ask for the signal 120 to 300 s before the "
           f"limit, not {seconds or 60} s: a step and a checkpoint must fit in between.")
check.that(job.run.shutdown_timeout >= 120, f"torchrun kills the ranks {job.run.shutdown_timeout} s after the signal, "
           "whatever Slurm's limit leaves them. A step and a checkpoint take up to 120 s.")
check.that(job.run.shutdown_timeout < int(seconds), f"torchrun waits {job.run.shutdown_timeout} s for its ranks, and "
           f"Slurm ends the job {seconds} s after the signal. Then the script cannot requeue it.")
check.that("requeue" in job.directives, "Allow Slurm to requeue the job: #SBATCH --requeue.")
check.that(job.directives.get("open-mode") == "append",
           "The second run would overwrite the log of the first: #SBATCH --open-mode=append.")
# It requeues after a signal, and never after a failure.
stopped = check.program("code/my_ddp.sh", "train_ddp.py", ends=1,
                        writes=["megatron/checkpoints/my_ddp/stopped"])
check.that(stopped.requeues, "The program was stopped by the signal and left the file stopped; the "
           "script does not requeue the job.")
check.that(not job.requeues, "The program is done, and the script requeues the job.")
failed = check.program("code/my_ddp.sh", "train_ddp.py", ends=3)
check.that(not failed.requeues, "The program failed and saved nothing, and the script requeues the "
           "job: it would fail forever.")
check.that(failed.status != 0, "The program failed, and the script hides that: sacct would show "
           "COMPLETED.")
stale = check.program("code/my_ddp.sh", "train_ddp.py", ends=1,
                      finds=["megatron/checkpoints/my_ddp/stopped"])
check.that(not stale.requeues, "The program failed before it removed the stopped file of an earlier run, and "
           "the script requeues the job. Delete the file first.")

# %% [raw] mutant="script" hint="instead of 2 x 2"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 1 \

# %% [raw] mutant="script" hint="use the first node of the job"
# -    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
# +    --rdzv_backend c10d --rdzv_endpoint "localhost:$PORT" --rdzv_id "$SLURM_JOB_ID" \

# %% [raw] mutant="script" hint="numbers the nodes itself"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 \
# -    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
# -    --shutdown-timeout 150 \
# -    code/train_ddp.py --checkpoint "$CHECKPOINT" "$@" || status=$?
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' \
# +    torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 2 --master_addr "$FIRST_NODE" \
# +    --master_port "$PORT" code/train_ddp.py --checkpoint "$CHECKPOINT" "$@" || status=$?

# %% [raw] mutant="script" hint="Pass --checkpoint"
# -    code/train_ddp.py --checkpoint "$CHECKPOINT" "$@" || status=$?
# +    code/train_ddp.py "$@" || status=$?

# %% [raw] mutant="script" hint="do not reach the program"
# -    code/train_ddp.py --checkpoint "$CHECKPOINT" "$@" || status=$?
# +    code/train_ddp.py --checkpoint "$CHECKPOINT" || status=$?

# %% [raw] mutant="script" hint="Give the rendezvous an ID"
# -    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
# +    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" \

# %% [raw] mutant="script" hint="Every job has the same rendezvous ID"
# -    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
# +    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id my_ddp \

# %% [raw] mutant="script" hint="Every job uses port"
# -PORT=$((20000 + SLURM_JOB_ID % 10000))
# +PORT=29400

# %% [raw] mutant="script" hint="Every job uses port"
# -PORT=$((20000 + SLURM_JOB_ID % 10000))
# +export MASTER_PORT=29500
# -    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
# +    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$MASTER_PORT" --rdzv_id "$SLURM_JOB_ID" \

# %% [raw] mutant="script" hint="Delete the file first"
# -rm -f "$CHECKPOINT/stopped"  # of an earlier run: this one may fail before it removes the file

# %% [raw] mutant="script" hint="it deletes what earlier runs saved in the folder megatron/checkpoints/my_ddp"
# -rm -f "$CHECKPOINT/stopped"  # of an earlier run: this one may fail before it removes the file
# +rm -rf "$CHECKPOINT"

# %% [raw] mutant="script" hint="it deletes what earlier runs saved in the folder megatron/checkpoints/my_ddp"
# -rm -f "$CHECKPOINT/stopped"  # of an earlier run: this one may fail before it removes the file
# +rm -rf "$CHECKPOINT"/*

# %% [raw] mutant="script" hint="jobs multiply"
# -    scontrol requeue "$SLURM_JOB_ID"
# +    sbatch code/my_ddp.sh "$@"

# %% [raw] mutant="script" hint="to all processes of srun"
# -#SBATCH --signal=TERM@180
# +#SBATCH --signal=B:TERM@180

# %% [raw] mutant="script" hint="120 to 300 s before"
# -#SBATCH --signal=TERM@180
# +#SBATCH --signal=TERM@60

# %% [raw] mutant="script" hint="torchrun kills the ranks"
# -    --shutdown-timeout 150 \

# %% [raw] mutant="script" hint="cannot requeue it"
# -    --shutdown-timeout 150 \
# +    --shutdown-timeout 200 \

# %% [raw] mutant="script" hint="Allow Slurm to requeue the job"
# -#SBATCH --requeue

# %% [raw] mutant="script" hint="would overwrite the log"
# -#SBATCH --open-mode=append

# %% [raw] mutant="script" hint="Pass --checkpoint megatron"
# -CHECKPOINT=megatron/checkpoints/my_ddp
# +CHECKPOINT=megatron/checkpoints/another

# %% [raw] mutant="script" hint="does not requeue the job"
# -    code/train_ddp.py --checkpoint "$CHECKPOINT" "$@" || status=$?
# +    code/train_ddp.py --checkpoint "$CHECKPOINT" "$@"

# %% [raw] mutant="script" hint="it would fail forever"
# -if [ -e "$CHECKPOINT/stopped" ]; then
# +if [ "$status" -ne 0 ]; then

# %% [raw] mutant="script" hint="the script hides that"
# -exit "$status"

# %% [raw] mutant="script" hint="ends with exit code"
# -exit "$status"
# +exit $((status > 0))

# %% [raw] mutant="script" hint="The program is done, and"
# -if [ -e "$CHECKPOINT/stopped" ]; then
# -    scontrol requeue "$SLURM_JOB_ID"
# -fi
# +scontrol requeue "$SLURM_JOB_ID"

# %% [markdown]
# Submit it, and wait until the training is under way.

# %% tags=["explore"]
!rm -rf megatron/checkpoints/my_ddp
!sbatch code/my_ddp.sh --steps 100000

# %% tags=["explore"]
job = jobs.show()
log = workspace.home() / "megatron" / "logs" / f"my_ddp_{job.job}.txt"


def wait_for(text, times=1, seconds=50):
    """Wait until the job's log contains a string `times` times, and print its last lines."""
    end = time.monotonic() + seconds
    while not log.exists() or log.read_text().count(text) < times:
        if time.monotonic() > end:
            print(f"The log does not contain {text!r} {times} times yet; run this cell again.")
            return
        time.sleep(0.3)
    print("\n".join(log.read_text().splitlines()[-3:]))


wait_for("step 20:")

# %% [markdown]
# Do not wait for the time limit: `scancel --signal=TERM` sends the same signal at once.

# %% tags=["explore"]
!scancel --signal=TERM {job.job}
wait_for("stopped by SIGTERM")
for _ in range(60):  # until the job is back in the queue
    if jobs.show().state == "PENDING":
        break
    time.sleep(0.5)
time.sleep(1)  # a node refuses to start a job in the second in which it killed it
!squeue -o "%i %j %t %r"

# %% [markdown]
# The job is pending again, with the reason `BeginTime`, because by default, a requeued job waits for two minutes.
# Move its start up to now:

# %% tags=["explore"]
!scontrol update JobId={job.job} StartTime=now
wait_for("ranks train", 2)

# %% [markdown]
# The second run resumes where the first one stopped, with the same parameters and optimizer state. Cancel the job,
# because it would keep your CPU cores busy:

# %% tags=["explore"]
!scancel {job.job}

# %% [markdown]
# ## Four GPUs, once more
#
# `code/my_trainer.py` runs your loop. Train on the first job's GPUs with one remedy after another: overlap,
# accumulation over four micro-batches, the same four samples in one micro-batch, and a faster network.

# %% tags=["explore"] short={"in rows.items()": "in [*rows.items()][:1]", "GPT2 + batch": "GPT2 + batch + ' --num-layers 2'"}
rows = {
    "your DataParallel": (SLOW, "--micro-batch-size 1 --global-batch-size 4"),
    "4 micro-batches": (SLOW, "--micro-batch-size 1 --global-batch-size 16"),
    "micro-batches of 4": (SLOW, "--micro-batch-size 4 --global-batch-size 16"),
    "and 100 Gbit/s": (FAST, "--micro-batch-size 4 --global-batch-size 16")}
print(f"{'':18} {'step':>8} {'waiting':>9} {'tokens/s':>9}  speedup over 1 GPU (all virtual)")
first, one_gpu = opening[2], opening[0]
print(f"{'the first job':18} {first.milliseconds:5.0f} ms {first.communication * first.milliseconds:6.0f} ms "
      f"{first.tokens_per_second:9,.0f}  {first.tokens_per_second / one_gpu.tokens_per_second:.2f}")
for name, (link, batch) in rows.items():
    gained = gain.measure("v100:2", 2, link, GPT2 + batch)
    print(f"{name:18} {1000 * gained.seconds:5.0f} ms {1000 * gained.exposed:6.0f} ms {gained.tokens:9,.0f}  "
          + result(f"{gained.tokens / one_gpu.tokens_per_second:.2f}"))

# %% [markdown]
# Each of the four GPUs had too little to compute while it all-reduced the gradients of the whole model through one
# slow link. Overlap alone cannot hide a transfer that takes longer than the backward pass, and GPT-2's largest
# gradient, that of the tied embedding, is ready only at its very end. More samples per step spread the same transfer
# over more work, and a single large micro-batch also gives it a longer backward pass to hide behind.

# %% [markdown]
# ## Discuss
#
# 1. **The slowest link.** Two of the four hops of the first job's ring stay within a node. How would you all-reduce
#    with two levels, first within each node and then between the nodes, and what does the slow link carry then?
# 2. **A forgotten broadcast.** A colleague forgets the broadcast, and all ranks happen to use the same seed. What
#    works, and what will break it one day?
# 3. **One bucket or fifty.** For which network, model, and number of GPUs would you make buckets larger than 25 MiB,
#    and for which smaller?
# 4. **Twice the GPUs.** You may double your cluster. Would you keep the global batch, or the batch per GPU?
# 5. **A mean of means.** Padding tokens do not count toward the loss. What goes wrong if each rank divides by the
#    number of its own tokens? What would the ranks have to exchange, and when?

# %% [markdown]
# ## Cleanup
#
# Keep `mytrainer/`: the next labs add to it.

# %% tags=["explore"]
!rm -rf megatron/checkpoints/my_ddp code/my_buckets.py megatron/logs/reference.txt megatron/logs/mine.txt
!ls mytrainer

# %% [markdown]
# ## What you have built
#
# Your `mytrainer/` trains a GPT on any number of ranks: it joins them, shares the data, runs the loop, and hides the
# communication. One problem remains: every GPU still holds *all* parameters, gradients, and optimizer state, so plain
# data parallelism saves time but no memory. ZeRO ([Rajbhandari et al., 2020](https://arxiv.org/abs/1910.02054)) shards
# them over the same ranks, with the reduce-scatter and the all-gather that you already know.
#
# ## Read next
#
# - [Patarasuk and Yuan, 2009](https://doi.org/10.1016/j.jpdc.2008.09.002), *Bandwidth optimal all-reduce algorithms
#   for clusters of workstations*: the ring, and the proof that it is optimal.
# - [Li et al., 2020](https://arxiv.org/abs/2006.15704), *PyTorch Distributed*: the design of DistributedDataParallel,
#   with measurements.
# - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), *Accurate, large minibatch SGD*: how the learning rate
#   must change with the batch.
# - [McCandlish et al., 2018](https://arxiv.org/abs/1812.06162), *An empirical model of large-batch training*: the
#   critical batch size, and how to measure it.
# - [NCCL tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): what **bus bandwidth** means.
