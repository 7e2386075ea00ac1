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
# # Cluster and hardware: find what limits a run
#
# Your new GPU promises eight times the **FLOP/s**, the floating-point operations per second, of the old one. Your
# training job does not get eight times faster. Where did the rest go?
#
# A training step uses the GPU's arithmetic units, its memory, the links to other GPUs, and the CPU, which launches
# the **kernels**, the functions that run on the GPU. At any moment, one of them is the limit, and only a faster one
# of *that* kind helps. In this lab, you find rings in the wiring of servers, measure your cluster's links, model a
# transfer and a kernel, and diagnose five training jobs.
#
# Slurm and its **ranks** (the processes of a distributed job) are real: you measure this machine. The GPUs are
# **virtual**: models, built from data sheets and published measurements of real GPUs. Where a cell asks for a guess,
# commit to a number *before* you run the next one. The lab takes one to two hours; a good place to stop is before
# *Compute or memory?* (After a restart of the kernel, run the cells above again.)

# %% tags=["setup"]
import inspect
import itertools
import os

import numpy as np
import torch.distributed as dist

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("job_monitor.nvidia_smi", "lablib.links", "lablib.roofline", "lablib.servers",
           "lablib.suspects", "layout_estimator", "minimegatron", "pipeline_schedules", "virtualgpu")

# %% tags=["explore"]
from labcore.colors import bad, good, result
from lablib import jobs, links, roofline, servers, suspects
from layout_estimator import costs
from virtualgpu.core.cards import find

jobs.connect()

# %% [markdown]
# ## Eight times the FLOP/s
#
# The job trains GPT-2 small (124 million parameters) on one GPU. Its **micro-batch**, the samples that go through one
# forward and backward pass together, is one sequence of 1,024 tokens. **Tensor Cores**, the units that multiply small
# matrices, give the [V100](https://www.nvidia.com/en-us/data-center/v100/) a peak of 125 TFLOP/s in fp16 and the
# [H100](https://www.nvidia.com/en-us/data-center/h100/) one of 989 TFLOP/s in bf16, half of what its data sheet gives
# for sparse matrices. We model both with the same software, Megatron-LM of 2021, so only the GPU and its 16-bit format
# differ. How many times faster is a step on the H100?

# %% answer="guess-speedup"
### BEGIN SOLUTION
guess_speedup = 5
### END SOLUTION

# %% tags=["explore"]
GPT2 = ("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 1 --software-stack megatron-2021 ")
old, new = [costs.of({name: f"--device virtual:{name} {dtype}"}, GPT2)[0]
            for name, dtype in (("v100", "--fp16"), ("h100", "--bf16"))]
print(f"V100: {old.milliseconds:.1f} ms per step, H100: {new.milliseconds:.1f} ms (virtual)")
check.compare("times faster", guess_speedup, old.milliseconds / new.milliseconds)

# %% [markdown]
# So the arithmetic units cannot be the only limit. To find the others, start with the parts of a node.

# %% [markdown]
# ## What a node is made of
#
# ![Two nodes, connected through their NICs. In each, a PCIe switch connects a CPU, two GPUs, and a NIC; NVLink
# connects the GPUs, and each GPU has its HBM. Links are labeled with bandwidths.](../images/cluster_hardware.svg)
#
# The figure shows a part of an [A100](https://www.nvidia.com/en-us/data-center/a100/) server. **PCIe** connects all
# devices of a node to its CPU, and **NVLink** connects GPUs directly. A byte to the other node goes through the PCIe
# switch, the network adapter (**NIC**), and the network. From the GPU's own memory (**HBM**) to NVLink to the
# network, the bandwidth falls by a factor of 5 to 12 at each step.
#
# Such figures have two traps. Networks are sold in **bits** per second and memory in **bytes**, a factor of 8. And
# data sheets give a link's bandwidth either **per direction** or for both together, a factor of 2: the A100's NVLink
# bandwidth of "600 GB/s" is 300 GB/s per direction.

# %% tags=["explore"]
print(f"{'data sheets':16}{'TFLOP/s':>9}{'SMs':>6}{'memory':>8}{'NVLink':>8}{'PCIe':>6}   network of a node")
for name in ("v100", "t4", "a100", "h100"):
    gpu = find(name)
    nvlink = f"{gpu.nvlink / 1e9:.0f}" if gpu.nvlink else "none"
    print(f"{gpu.name:16}{gpu.tflops['fp16']:9.0f}{gpu.sms:6}{gpu.bandwidth / 1e9:8.0f}{nvlink:>8}"
          f"{gpu.pcie / 1e9:6.0f}   {gpu.network}")
print("TFLOP/s in fp16. SMs are streaming multiprocessors, the GPU's cores. Memory bandwidth is in GB/s, NVLink and "
      "PCIe in GB/s per direction. 4x100gbit are four NICs of 100 Gbit/s each.")

# %% [markdown]
# ### Ask the cluster
#
# `sinfo` prints each node's CPUs, memory in MiB, and GPUs, which are one kind of **generic resource** (GRES).
# `scontrol show node` prints more about one of them, such as how many CPUs jobs have allocated (`CPUAlloc`).

# %% tags=["explore"]
!sinfo --format="%P %N %c %m %G %t" | column -t
!scontrol show node $(sinfo --noheader --Node --format=%N | head -n 1) | head -n 12

# %% [markdown]
# That is what the administrator configured. With `srun`, ask the node itself. (On the course's own cluster, every
# node claims 32 CPUs, but all nodes share your machine's cores.)

# %% tags=["explore"]
!srun lscpu | grep --extended-regexp "^(Model name|CPU\(s\)|Thread|Core|Socket|NUMA node\(s\)|L3)"

# %% [markdown]
# ### The wiring of a server
#
# `nvidia-smi topo -m` prints how each pair of GPUs and NICs is connected. This is an NVIDIA DGX-1, with eight V100s:

# %% tags=["explore"]
print(servers.topology("DGX-1 (V100)"))

# %% [markdown]
# | entry | path between two GPUs, from fastest to slowest |
# |---|---|
# | `NV18`, ..., `NV1` | that many NVLinks of 25 GB/s per direction (V100, A100, H100) |
# | `PIX` | one PCIe switch |
# | `PXB` | several PCIe switches |
# | `PHB` | a PCIe host bridge, so through the CPU |
# | `NODE` | several host bridges of one NUMA node (a CPU socket or a part of one) |
# | `SYS` | the interconnect between NUMA nodes, usually between two CPU sockets |
#
# A GPU in the DGX-1 has six NVLinks, too few to reach all seven others: pairs such as GPUs 0 and 5 fall back to the
# path between the sockets. The **NVSwitches** of a DGX A100 or H100 give every pair `NV12` or `NV18`.
#
# Ring algorithms, which you will build in [lab 04](04_data_parallelism.ipynb), pass data around a ring of GPUs, over
# all hops at the same time. So a ring is as fast as its **slowest** hop.

# %% [markdown]
# ### Exercise 1: the fastest ring
#
# Choose `count` of a server's GPUs, and order them so that the slowest hop of their ring, including the one from the
# last GPU back to the first, is as fast as possible. If there are several such rings, return any of them. On the two
# DGX servers, the check also models an all-reduce over your ring; it must be as fast as over the best one.
#
# `links[i][j]` is what `nvidia-smi topo -m` prints in row `GPUi`, column `GPUj`. The checks use other servers, with up
# to eight GPUs and arbitrary wiring, so your function has to search. Eight GPUs have only a few thousand rings.

# %% answer="best-ring"
SLOWEST_FIRST = ["SYS", "NODE", "PHB", "PXB", "PIX"]  # and then NV1, NV2, ...


def best_ring(links, count):
    """Return the GPU numbers of a ring whose slowest hop is as fast as possible (a list of ints).

    Args:
        links: the entries of `nvidia-smi topo -m` for each pair of GPUs, a list of lists of strings; "X" is the GPU
            itself.
        count: how many GPUs are in the ring, 2 or more.
    """
    ### BEGIN SOLUTION
    def speed(link):
        if link.startswith("NV"):
            return len(SLOWEST_FIRST) + int(link[2:])
        return -1 if link == "X" else SLOWEST_FIRST.index(link)

    speeds = [[speed(link) for link in row] for row in links]

    def slowest(ring):
        return min(speeds[one][other] for one, other in zip(ring, ring[1:] + ring[:1], strict=True))

    # A ring has no beginning, so each one may start at its lowest GPU.
    rings = ((first, *rest) for first, *others in itertools.combinations(range(len(links)), count)
             for rest in itertools.permutations(others))
    return list(max(rings, key=slowest))
    ### END SOLUTION

# %% check="best-ring" points=4
from lablib import servers

SIZE = 498_000_000  # bytes of the tensor that is all-reduced
for server, card, order in (("DGX-1 (V100)", "v100", (5, 2, 0, 7, 3, 6, 1, 4)), ("DGX A100", "a100", range(8)),
                            ("dual-socket PCIe server", None, (3, 6, 0, 5, 1, 7, 4, 2))):
    entries = servers.matrix(server, order)
    for count in (2, 3, 4, 8):
        ring = check.call(best_ring, entries, count)
        check.that(servers.is_ring(ring, count),
                   f"On a {server}, best_ring returned {ring!r}, which is not a list of {count} different GPU "
                   "numbers.")
        slow, story = servers.slowest_hop(entries, ring), f"On a {server}"
        fast = slow["enough"]
        if card:  # order has the GPUs of the model behind these numbers
            seconds, best = (servers.ring_seconds(card, [order[gpu] for gpu in ring], SIZE),
                             servers.best_ring_seconds(card, count, SIZE))
            fast = seconds <= 1.000001 * best
            story += (f", an all-reduce of {SIZE / 1e6:.0f} MB takes {1e3 * seconds:.1f} ms over your ring, and "
                      f"{1e3 * best:.1f} ms over the best one (modeled)")
        check.that(fast or not slow["closes"],
                   f"{story}. The last hop of the ring {ring}, back to GPU {slow['to']}, goes over {slow['link']}. It counts, "
                   "too: there is a ring whose slowest hop is faster.")
        check.that(fast, f"{story}. The ring {ring} sends from GPU {slow['from']} to GPU {slow['to']} over {slow['link']}, "
                   "and there is a ring whose slowest hop is faster.")
MIXED = [["X", "NV12", "NV4"], ["NV12", "X", "NV4"], ["NV4", "NV4", "X"]]
ring = check.call(best_ring, MIXED, 2)
check.that(servers.is_ring(ring, 2, 3) and servers.slowest_hop(MIXED, ring)["enough"],
           f"NV12 connects GPUs 0 and 1, and NV4 the other pairs of three GPUs: best_ring returned {ring!r}. The number "
           "after NV may have two digits.")
### BEGIN HIDDEN TESTS
def drawn_wiring(source):
    """Draw the links of a server, with the speeds of servers of one of several generations."""
    gpus = source.randrange(4, 8)
    kinds = source.choice([["SYS", "NODE", "NV1", "NV2"], ["SYS", "PHB", "PXB", "PIX"], ["SYS", "NV4", "NV12", "PIX"]])
    links = [["X"] * gpus for _ in range(gpus)]
    for one in range(gpus):
        for other in range(one):
            links[one][other] = links[other][one] = source.choice(kinds)
    return links


for case in check.draw(8, links=drawn_wiring, count=[2, 3, 4]):
    ring = check.call(best_ring, case["links"], case["count"])
    check.that(servers.is_ring(ring, case["count"], len(case["links"])) and servers.slowest_hop(case["links"], ring)["enough"],
               "It fails on a server that is wired differently.")
### END HIDDEN TESTS

# %% [raw] mutant="best-ring" hint="It counts, too"
# -        return min(speeds[one][other] for one, other in zip(ring, ring[1:] + ring[:1], strict=True))
# +        return min(speeds[one][other] for one, other in zip(ring, ring[1:], strict=False))

# %% [raw] mutant="best-ring" hint="and there is a ring whose slowest hop"
# -        return min(speeds[one][other] for one, other in zip(ring, ring[1:] + ring[:1], strict=True))
# +        return max(speeds[one][other] for one, other in zip(ring, ring[1:] + ring[:1], strict=True))

# %% [raw] mutant="best-ring" hint="and there is a ring whose slowest hop"
# -        return min(speeds[one][other] for one, other in zip(ring, ring[1:] + ring[:1], strict=True))
# +        return sum(speeds[one][other] for one, other in zip(ring, ring[1:] + ring[:1], strict=True))

# %% [raw] mutant="best-ring" hint="and there is a ring whose slowest hop"
# -    return list(max(rings, key=slowest))
# +    return list(range(count))

# %% [raw] mutant="best-ring" hint="and there is a ring whose slowest hop"
# -        return -1 if link == "X" else SLOWEST_FIRST.index(link)
# +        return -1 if link == "X" else len(SLOWEST_FIRST) - SLOWEST_FIRST.index(link)

# %% [raw] mutant="best-ring" hint="may have two digits"
# -            return len(SLOWEST_FIRST) + int(link[2:])
# +            return len(SLOWEST_FIRST) + int(link[2])

# %% [raw] mutant="best-ring" hint="which is not a list of"
# -    return list(max(rings, key=slowest))
# +    return [f"GPU{gpu}" for gpu in max(rings, key=slowest)]

# %% [raw] mutant="best-ring" hint="wired differently"
# -    return list(max(rings, key=slowest))
# +    if not any(link in SLOWEST_FIRST[:-1] for link in links[0]):  # "all pairs are the same on such a server"
# +        return list(range(count))
# +    return list(max(rings, key=slowest)) if len(links) == 8 else list(range(count))

# %% [markdown]
# All eight V100s of the DGX-1 **all-reduce** the gradients of GPT-2 small, 498 MB (124 million parameters, 4 bytes
# each): every GPU ends up with the sum over all eight. How many times faster is a ring in your order than in the order
# 0, 1, ..., 7?

# %% answer="guess-ring"
### BEGIN SOLUTION
guess_ring = 3
### END SOLUTION

# %% tags=["explore"]
wiring = servers.matrix("DGX-1 (V100)")
seconds = [servers.ring_seconds("v100", ring, size=498_000_000) for ring in (best_ring(wiring, 8), range(8))]
print(f"your ring: {1e3 * seconds[0]:.1f} ms; in the order of the numbers: {1e3 * seconds[1]:.1f} ms (modeled)")
check.compare("times faster", guess_ring, seconds[1] / seconds[0])

# %% [markdown]
# The ring in the order of the numbers crosses the sockets twice, from GPU 3 to 4 and from GPU 7 to 0. The model takes from
# [NCCL's source](https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.h) what NCCL expects: 6 GB/s between these
# sockets, and 20 GB/s over each NVLink.

# %% tags=["explore"]
for count in (4, 8):
    ring = best_ring(wiring, count)
    print(f"DGX-1, {count} GPUs: export CUDA_DEVICE_ORDER=PCI_BUS_ID "
          f"CUDA_VISIBLE_DEVICES={result(','.join(map(str, ring)))}")

# %% [markdown]
# On the DGX-1, a ring of all eight GPUs has a faster slowest hop than any ring of four. NCCL, NVIDIA's library for
# **collectives** (operations in which all ranks take part), finds rings by itself, but choosing the *GPUs* is up to
# you or to Slurm. (Without `CUDA_DEVICE_ORDER`, CUDA may number them differently from `nvidia-smi`.)
#
# What is a good choice worth? Four GPUs all-reduce the same gradients, now with NCCL. It splits the tensor over several
# rings at once, as many as the NVLinks allow, so it is faster than any single ring:

# %% tags=["explore"]
for gpus in ([0, 1, 2, 3], [0, 1, 6, 7]):
    seconds = links.all_reduce("v100", gpus, size=498_000_000)
    print(f"GPUs {gpus}: {result(f'{1e3 * seconds:.1f} ms')} (virtual)")

# %% [markdown]
# NVLink connects GPU 0 to 1 and GPU 6 to 7, but neither pair to the other, so every ring through these four crosses
# the sockets. Now ask your own cluster for two GPUs of one node:

# %% tags=["explore"]
mine = !srun --gpus-per-node=2 nvidia-smi topo -m
print("\n".join(mine))

# %% [markdown]
# ## The cost of a transfer
#
# How long does it take to send $n$ bytes over a link? A simple model has two parameters ([Hockney,
# 1994](https://doi.org/10.1016/S0167-8191(06)80021-9)):
#
# $$ T(n) = \alpha + \frac{n}{B}. $$
#
# The **latency** $\alpha$ is paid once per transfer, and the **bandwidth** $B$ determines what each byte costs. Both
# terms are equal at $n_{1/2} = \alpha B$ bytes. Far below $n_{1/2}$, a transfer is **latency-bound**: a faster link
# is useless, and you should send fewer, larger tensors. Far above, it is **bandwidth-bound**.
#
# To measure a link, send something back and forth, which is called **ping-pong**. The clocks of two nodes may differ,
# but each rank can time round trips with its own.

# %% [markdown]
# ### Exercise 2: ping-pong
#
# Write `ping_pong`, which ranks 0 and 1 call at the same time (`dist.get_rank()` tells which one it is). A tensor makes
# `rounds + 1` round trips from rank 0 to rank 1 and back, and rank 1 adds 1 to its first element each time. In the end,
# both ranks hold the same values, each in the tensor that it was given. `dist.send(tensor, dst=1)` and
# `dist.recv(tensor, src=0)` wait until the other rank makes the matching call.
#
# The first round trip also sets up the connection, so it does not count: it is a **warm-up**. Both ranks return the average
# time of one transfer in *one* direction in the other rounds. `clock()` returns the current time in seconds:
# `time.perf_counter` on the cluster, a clock of its own in the check.

# %% answer="ping-pong"
def ping_pong(tensor, rounds, clock):
    """Bounce a tensor between ranks 0 and 1, and return the time of one transfer in one direction.

    Args:
        tensor: what to send; rank 1 adds 1 to its first element in every round, in place.
        rounds: how many round trips to time, after one that is not timed.
        clock: a function that returns the time in seconds.
    """
    ### BEGIN SOLUTION
    rank = dist.get_rank()
    for number in range(rounds + 1):
        if number == 1:  # round 0 was the warm-up
            begin = clock()
        if rank == 0:
            dist.send(tensor, dst=1)
            dist.recv(tensor, src=1)
        else:
            dist.recv(tensor, src=0)
            tensor[0] += 1
            dist.send(tensor, dst=0)
    return (clock() - begin) / (2 * rounds)
    ### END SOLUTION

# %% tags=["driver"]
def bounced(length, fill, rounds, first, later):
    """Run ping_pong with a clock that advances with the rounds that the tensor has counted.

    Args:
        length: elements of the tensor.
        fill: the value of all elements but the first, which counts rounds; different on each rank.
        rounds: how many rounds to time.
        first: seconds of the first round.
        later: seconds of each later one.

    Returns the measured seconds, and the sum of the tensor's elements.
    """
    import torch

    tensor = torch.full((length,), fill)
    tensor[0] = 0

    def clock():
        done = tensor[0].item()
        return first * min(done, 1.0) + later * max(done - 1.0, 0.0)

    return [ping_pong(tensor, rounds, clock), tensor.double().sum().item()]

# %% check="ping-pong" points=4
(run,) = check.ranks(
    bounced, ranks=2, cases=[{"length": 1000, "fill": check.by_rank([2.0, 7.0]), "rounds": 5, "first": 1000.0,
                              "later": 10.0}],
    expected=[[[5.0, 2004.0]] * 2],
    hints={"Both ranks wait in the same operation. Who sends while the other one receives?": "deadlock",
           "That is the time of a round trip, there and back.": [[[10.0, 2004.0]] * 2],
           "That is the time of all rounds together.": [[[25.0, 2004.0]] * 2],
           "The clock already runs during the warm-up.": [[[105.0, 2004.0]] * 2],
           "There is no warm-up: the first round sets up the connection, and you time it.": [[[104.0, 2003.0]] * 2],
           "Rank 1 adds 1 before it sends the tensor back. Rank 0 changes nothing.": [[[10.0, 2010.0], [10.0, 2009.0]]],
           "Rank 1 has to add 1 to the tensor in every round: this clock counts rounds by it.": [[[0.0, 1998.0]] * 2],
           "Rank 1 adds 1 to the first element alone.": [[[5.0, 7998.0]] * 2],
           "Rank 1 still has elements of its own: only the first one has been sent. Send the whole tensor.":
               [[[5.0, 2004.0], [5.0, 6999.0]]],
           "Rank 1 has to receive into `tensor` itself.": [[[5.0, 2004.0], [0.0, 6993.0]]]})


def require_rounds(run, length, rounds):
    """Require that both ranks send the whole tensor once in each round, the warm-up included."""
    for rank in (0, 1):
        sent = [call.bytes for call in run.calls(rank, "send")]
        check.that(sent == [4 * length] * (rounds + 1),
                   f"Rank {rank} sends {sent} bytes. It should send the whole tensor, of {4 * length:,} bytes, once in "
                   f"each of the {rounds + 1} rounds.")


require_rounds(run, 1000, 5)
### BEGIN HIDDEN TESTS
drawn = check.draw(2, length=range(2, 50_000), fill=check.for_each_rank(check.between(1, 9)), rounds=range(1, 12),
                   first=check.between(5, 300), later=check.between(0.5, 2))
for run, case in zip(check.ranks(bounced, ranks=2, cases=drawn, expected=lambda ranks, length, fill, rounds, first,
                                 later: [[later / 2, fill[0] * (length - 1) + rounds + 1]] * 2), drawn, strict=True):
    require_rounds(run, case["length"], case["rounds"])
### END HIDDEN TESTS

# %% [raw] mutant="ping-pong" hint="Both ranks wait in the same operation"
# -        if rank == 0:
# -            dist.send(tensor, dst=1)
# -            dist.recv(tensor, src=1)
# -        else:
# -            dist.recv(tensor, src=0)
# -            tensor[0] += 1
# -            dist.send(tensor, dst=0)
# +        dist.send(tensor, dst=1 - rank)
# +        dist.recv(tensor, src=1 - rank)
# +        tensor[0] += rank

# %% [raw] mutant="ping-pong" hint="a round trip, there and back"
# -    return (clock() - begin) / (2 * rounds)
# +    return (clock() - begin) / rounds

# %% [raw] mutant="ping-pong" hint="all rounds together"
# -    return (clock() - begin) / (2 * rounds)
# +    return (clock() - begin) / 2

# %% [raw] mutant="ping-pong" hint="The clock already runs"
# -        if number == 1:  # round 0 was the warm-up
# +        if number == 0:

# %% [raw] mutant="ping-pong" hint="There is no warm-up"
# -    for number in range(rounds + 1):
# -        if number == 1:  # round 0 was the warm-up
# +    for number in range(rounds):
# +        if number == 0:

# %% [raw] mutant="ping-pong" hint="Rank 0 changes nothing"
# -            dist.recv(tensor, src=1)
# +            dist.recv(tensor, src=1)
# +            tensor[0] += 1

# %% [raw] mutant="ping-pong" hint="has to add 1 to the tensor"
# -            tensor[0] += 1

# %% [raw] mutant="ping-pong" hint="the first element alone"
# -            tensor[0] += 1
# +            tensor += 1

# %% [raw] mutant="ping-pong" hint="receive into `tensor` itself"
# -            dist.recv(tensor, src=0)
# -            tensor[0] += 1
# -            dist.send(tensor, dst=0)
# +            received = tensor.clone()
# +            dist.recv(received, src=0)
# +            received[0] += 1
# +            dist.send(received, dst=0)

# %% [raw] mutant="ping-pong" hint="It should send the whole tensor"
# def ping_pong(tensor, rounds, clock):
#     tensor[1:] = 2.0
#     for number in range(rounds + 1):
#         if number == 1:
#             begin = clock()
#         tensor[0] += 1
#     return (clock() - begin) / (2 * rounds)

# %% [raw] mutant="ping-pong" hint="only the first one has been sent"
# -            dist.send(tensor, dst=1)
# -            dist.recv(tensor, src=1)
# +            dist.send(tensor[:1], dst=1)
# +            dist.recv(tensor[:1], src=1)
# -            dist.recv(tensor, src=0)
# +            dist.recv(tensor[:1], src=0)
# -            dist.send(tensor, dst=0)
# +            dist.send(tensor[:1], dst=0)

# %% [markdown]
# ### Measure your cluster's links
#
# The next cell saves your function, and nothing else, as a file; if it needs more than `dist`, import that inside the
# function. `code/messages.py` calls it on two ranks with tensors from 4 bytes to 16 MiB, several times each.

# %% tags=["explore"]
with open("code/ping_pong.py", "w") as file:
    file.write("import torch.distributed as dist\n\n\n" + inspect.getsource(ping_pong))
!sed -n '/^def rendezvous/,$p' code/messages.py

# %% [markdown]
# What bandwidth will two ranks on the same node reach, in **MB/s**?

# %% answer="guess-megabytes"
### BEGIN SOLUTION
guess_megabytes = 2000
### END SOLUTION

# %% tags=["explore"]
!srun --nodes=1 --ntasks=2 python code/messages.py code/ping_pong.py > megatron/logs/messages_one_node.txt
!head -n 4 megatron/logs/messages_one_node.txt
!tail -n 3 megatron/logs/messages_one_node.txt
one_node = links.read("one node", "megatron/logs/messages_one_node.txt")
check.compare("MB/s", guess_megabytes, one_node.fit.bandwidth / 1e6)

# %% [markdown]
# And between two nodes?

# %% tags=["explore"]
!srun --nodes=2 --ntasks=2 python code/messages.py code/ping_pong.py > megatron/logs/messages_two_nodes.txt
two_nodes = links.read("two nodes", "megatron/logs/messages_two_nodes.txt")
links.plot(one_node, two_nodes)

# %% [markdown]
# Small transfers all take about the same time, the latency; large ones take time in proportion to their size. The
# thin lines are the fitted model.

# %% [markdown]
# ### Exercise 3: fit latency and bandwidth
#
# Estimate $\alpha$ and $B$ to within 10%. `points` is a list of pairs (bytes, seconds), in any order, with several
# measurements of each size, from 4 KiB to 64 MiB. Something else on the machine can make a transfer several times
# slower, but nothing makes it faster, and at least one measurement of each size is undisturbed, to within 3%. Which
# ones do you use? And what does least squares minimize when times range from microseconds to more than half a second?
#
# `np.polyfit(x, y, 1, w=weights)` fits a line and returns its slope and its intercept; before squaring it, it
# multiplies each point's distance from the line by the point's weight.

# %% answer="fit-link"
def fit_link(points):
    """Return the latency in seconds and the bandwidth in bytes/s of a link, (alpha, B).

    Args:
        points: measured transfers, as pairs (bytes, seconds).
    """
    ### BEGIN SOLUTION
    fastest = {}
    for size, seconds in points:
        fastest[size] = min(seconds, fastest.get(size, seconds))
    seconds = np.array(list(fastest.values()))
    # Weighted like this, relative errors count, and the small transfers decide the latency.
    slope, intercept = np.polyfit(list(fastest), seconds, 1, w=1 / seconds)
    return float(intercept), float(1 / slope)
    ### END SOLUTION

# %% tags=["check-setup"]
import random


def measured(latency, bandwidth, seed):
    """Return four noisy measurements of transfers of 4 KiB to 64 MiB, up to three disturbed."""
    source = random.Random(seed)
    points = []
    for power in range(6, 14):
        seconds = latency + 4**power / bandwidth
        slower = [source.uniform(1, 1.03), *(source.choice([1.01, source.uniform(2, 9)]) for _ in range(3))]
        points += [(4**power, float(f"{seconds * factor:.4g}")) for factor in slower]
    source.shuffle(points)
    return points


def is_pair(found):
    """Return whether this is a pair of numbers."""
    return isinstance(found, (tuple, list)) and len(found) == 2 and all(
        isinstance(one, (int, float)) for one in found)


def close(found, right):
    """Return whether a number is within 10%."""
    return abs(found - right) <= 0.1 * right

# %% check="fit-link" points=3
for latency, bandwidth, seed in ((20e-6, 1.2e9, 1), (3e-6, 100e9, 2), (150e-6, 0.11e9, 3), (80e-6, 270e9, 4)):
    found = check.call(fit_link, measured(latency, bandwidth, seed))
    check.that(is_pair(found), f"fit_link returned {found!r}, not a pair (latency, bandwidth) of numbers.")
    check.that(not (close(found[1], latency) and close(found[0], bandwidth)),
               "The numbers are right, but in the wrong order: return the latency first.")
    check.that(not close(found[1], 1 / bandwidth),
               f"{found[1]:.3g} is the time per byte, the slope of the line. What is the bandwidth?")
    check.that(close(found[1], bandwidth) or not close(found[0], latency),
               f"The latency is right, but a bandwidth of {found[1]:.3g} bytes/s is not. Only the large transfers "
               "show the bandwidth: which of their measurements do you use, and how much do they count?")
    check.that(found[1] >= 0.9 * bandwidth,
               f"A bandwidth of {found[1]:.3g} bytes/s is too low. Disturbed measurements are too slow, and none is "
               "too fast. Which ones should count?")
    check.that(not (close(found[1], bandwidth) and 1.1 * latency < found[0] < 1.5 * latency),
               f"The bandwidth is right, but a latency of {1e6 * found[0]:.3g} us is too long. Even 4 KiB take longer than "
               "the latency: what else do they pay for?")
    check.that(close(found[0], latency) or not close(found[1], bandwidth),
               f"The bandwidth is right, but a latency of {1e6 * found[0]:.3g} us is not. An error of one percent at "
               "64 MiB is larger than the whole latency: which errors should count equally?")
    check.that(close(found[0], latency) and close(found[1], bandwidth),
               f"A latency of {1e6 * found[0]:.3g} us and a bandwidth of {found[1]:.3g} bytes/s are not within 10%.")
### BEGIN HIDDEN TESTS
for case in check.draw(8, latency=check.between(1.5e-6, 90e-6, digits=8), bandwidth=[0.3e9, 3e9, 12e9, 48e9, 270e9],
                       seed=range(10, 10_000)):
    found = check.call(fit_link, measured(**case))
    check.that(is_pair(found) and close(found[0], case["latency"]) and close(found[1], case["bandwidth"]),
               "It is not within 10% for another link.")
### END HIDDEN TESTS

# %% [raw] mutant="fit-link" hint="which errors should count equally"
# -    slope, intercept = np.polyfit(list(fastest), seconds, 1, w=1 / seconds)
# +    slope, intercept = np.polyfit(list(fastest), seconds, 1)

# %% [raw] mutant="fit-link" hint="Which ones should count"
# -    for size, seconds in points:
# -        fastest[size] = min(seconds, fastest.get(size, seconds))
# +    for size in {size for size, _ in points}:
# +        fastest[size] = float(np.mean([seconds for one, seconds in points if one == size]))

# %% [raw] mutant="fit-link" hint="the time per byte"
# -    return float(intercept), float(1 / slope)
# +    return float(intercept), float(slope)

# %% [raw] mutant="fit-link" hint="in the wrong order"
# -    return float(intercept), float(1 / slope)
# +    return float(1 / slope), float(intercept)

# %% [raw] mutant="fit-link" hint="how much do they count"
# -    slope, intercept = np.polyfit(list(fastest), seconds, 1, w=1 / seconds)
# +    slope, intercept = np.polyfit(list(fastest), seconds, 1, w=1 / np.array(list(fastest)))

# %% [raw] mutant="fit-link" hint="what else do they pay for"
# -    slope, intercept = np.polyfit(list(fastest), seconds, 1, w=1 / seconds)
# +    intercept, slope = min(seconds), (max(seconds) - min(seconds)) / max(fastest)

# %% [raw] mutant="fit-link" hint="are not within 10%"
# -    slope, intercept = np.polyfit(list(fastest), seconds, 1, w=1 / seconds)
# +    slope, intercept = np.polyfit(list(fastest), seconds, 1, w=1 / seconds)
# +    slope, intercept = slope / 1.2, intercept * 1.2

# %% [raw] mutant="fit-link" hint="for another link"
# -    return float(intercept), float(1 / slope)
# +    return (1.5e-4 if intercept > 1e-4 else 8e-5 if intercept > 5e-5 else 2e-5 if intercept > 1e-5 else 3e-6), float(1 / slope)

# %% [raw] mutant="fit-link" hint="not a pair"
# -    return float(intercept), float(1 / slope)
# +    return {"latency": float(intercept), "bandwidth": float(1 / slope)}

# %% [markdown]
# Your fit can predict what you have not measured: how long 16 MiB take if the network between your nodes is throttled to 1
# Gbit/s. The next cells combine the latency of your fit with 1 Gbit/s, and compare. (In *loopback mode*, or at a site with links of its own, nothing will change.)

# %% tags=["explore"]
!lab cluster link 1gbit

# %% tags=["explore"]
!srun --nodes=2 --ntasks=2 python code/messages.py code/ping_pong.py > megatron/logs/messages_slow.txt
slow = links.read("two nodes, 1 Gbit/s", "megatron/logs/messages_slow.txt")
latency, _ = fit_link(two_nodes.points)
predicted = latency + slow.sizes[-1] / (1e9 / 8)
check.compare("milliseconds for 16 MiB", 1e3 * predicted, 1e3 * slow.seconds[-1])
links.plot(two_nodes, slow)

# %% tags=["explore"]
!lab cluster link unlimited

# %% [markdown]
# The bandwidth has changed; the latency hardly has. A transfer uses its link well only if it is much larger than
# $n_{1/2}$, in the last column (latency and bandwidth are now those of *your* fit, which weighs all sizes, so they
# differ a little from the numbers above):

# %% tags=["explore"]
virtual_links = [links.virtual("v100"), links.virtual("t4"), links.virtual("v100", "ethernet:25gbit"),
                 links.virtual("h100", "infiniband:8x400gbit")]
print(f"{'':40}{'latency':>10}{'bandwidth':>14}{'n_1/2':>12}")
for curve in [one_node, two_nodes, *virtual_links]:
    latency, bandwidth = fit_link(curve.points)
    print(f"{curve.name:40}{1e6 * latency:7.1f} us{bandwidth / 1e9:9.2f} GB/s"
          f"{result(f'{latency * bandwidth / 1024:8,.0f} KiB')}")
latency, bandwidth = fit_link(links.virtual("v100", "ethernet:25gbit").points)
size, pieces = 400e6, 10_000
print("\n400 MB of gradients over 25 Gbit/s (virtual): "
      f"{good(f'{1e3 * (latency + size / bandwidth):.0f} ms')} in one transfer, "
      f"{bad(f'{1e3 * (pieces * latency + size / bandwidth):.0f} ms')} in {pieces:,}")

# %% [markdown]
# Two T4s have neither NVLinks nor a common PCIe switch, so NCCL copies their data through the host's memory. In the
# last row, a pair of GPUs reaches the bandwidth of one NIC, the one nearest to it, not that of its node's eight.

# %% [markdown]
# ## Compute or memory?
#
# A kernel reads its operands from the GPU's memory, computes, and writes its result back. The **arithmetic
# intensity** of a kernel is the number of FLOPs per byte that it moves. On a GPU with a peak of $P$ FLOP/s and a
# memory bandwidth of $B$ bytes/s, a kernel with $F$ FLOPs and $M$ bytes takes at least
#
# $$ T \ge \max\left(\frac{F}{P},\; \frac{M}{B}\right). $$
#
# This is the **roofline model** ([Williams, Waterman, and Patterson, 2009](https://doi.org/10.1145/1498765.1498785)).
# A kernel whose intensity is above the **ridge point** $P/B$ is **compute-bound**; below, it is **memory-bound**.
# Here are matrix multiplications, or **GEMMs**, of the shape [4096, k] x [k, 4096], from k = 1 to k = 4096, under the
# roofs of two virtual GPUs (on the slope, they are memory-bound):

# %% tags=["explore"]
shapes = [(4096, 4096, 2**power) for power in range(13)]
roofline.plot(roofline.virtual("v100", "fp16", shapes), roofline.virtual("h100", "bf16", shapes))

# %% [markdown]
# From the V100 to the H100, the flat part rose by more than the sloping part did, so the ridge point moved to the
# right, and some kernels that were compute-bound are memory-bound now.
#
# Your CPU has a roof as well. What peak do you expect of two of its cores in fp32, in **GFLOP/s**? With AVX2, a core
# does up to 32 FLOPs per clock cycle; with AVX-512, up to 64.

# %% answer="guess-gigaflops"
### BEGIN SOLUTION
guess_gigaflops = 100
### END SOLUTION

# %% tags=["explore"] short={"code/matmul.py": "code/matmul.py 1024"}
!srun --cpus-per-task=2 python code/matmul.py > megatron/logs/matmul.txt
cpu = roofline.read("megatron/logs/matmul.txt")
check.compare("GFLOP/s of two CPU cores", guess_gigaflops, cpu.peak / 1e9)
print(f"ridge point of this CPU: {result(f'{cpu.ridge:.0f} FLOPs per byte')}")
roofline.plot(cpu)

# %% [markdown]
# ### Exercise 4: build a roofline, and use it
#
# A data sheet's peak is a promise. The roof that counts is the one that kernels reach. You get the measured times of
# GEMMs on an unknown GPU. Build its roofline, and predict the times of other GEMMs to within 5%.
#
# Each GEMM consists of `batch` independent multiplications [m, k] x [k, n] of 16-bit matrices. Every multiplication reads
# its two operands and writes its result. Some measurements are several times too slow, because something else was running,
# but none is too fast, and at least one compute-bound and one memory-bound GEMM are within 2% of the roof.

# %% answer="predict"
def predict(measured, gemms):
    """Predict the times of GEMMs from measurements of others on the same GPU, in microseconds (a list of floats).

    Args:
        measured: a list of dictionaries with "batch", "m", "k", "n", and "microseconds".
        gemms: a list of dictionaries with "batch", "m", "k", and "n".
    """
    ### BEGIN SOLUTION
    def work(gemm):
        batch, m, k, n = (gemm[name] for name in ("batch", "m", "k", "n"))
        return 2 * batch * m * k * n, 2 * batch * (m * k + k * n + m * n)  # FLOPs, and bytes

    peak = max(work(one)[0] / one["microseconds"] for one in measured)
    bandwidth = max(work(one)[1] / one["microseconds"] for one in measured)
    return [max(work(one)[0] / peak, work(one)[1] / bandwidth) for one in gemms]
    ### END SOLUTION

# %% tags=["check-setup"]
def gemm(batch, m, k, n, **more):
    """Return a GEMM of the exercise."""
    return {"batch": batch, "m": m, "k": k, "n": n, **more}


MEASURED = [gemm(1, 4096, 4096, 4096, microseconds=4000.0), gemm(1, 1000, 1000, 1000, microseconds=20.0),
            gemm(10, 1000, 50, 1000, microseconds=22.0), gemm(10, 2000, 10, 2000, microseconds=400.0),
            gemm(1, 10, 1000, 10, microseconds=3.0)]
GEMMS = [gemm(1, 2000, 2000, 2000), gemm(40, 1000, 20, 1000), gemm(1, 1000, 1000, 20)]

# %% check="predict" points=5
check.function(
    predict, rel=5e-2, cases=[{"measured": MEASURED, "gemms": GEMMS}], expected=[[160.0, 83.2, 2.08]],
    hints={
        "A kernel computes while it loads, so its time is that of the slower of the two.": [[184.0, 99.2, 2.48]],
        "Some measurements are far too slow, and none is too fast. Which of them show the roof?":
            [[439.85, 270.03, 6.7508]],
        "A batch of multiplications takes `batch` times the FLOPs and `batch` times the bytes.":
            [[160.0, 6.9333, 6.9333]],
        "The result has to be written, too.": [[160.0, 16.0, 10.2]],
        "All of these GEMMs would be compute-bound. Where is the ridge point of this GPU?": [[160.0, 16.0, 0.4]],
        "That is in seconds.": [[160e-6, 83.2e-6, 2.08e-6]]})
### BEGIN HIDDEN TESTS
def drawn_gpu(source):
    """Draw measurements of a GPU, the GEMMs to predict, and their times."""
    peak, bandwidth = source.uniform(30e6, 1000e6), source.uniform(0.3e6, 4e6)  # per microsecond

    def roof(one):
        m, k, n = one["m"], one["k"], one["n"]
        return one["batch"] * max(2 * m * k * n / peak, 2 * (m * k + k * n + m * n) / bandwidth)

    def drawn():
        sizes = [source.randrange(16, 129), source.randrange(200, 9000), source.randrange(200, 9000)]
        source.shuffle(sizes)
        return gemm(source.choice([1, 1, 12, 96]), *sizes)

    sure = [gemm(1, 16384, 16384, 16384), gemm(source.randrange(1, 30), 4096, 8, 4096)]
    others = [drawn() for _ in range(10)]
    measured = [{**one, "microseconds": roof(one) * source.uniform(1, 1.01)} for one in sure]
    measured += [{**one, "microseconds": roof(one) * source.choice([1.005, source.uniform(1.5, 9)])} for one in others]
    source.shuffle(measured)
    gemms = [drawn() for _ in range(5)] + [gemm(1, *(source.randrange(500, 9000) for _ in range(3))) for _ in range(3)]
    return [measured, gemms, [roof(one) for one in gemms]]


drawn = check.draw(12, gpu=drawn_gpu)
check.function(predict, rel=5e-2, cases=[tuple(one["gpu"][:2]) for one in drawn],
               expected=[one["gpu"][2] for one in drawn])
### END HIDDEN TESTS

# %% [raw] mutant="predict" hint="the slower of the two"
# -    return [max(work(one)[0] / peak, work(one)[1] / bandwidth) for one in gemms]
# +    return [work(one)[0] / peak + work(one)[1] / bandwidth for one in gemms]

# %% [raw] mutant="predict" hint="Which of them show the roof"
# -    peak = max(work(one)[0] / one["microseconds"] for one in measured)
# -    bandwidth = max(work(one)[1] / one["microseconds"] for one in measured)
# +    peak = sum(work(one)[0] / one["microseconds"] for one in measured) / len(measured)
# +    bandwidth = sum(work(one)[1] / one["microseconds"] for one in measured) / len(measured)

# %% [raw] mutant="predict" hint="`batch` times the FLOPs"
# -        return 2 * batch * m * k * n, 2 * batch * (m * k + k * n + m * n)  # FLOPs, and bytes
# +        return 2 * m * k * n, 2 * (m * k + k * n + m * n)

# %% [raw] mutant="predict" hint="has to be written"
# -        return 2 * batch * m * k * n, 2 * batch * (m * k + k * n + m * n)  # FLOPs, and bytes
# +        return 2 * batch * m * k * n, 2 * batch * (m * k + k * n)

# %% [raw] mutant="predict" hint="Where is the ridge point"
# -    return [max(work(one)[0] / peak, work(one)[1] / bandwidth) for one in gemms]
# +    return [work(one)[0] / peak for one in gemms]

# %% [raw] mutant="predict" hint="in seconds"
# -    return [max(work(one)[0] / peak, work(one)[1] / bandwidth) for one in gemms]
# +    return [1e-6 * max(work(one)[0] / peak, work(one)[1] / bandwidth) for one in gemms]

# %% [markdown]
# Use it on the GEMMs of a transformer layer. From twelve GEMMs on a virtual GPU, it predicts those of the forward pass
# of one layer of GPT-2 small and of GPT-3, in the order in which they run: query, key, and value; the attention scores;
# the weighted values; the attention's output; and the two of the MLP.

# %% tags=["explore"]
def layer(s, h, heads):
    """Return the GEMMs of a GPT layer's forward pass, for one sequence of s tokens and hidden size h."""
    return [gemm(1, s, h, 3 * h), gemm(heads, s, h // heads, s), gemm(heads, s, s, h // heads), gemm(1, s, h, h),
            gemm(1, s, h, 4 * h), gemm(1, s, 4 * h, h)]


for name, dtype in (("v100", "fp16"), ("a100", "fp16"), ("h100", "bf16")):
    machine = roofline.virtual(name, dtype, [(4096, 4096, 2**power) for power in range(1, 13)])
    points = [gemm(1, one.m, one.k, one.n, microseconds=1e6 * one.seconds) for one in machine.gemms]
    for title, gemms in (("GPT-2 small", layer(1024, 768, 12)), ("GPT-3", layer(2048, 12_288, 96))):
        times = predict(points, gemms)
        # The FLOP/s of a memory-bound GEMM are below those of the best.
        rates = [2 * one["batch"] * one["m"] * one["k"] * one["n"] / time for one, time in zip(gemms, times, strict=True)]
        slow = [time for time, rate in zip(times, rates, strict=True) if rate < 0.99 * max(rates)]
        print(f"{title:12} {name}: {sum(times):8,.1f} us, {result(f'{sum(slow) / sum(times):4.0%}')} of it in "
              f"{len(slow)} memory-bound GEMMs of {len(gemms)} (modeled)")

# %% [markdown]
# By this model, the two GEMMs of attention, in which one dimension is only the head size, are memory-bound on all three
# GPUs, although GPT-3's are close to the V100's ridge point. On the H100, whose ridge point is higher, GPT-2's
# attention output joins them. An **elementwise** kernel between the GEMMs, such as GELU, reads a 16-bit number,
# computes, and writes one. It cannot use Tensor Cores, and without them, the ridge points of these GPUs are only 10 to
# 20 FLOPs per byte (15.7, 19.5, and 67 TFLOP/s in fp32). But even 20 FLOPs per number would be only 5 per byte. So
# these kernels are memory-bound on all three GPUs. A larger hidden size helps, because a GEMM's FLOPs grow faster than
# its bytes, and so does **fusion**: FlashAttention ([Dao et al., 2022](https://arxiv.org/abs/2205.14135)) computes
# scores, softmax, and weighted values in one kernel, and the $s \times s$ matrices never travel to memory. (The model
# ignores the L2 cache.)
#
# The **model FLOPs utilization** (MFU; [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311)) is the share of
# the peak that goes into FLOPs that the model itself requires. It never reaches 100%: Narayanan et al.
# ([2021](https://arxiv.org/abs/2104.04473)) report 52% on 3,072 A100s, recomputed FLOPs included, which MFU leaves
# out.

# %% [markdown]
# ## Tiles and waves
#
# Does a compute-bound kernel run at the peak? That also depends on its shape. In bf16, an H100 multiplies [4096,
# 4096] x [4096, **4095**] at what share of the FLOP/s that it reaches with [4096, 4096] x [4096, **4096**]?

# %% answer="guess-odd"
### BEGIN SOLUTION
guess_odd = 0.9
### END SOLUTION

# %% tags=["explore"]
around = roofline.virtual("h100", "bf16", [(4096, n, 4096) for n in range(4060, 4133)])
rates = {one.n: one.rate for one in around.gemms}
check.compare("share of the speed (virtual H100)", guess_odd, rates[4095] / rates[4096])
for one in roofline.virtual("h100", "bf16", [(1024, n, 768) for n in (50_257, 50_304)]).gemms:
    print(f"GPT-2 small's logits for 1,024 tokens and {one.n:,} entries: {result(f'{1e6 * one.seconds:.0f} us')} "
          "(virtual)")
roofline.plot_sizes(around, every=8)

# %% [markdown]
# **Alignment**, which this plot shows, is the first of two effects. Tensor Core kernels are fastest when all rows
# begin at multiples of 16 bytes, or 8 numbers of 16 bits ([NVIDIA's
# guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html); for an
# A100, it recommends multiples of 64). Before cuBLAS 11, other sizes could not use Tensor Cores at all. Today they
# can, but slower; the share above is fitted to a real H100, which reached 101 to 135 TFLOP/s where an aligned size reaches
# 755 (`benchmarks/results/gpu_h100.md` in the course's repository; its predictions are from before the fit). That is why GPT-2's vocabulary of 50,257 entries is **padded** to 50,304: the larger GEMM
# takes less time.
#
# **Tiles** are the second. Each **streaming multiprocessor** (SM) computes one tile of the result [m, n] at a time,
# and the tiles that all SMs compute at the same time are a **wave**. A tile that extends past the edge takes as long
# as a whole one (*tile quantization*), and a wave that is not full takes as long as a full one (*wave quantization*).
#
# ![Left: a matrix in two rows of five tiles; the last column and the last row extend past its edge. Right: four
# multiprocessors compute the ten tiles in three waves; in the last one, two are idle.](../images/tiles_and_waves.svg)

# %% [markdown]
# ### Exercise 5: choose the tile
#
# A GEMM library has kernels with several tile sizes. A large tile reuses more of what it loads, so it reaches a higher
# rate, but it wastes more at the edges and in the last wave ([NVIDIA's
# guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html)). Choose the
# kernel that finishes first. cuBLAS makes the same choice before each call, with a heuristic. Each SM works on one tile
# at a time.

# %% answer="fastest-tile"
def fastest_tile(m, n, sms, kernels):
    """Return the number of the kernel that finishes first, and its time in microseconds: (int, float).

    Args:
        m: rows of the result.
        n: columns of the result.
        sms: streaming multiprocessors of the GPU.
        kernels: a list of tuples: the rows and columns of a kernel's tile, and the microseconds that an SM needs for
            one tile. The first one has number 0.
    """
    ### BEGIN SOLUTION
    def time(number):
        rows, columns, microseconds = kernels[number]
        tiles = -(-m // rows) * -(-n // columns)
        return -(-tiles // sms) * microseconds

    best = min(range(len(kernels)), key=time)
    return best, time(best)
    ### END SOLUTION

# %% check="fastest-tile" points=4
KERNELS = [(256, 128, 40.0), (128, 128, 24.0), (64, 64, 9.0)]
check.function(
    fastest_tile, rel=1e-3,
    cases=[{"m": 2048, "n": 1280, "sms": 80, "kernels": KERNELS}, {"m": 2048, "n": 1281, "sms": 80, "kernels": KERNELS},
           {"m": 200, "n": 100, "sms": 4, "kernels": KERNELS}, {"m": 8192, "n": 8064, "sms": 108, "kernels": KERNELS},
           {"m": 100, "n": 130, "sms": 2, "kernels": KERNELS}],
    expected=[(0, 40.0), (1, 72.0), (2, 18.0), (0, 760.0), (1, 24.0)],
    hints={
        "A wave that is not full takes as long as a full one.":
            [(0, 40.0), (0, 44.0), (0, 10.0), (0, 746.667), (1, 24.0)],
        "What extends past the right edge and past the lower edge cannot share a tile. Round each direction by itself.":
            [(0, 40.0), (1, 72.0), (2, 18.0), (0, 760.0), (2, 18.0)],
        "What extends past the last whole tile needs a tile of its own, in both directions.":
            [(0, 40.0), (0, 40.0), (0, 0.0), (0, 760.0), (0, 0.0)],
        "That is the kernel with the highest rate. Here, its tiles do not fill the GPU well.":
            [(0, 40.0), (0, 80.0), (0, 40.0), (0, 760.0), (0, 40.0)],
        "That is the time of all tiles, one after the other. The SMs work at the same time.":
            [(0, 3200.0), (0, 3520.0), (0, 40.0), (0, 80640.0), (1, 48.0)]})
### BEGIN HIDDEN TESTS
def by_counting(m, n, sms, kernels):
    """Count the tiles one by one."""
    times = []
    for rows, columns, microseconds in kernels:
        tiles = sum(1 for _ in range(0, m, rows) for _ in range(0, n, columns))
        times.append(len(range(0, tiles, sms)) * microseconds)
    return times.index(min(times)), min(times)


def drawn_kernels(source):
    """Draw kernels whose times differ in every case."""
    shapes = source.sample([(64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (96, 80)], 4)
    return [(rows, columns, rows * columns / 1000 * source.uniform(0.8, 2)) for rows, columns in shapes]


check.function(
    fastest_tile, rel=1e-3,
    cases=check.draw(25, m=range(1, 4096, 7), n=range(1, 4096, 5), sms=[40, 80, 108, 132], kernels=drawn_kernels),
    expected=by_counting)
### END HIDDEN TESTS

# %% [raw] mutant="fastest-tile" hint="as long as a full one"
# -        return -(-tiles // sms) * microseconds
# +        return tiles / sms * microseconds

# %% [raw] mutant="fastest-tile" hint="needs a tile of its own"
# -        tiles = -(-m // rows) * -(-n // columns)
# +        tiles = (m // rows) * (n // columns)

# %% [raw] mutant="fastest-tile" hint="Round each direction"
# -        tiles = -(-m // rows) * -(-n // columns)
# +        tiles = -(-(m * n) // (rows * columns))

# %% [raw] mutant="fastest-tile" hint="do not fill the GPU well"
# -    best = min(range(len(kernels)), key=time)
# +    best = min(range(len(kernels)), key=lambda number: kernels[number][2] / kernels[number][0] / kernels[number][1])

# %% [raw] mutant="fastest-tile" hint="The SMs work at the same time"
# -        return -(-tiles // sms) * microseconds
# +        return tiles * microseconds

# %% [markdown]
# In the check's second case, a single column more almost doubles the time, and another tile is best. Over the matrix
# size, the speed is a sawtooth, here for a virtual A100 with its 108 SMs:

# %% tags=["explore"]
for n in (6912, 6976):
    number, time = fastest_tile(2048, n, 108, [(256, 128, 40.0)])
    print(f"{n} columns in tiles of 256 x 128: {result(f'{time / 40:.0f}')} waves")
roofline.plot_sizes(roofline.virtual("a100", "fp16", [(2048, n, 4096) for n in range(128, 8192, 64)]))

# %% [markdown]
# ## What limits this run?
#
# One limit is still missing. The CPU takes a few microseconds to launch a kernel. If kernels are shorter than that,
# the GPU waits for launches: the run is **launch-bound**, and neither more FLOP/s nor more bandwidth makes it faster.
# So there are five suspects:
#
# | limit | sign in a profile | remedies |
# |---|---|---|
# | `"compute"` | kernels above the ridge point | more or faster GPUs, lower precision, fewer FLOPs |
# | `"memory"` | kernels below the ridge point | fusion, 16-bit precision, faster memory |
# | `"launch"` | gaps between short kernels | larger batches, `torch.compile`, CUDA graphs (recorded launches) |
# | `"latency"` | many short communication calls | *buckets*: many gradients in one call |
# | `"bandwidth"` | few long communication calls | faster links, less data, overlap with computation |
#
# Here is the end of a step of five jobs, on one of their GPUs. Which job has which limit?

# %% tags=["explore"]
timelines = {name: suspects.timeline(job) for name, job in suspects.JOBS.items()}
suspects.plot(timelines)

# %% [markdown]
# A profiler such as Nsight Systems or `torch.profiler` writes a timeline as a list of events; here, each is a
# dictionary, with times in microseconds. For a kernel, `bytes` is what it moves to and from the GPU's memory; for a
# collective, what this GPU sends. (Real profiles are messier: streams overlap, and a collective's duration includes
# the wait for the slowest rank.)

# %% tags=["explore"]
for name in "AE":
    print(f"{name}: {len(timelines[name])} events; the last one:", timelines[name][-1])
print("GPU of A:", suspects.gpu_of(suspects.JOBS["A"]))

# %% [markdown]
# ### Exercise 6: diagnose a timeline
#
# Write `limit`, which names the limit that costs the most time between the first event's start and the last one's end.
# How to attribute the time is up to you: use the two models of this lab, one for kernels and one for transfers, and
# think about the time in which no event runs. Two events never overlap, but the list may be in any order. No case is
# close: the limit that costs the most time costs at least 1.2 times as much as any other. Count a communication call as
# bandwidth-bound if sending its bytes accounts for at least half of its time.

# %% answer="limit"
def limit(events, gpu):
    """Return what limits a run: "compute", "memory", "launch", "latency", or "bandwidth".

    Args:
        events: the events of one GPU, dictionaries with "kind" ("kernel" or "communication"), "start" and
            "end" in microseconds, "flops", and "bytes".
        gpu: a dictionary with "tflops", "memory_gb_per_s", and "network_gb_per_s".
    """
    ### BEGIN SOLUTION
    spent = dict.fromkeys(["compute", "memory", "launch", "latency", "bandwidth"], 0.0)
    for event in events:
        duration = event["end"] - event["start"]
        if event["kind"] == "kernel":
            compute = event["flops"] / (gpu["tflops"] * 1e6)
            memory = event["bytes"] / (gpu["memory_gb_per_s"] * 1e3)
            spent["compute" if compute > memory else "memory"] += duration
        else:
            sending = event["bytes"] / (gpu["network_gb_per_s"] * 1e3)
            spent["bandwidth" if sending >= duration / 2 else "latency"] += duration
    first, last = min(event["start"] for event in events), max(event["end"] for event in events)
    spent["launch"] = last - first - sum(spent.values())
    return max(spent, key=spent.get)
    ### END SOLUTION

# %% tags=["check-setup"]
GPU = {"tflops": 100.0, "memory_gb_per_s": 1000.0, "network_gb_per_s": 10.0}  # ridge point: 100


def profile(*pieces, order=1):
    """Return events: each piece is (kind, microseconds, flops, bytes), or a number of idle microseconds."""
    now, events = 100.0, []
    for piece in pieces:
        if isinstance(piece, tuple):
            kind, duration, flops, size = piece
            events.append({"name": kind, "kind": kind, "start": now, "end": now + duration,
                           "flops": flops, "bytes": size})
            now += duration
        else:
            now += piece
    return events[::order]


KERNEL, COMMUNICATION = "kernel", "communication"
PROFILES = {
    # Ten short memory-bound kernels; one compute-bound kernel takes longer than all of them.
    "compute": profile(*[(KERNEL, 5.0, 10**6, 4_000_000)] * 10, (KERNEL, 80.0, 7_000_000_000, 10_000_000)),
    # More FLOPs than bytes, and still below the ridge point.
    "memory": profile((KERNEL, 50.0, 2_000_000_000, 40_000_000), 5.0, (KERNEL, 30.0, 2_500_000_000, 1_000_000)),
    "launch": profile(*[(KERNEL, 2.0, 1000, 2000), 5.0] * 8, (KERNEL, 10.0, 900_000_000, 1_000_000)),
    # The same in another order: the gaps must be found nevertheless.
    "launch, reversed": profile(*[(KERNEL, 2.0, 1000, 2000), 5.0] * 8, (KERNEL, 10.0, 900_000_000, 1_000_000),
                                order=-1),
    "latency": profile((KERNEL, 60.0, 6 * 10**9, 10**6), *[(COMMUNICATION, 20.0, 0, 20_000)] * 6,
                       (COMMUNICATION, 50.0, 0, 450_000)),
    "bandwidth": profile((KERNEL, 60.0, 6 * 10**9, 10**6), *[(COMMUNICATION, 20.0, 0, 20_000)] * 6,
                         (COMMUNICATION, 150.0, 0, 1_200_000)),
}

# %% check="limit" points=5
check.function(
    limit, cases=[{"events": events, "gpu": GPU} for events in PROFILES.values()],
    expected=["compute", "memory", "launch", "launch", "latency", "bandwidth"],
    hints={
        "Count time, not events: one long kernel may outweigh many short ones.":
            ["memory", None, None, None, None, None],
        "More FLOPs than bytes does not make a kernel compute-bound. Where is the ridge point? Compare each kernel "
        "by itself.":
            [None, "compute", None, None, None, None],
        "In this timeline, the GPU is idle most of the time.": [None, None, "memory", None, None, None],
        "The events may be in any order: sort them before you look for gaps.":
            [None, None, None, "memory", None, None],
        "How long would sending these bytes take at the network's bandwidth? Compare that with how long "
        "the call took.": [None, None, None, None, "bandwidth", None],
        "Sending these bytes explains more than half of the long call. Is the network's bandwidth in bits or in "
        "bytes? All of these are in bytes.":
            [None, None, None, None, None, "latency"]})
### BEGIN HIDDEN TESTS
def drawn_profile(source):
    """Return (events, gpu, limit) in which one limit takes at least 1.3 times as long as any other."""
    gpu = {"tflops": source.choice([125.0, 312.0, 989.0]), "memory_gb_per_s": source.choice([900.0, 3352.0]),
           "network_gb_per_s": source.choice([0.4, 3.0, 25.0])}
    names = ["compute", "memory", "launch", "latency", "bandwidth"]
    answer, pieces = source.choice(names), []
    for name in names:
        rest = source.uniform(800, 1100) if name == answer else source.uniform(100, 600)
        count = source.choice([1, 3, 40])
        for _ in range(count):
            duration = rest / count
            flops = int(duration * gpu["tflops"] * 1e6 * source.uniform(0.3, 0.8))
            memory = int(duration * gpu["memory_gb_per_s"] * 1e3 * source.uniform(0.4, 0.9))
            network = duration * gpu["network_gb_per_s"] * 1e3
            pieces.append({"compute": (KERNEL, duration, flops, int(memory / 4)),
                           "memory": (KERNEL, duration, int(flops / 4), memory), "launch": duration,
                           "latency": (COMMUNICATION, duration, 0, int(network * source.uniform(0.01, 0.35))),
                           "bandwidth": (COMMUNICATION, duration, 0,
                                         int(network * source.uniform(0.65, 0.95)))}[name])
    source.shuffle(pieces)
    edge = (KERNEL, 1.0, 0, 10)  # gaps lie between events
    events = profile(edge, *pieces, edge)
    source.shuffle(events)
    return events, gpu, answer


drawn = [case["profile"] for case in check.draw(15, profile=drawn_profile)]
check.function(limit, cases=[(events, gpu) for events, gpu, _ in drawn], expected=[answer for *_, answer in drawn])
### END HIDDEN TESTS

# %% [raw] mutant="limit" hint="Count time, not events"
# -        duration = event["end"] - event["start"]
# +        duration, took = 1.0, event["end"] - event["start"]
# -            spent["bandwidth" if sending >= duration / 2 else "latency"] += duration
# +            spent["bandwidth" if sending >= took / 2 else "latency"] += duration
# -    spent["launch"] = last - first - sum(spent.values())
# +    idle = last - first - sum(event["end"] - event["start"] for event in events)
# +    spent["launch"] = len(events) if idle > (last - first) / 2 else 0

# %% [raw] mutant="limit" hint="Where is the ridge point"
# -            compute = event["flops"] / (gpu["tflops"] * 1e6)
# -            memory = event["bytes"] / (gpu["memory_gb_per_s"] * 1e3)
# +            compute, memory = event["flops"], event["bytes"]

# %% [raw] mutant="limit" hint="is idle most of the time"
# -    spent["launch"] = last - first - sum(spent.values())

# %% [raw] mutant="limit" hint="The events may be in any order"
# -    first, last = min(event["start"] for event in events), max(event["end"] for event in events)
# -    spent["launch"] = last - first - sum(spent.values())
# +    for before, after in zip(events, events[1:]):
# +        spent["launch"] += max(0, after["start"] - before["end"])
# +        if after["start"] < before["start"]:
# +            spent["launch"] = 0.0

# %% [raw] mutant="limit" hint="at the network's bandwidth"
# -            spent["bandwidth" if sending >= duration / 2 else "latency"] += duration
# +            spent["bandwidth"] += duration

# %% [raw] mutant="limit" hint="Is the network's bandwidth in bits"
# -            sending = event["bytes"] / (gpu["network_gb_per_s"] * 1e3)
# +            sending = event["bytes"] / (gpu["network_gb_per_s"] * 8e3)

# %% [markdown]
# A diagnosis is confirmed if its remedy works and the others don't. Here are your verdicts, and how three remedies
# change each job's throughput (*one bucket* is a single all-reduce for all gradients):

# %% tags=["explore"]
from dataclasses import replace

print(f"{'job':4}{'your diagnosis':>16}{'4x tokens':>12}{'one bucket':>12}{'4x network':>12}")
for name, events in timelines.items():
    job = suspects.JOBS[name]
    faster = {"infiniband:8x400gbit": "infiniband:8x1600gbit", "ethernet:100gbit": "ethernet:400gbit"}
    before = suspects.tokens_per_second(job)
    changed = [replace(job, tokens=4 * job.tokens), replace(job, bucketed=True),
               replace(job, link=faster[job.link or "infiniband:8x400gbit"])]
    gains = [suspects.tokens_per_second(one) / before for one in changed]
    print(f"{name:4}{limit(events, suspects.gpu_of(job)):>16}" + "".join(
        f"{(good if gain > 1.3 else str)(f'{gain:11.2f}x')}" for gain in gains))

# %% [markdown]
# The launch-bound job A handles four times the tokens in the same time, because it launches the same kernels. In B
# and C, they take four times as long. In D and E, communication takes most of the step, yet a faster network helps
# only the bandwidth-bound E. The latency-bound D needs a single, large all-reduce, which E has already. More tokens
# per all-reduce help both, but a larger batch changes the training itself ([lab 04](04_data_parallelism.ipynb)).
#
# Where did the eightfold speedup go? With a micro-batch of one sequence, many of GPT-2 small's kernels are
# memory-bound, and so is the optimizer: the H100's memory is less than four times as fast as the V100's. The GEMMs are
# small, and the H100 needs more tiles than the V100 to give each of its SMs one. And a kernel takes a few microseconds
# to start and to launch on any GPU, so the shorter the kernels are, the more that costs. The model assumes 2 us and 5 us;
# on a real H100, a small addition took 2.1 and 7.5 us (the file above), and Meta's trace analysis gives [5 to 20
# us](https://github.com/facebookresearch/HolisticTraceAnalysis/blob/main/docs/source/features/cuda_kernel_launch_stats.rst)
# for a launch. In longer steps, all of this matters less, so the H100 is at its best with large batches and wide layers:

# %% tags=["explore"]
for title, micro_batch, layers, hidden, heads in (
        ("GPT-2 small, micro-batch 1", 1, 12, 768, 12), ("GPT-2 small, micro-batch 16", 16, 12, 768, 12),
        ("4 layers of hidden size 4096, micro-batch 4", 4, 4, 4096, 32)):
    sizes = (f"--num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} --seq-length 1024 "
             "--max-position-embeddings 1024 "
             f"--micro-batch-size {micro_batch} --global-batch-size {micro_batch} --software-stack megatron-2021 ")
    slower, faster = [costs.of({name: f"--device virtual:{name} {dtype}"}, sizes)[0]
                      for name, dtype in (("v100-32gb", "--fp16"), ("h100", "--bf16"))]
    print(f"{title:45} {result(f'{slower.milliseconds / faster.milliseconds:.1f}')} times as fast, at "
          f"{faster.share_of_peak:.0%} MFU instead of {slower.share_of_peak:.0%} (virtual)")

# %% [markdown]
# ## Discuss
#
# 1. **Where to put the ranks.** Four ranks communicate all the time, and you have two nodes with four GPUs each. Do
#    you ask for one node or for two? What would change your mind?
# 2. **The faster network.** A job sends thousands of tensors of a few kilobytes in each step. Does twice the network
#    bandwidth help?
# 3. **The new GPU.** A new GPU has three times the peak and twice the memory bandwidth of yours. How much faster will
#    your training job be?
# 4. **Sizes that divide.** You will split each matrix across 8 GPUs. Why is a hidden size of 1024 faster than one of
#    1000?

# %% [markdown]
# ## Cleanup

# %% tags=["explore"]
!rm -f code/ping_pong.py megatron/logs/messages_*.txt megatron/logs/matmul.txt
!squeue --me

# %% [markdown]
# ## What you have learned
#
# Five numbers limit a run: FLOP/s, memory bandwidth, link bandwidth, latency, and launch overhead. $\alpha + n/B$ and
# $\max(F/P, M/B)$ turn the first four into times, and a profile shows which of the five you are paying for. You will
# meet them again in [the next lab](02_single_node.ipynb), where you split a model over two GPUs in three ways.
#
# ## Read next
#
# - [Williams, Waterman, and Patterson, 2009](https://doi.org/10.1145/1498765.1498785), *Roofline*: the model, with
#   ceilings for what a program leaves unused.
# - [Thakur, Rabenseifner, and Gropp, 2005](https://doi.org/10.1177/1094342005051521), *Optimization of collective
#   communication operations in MPICH*: what each collective costs.
# - [Austin et al., How to scale your model](https://jax-ml.github.io/scaling-book/roofline/): the same reasoning for
#   TPUs, with exercises.
# - [He, 2022](https://horace.io/brrr_intro.html), *Making deep learning go brrrr from first principles*: compute,
#   memory, and overhead in PyTorch.
