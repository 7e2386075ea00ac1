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
# # Cluster and hardware: what limits you
#
# Why does a training take as long as it does? Three things can be slow: the arithmetic, the memory
# that feeds it, and the links between the ranks. In this lab you look at what a cluster is made of,
# measure each of the three, and learn to say beforehand which one will be the limit.
#
# **You will be able to**
#
# - ask Slurm and a node what hardware there is, and say when a job can start;
# - say which link joins two ranks, and how long a message over it takes;
# - tell when a link's latency counts and when its bandwidth does;
# - tell whether a matrix product is limited by arithmetic or by memory, on any card;
# - compare what you reach with a data sheet, and give Tensor Cores the shapes that they need.
#
# **How it works.** Cells run with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where it
# says *Your turn*, you replace a line by your answer; the cell below checks it. Where you are asked
# for a guess, guess *before* you run.
#
# **Real and virtual.** Most people have no cluster of GPUs at home. The CPU, the messages between
# ranks and all that Slurm does are real here: you measure this machine. The GPUs may be **virtual**:
# models of real cards, made from their data sheets and from measurements that people have published.
# Wherever a figure is modeled, it says *virtual*.

# %% tags=["setup"]
import os

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace

# %% tags=["check-setup"]
from labkit import check

# What answers cannot import: they would hold the solution.
check.mask("job_monitor.nvidia_smi", "lab.notebook.links", "lab.notebook.roofline",
           "layout_estimator", "minimegatron", "pipeline_schedules", "virtualgpu")

# %% tags=["explore"]
from lab.notebook import jobs, links, roofline
from labcore.colors import bad, good, result

jobs.connect()
!scancel --user=$USER

# %% [markdown]
# ## What is there?
#
# ![Two nodes side by side. In each, CPUs with their memory are joined by PCIe to two GPUs. Each GPU
# has a memory of its own, and NVLink joins the two. Each node has a network adapter, and a network
# joins the nodes.](../images/cluster_hardware.svg)
#
# `sinfo` can show what the nodes have: CPUs, memory in MiB, and GPUs, which Slurm calls `gres`
# (*generic resources*). A **partition** is a group of nodes with a name; the star marks the one that
# jobs go to when they name none.

# %% tags=["explore"]
!sinfo --format="%P %N %c %m %G %t" | column -t

# %% [markdown]
# `scontrol` knows everything about one node; here it is asked about the first one. Look for `CPUTot`
# and `CPUAlloc`, the CPUs that there are and that jobs hold, for `RealMemory`, and for `Gres`.

# %% tags=["explore"]
!scontrol show node $(sinfo --noheader --Node --format=%N | head -n 1)

# %% [markdown]
# Slurm believes what its administrator has told it. What is really there, a node says itself: `srun`
# runs a command on a node and shows what it prints. (With `srun` you wait; with `sbatch` you do not.)

# %% tags=["explore"]
!srun lscpu | grep --extended-regexp "^(Model name|CPU\(s\)|Thread|Core|Socket|NUMA node\(s\)|L3)"

# %% [markdown]
# Do the two agree? On this course's own cluster they need not: every node says that it has 32 CPUs,
# so that scripts from large clusters can be submitted, and all nodes share the cores of your machine.
# On a site's cluster they agree.

# %% [markdown]
# ### Exercise 1: can it start?
#
# A job asks for a number of nodes and for a number of CPUs on each of them. Given how many CPUs are
# idle on every node now, can it start at once?

# %% nbgrader={"grade": false, "grade_id": "can-start", "locked": false, "schema_version": 3, "solution": true, "task": false}
def can_start(idle, nodes, cpus_per_node):
    """Whether (True or False) a job can start now.

    idle: the number of idle CPUs of each node (a list of ints).
    """
    ### BEGIN SOLUTION
    return sum(cpus >= cpus_per_node for cpus in idle) >= nodes
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "can-start-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    can_start,
    cases=[{"idle": [32, 32], "nodes": 2, "cpus_per_node": 8},
           {"idle": [4, 4, 4, 4], "nodes": 1, "cpus_per_node": 16},
           {"idle": [32, 2], "nodes": 2, "cpus_per_node": 20},
           {"idle": [0, 8, 0, 8], "nodes": 2, "cpus_per_node": 8}],
    expected=[True, False, False, True],
    hints={
        "There are enough CPUs on all nodes together, but the job cannot gather them: it needs so "
        "many on each of its nodes.": [True, True, False, True],
        "One node has enough; the job asks for more nodes than that one.": [True, False, True, True],
        "It does not need every node of the cluster: which of them would do?":
            [True, False, False, False],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, idle=lambda source: [source.choice([0, 4, 8, 31, 32]) for _ in range(4)],
                   nodes=[1, 2, 3, 4], cpus_per_node=[1, 4, 8, 32])
check.function(can_start, cases=drawn,
               expected=lambda idle, nodes, cpus_per_node:
                   len([cpus for cpus in idle if cpus >= cpus_per_node]) >= nodes)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="can-start" hint="cannot gather them"
# def can_start(idle, nodes, cpus_per_node):
#     return sum(idle) >= nodes * cpus_per_node

# %% [raw] tags=["mutant"] answer="can-start" hint="One node has enough"
# def can_start(idle, nodes, cpus_per_node):
#     return max(idle) >= cpus_per_node

# %% [raw] tags=["mutant"] answer="can-start" hint="which of them would do?"
# def can_start(idle, nodes, cpus_per_node):
#     return len(idle) >= nodes and min(idle) >= cpus_per_node

# %% [markdown]
# ## GPUs, and how they are joined
#
# `nvidia-smi -L` lists GPUs. The next line asks Slurm for two of them on one node and shows how they
# reach each other: each row and column is a GPU, and where they cross stands the link.

# %% tags=["explore"]
!nvidia-smi -L
!srun --gpus-per-node=2 nvidia-smi topo -m

# %% [markdown]
# `NV` and a number means so many NVLinks side by side, `PHB` means PCIe, and `SYS` a way through the
# host's memory. Between nodes there is only the network. Data sheets name the links' bandwidth **per
# direction**, or for both directions together, which is twice as much: always look which one it is.
#
# These cards can be modeled (`lab devices CARD` shows all figures of one, with their sources). How
# much faster is NVLink than PCIe? And a card's own memory than both? All are in gigabytes per second.

# %% tags=["explore"]
from virtualgpu.core.cards import CARDS

print(f"{'data sheets':16}{'NVLink':>8}{'PCIe':>8}{'memory':>8}")
for card in CARDS.values():
    nvlink = f"{card.nvlink / 1e9:.0f}" if card.nvlink else "-"
    print(f"{card.name:16}{nvlink:>8}{card.pcie / 1e9:8.0f}{card.bandwidth / 1e9:8.0f}")

# %% [markdown]
# ### Exercise 2: which link?
#
# Every rank has a GPU of its own. Ranks are numbered node by node, as `torchrun` does it: on nodes of
# two GPUs, ranks 0 and 1 are on the first node. All nodes look alike, and `matrix` is what
# `nvidia-smi topo -m` shows on each of them. Which link joins two ranks? Return the matrix' entry, or
# `"network"` when they are on different nodes.

# %% nbgrader={"grade": false, "grade_id": "link-between", "locked": false, "schema_version": 3, "solution": true, "task": false}
def link_between(a, b, matrix):
    """What joins ranks a and b: "network" or an entry of the matrix, such as "NV6".

    matrix: a list of rows, one for each GPU of a node.
    """
    ### BEGIN SOLUTION
    gpus = len(matrix)
    if a // gpus != b // gpus:
        return "network"
    return matrix[a % gpus][b % gpus]
    ### END SOLUTION

# %% tags=["check-setup"]
TWO = [["X", "NV6"], ["NV6", "X"]]
FOUR = [["X", "NV4", "PHB", "SYS"], ["NV4", "X", "SYS", "PHB"],
        ["PHB", "SYS", "X", "NV4"], ["SYS", "PHB", "NV4", "X"]]

# %% nbgrader={"grade": true, "grade_id": "link-between-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    link_between,
    cases=[{"a": 0, "b": 1, "matrix": TWO}, {"a": 2, "b": 6, "matrix": FOUR},
           {"a": 1, "b": 2, "matrix": TWO}, {"a": 5, "b": 7, "matrix": FOUR},
           {"a": 11, "b": 9, "matrix": FOUR}],
    expected=["NV6", "network", "network", "PHB", "PHB"],
    hints={
        "Neighbors by number need not be on one node: which rank is the last of a node?":
            ["NV6", "network", "NV6", "PHB", "PHB"],
        "That is what joins two GPUs with these places on one node; but are they on the same node?":
            ["NV6", "X", "NV6", "PHB", "PHB"],
        "These two are on one node: no network is needed.":
            ["NV6", "network", "network", "network", "network"],
    })
### BEGIN HIDDEN TESTS
check.function(
    link_between,
    cases=check.draw(30, a=range(12), b=range(12), matrix=[TWO, FOUR]),
    expected=lambda a, b, matrix: (matrix[a % len(matrix)][b % len(matrix)]
                                   if a // len(matrix) == b // len(matrix) else "network"))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="link-between" hint="but are they on the same node?"
# def link_between(a, b, matrix):
#     return matrix[a % len(matrix)][b % len(matrix)]

# %% [raw] tags=["mutant"] answer="link-between" hint="Neighbors by number"
# def link_between(a, b, matrix):
#     return matrix[0][1] if abs(a - b) < 2 else "network"

# %% [raw] tags=["mutant"] answer="link-between" hint="no network is needed"
# def link_between(a, b, matrix):
#     if a < len(matrix) and b < len(matrix):
#         return matrix[a][b]
#     return "network"

# %% [markdown]
# ## How fast is a link?
#
# A message takes some time even when it is tiny: programs must be called, packets made, the far side
# woken up. That is the **latency**. Each byte takes a little more time, given by the **bandwidth**:
#
# $$\text{seconds} = \text{latency} + \frac{\text{bytes}}{\text{bandwidth}}$$
#
# ### Exercise 3: the time of a message
#
# Networks are sold in **bits** per second: an Ethernet of 25 Gbit/s carries 25 billion bits in a
# second. A byte has 8 bits. How long does a message take?

# %% nbgrader={"grade": false, "grade_id": "message-seconds", "locked": false, "schema_version": 3, "solution": true, "task": false}
def message_seconds(size, latency_us, gigabits_per_second):
    """Seconds (a float) that a message of `size` bytes takes.

    latency_us: in microseconds (a millionth of a second).
    """
    ### BEGIN SOLUTION
    return latency_us * 1e-6 + size * 8 / (gigabits_per_second * 1e9)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "message-seconds-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    message_seconds, rel=1e-3,
    cases=[{"size": 1_000_000, "latency_us": 50, "gigabits_per_second": 1},
           {"size": 4, "latency_us": 30, "gigabits_per_second": 25},
           {"size": 500_000_000, "latency_us": 4, "gigabits_per_second": 200}],
    expected=[0.00805, 3.000128e-05, 0.020004],
    hints={
        "The bandwidth is in bits per second, the message in bytes.":
            [0.00105, 3.000016e-05, 0.002504],
        "A tiny message takes time, too: the latency is missing.": [0.008, 1.28e-09, 0.02],
        "The latency is in microseconds; the answer is in seconds.": [50.008, 30.00000000128, 4.02],
        "That is right, in milliseconds.": [8.05, 0.03000128, 20.004],
    })
### BEGIN HIDDEN TESTS
check.function(
    message_seconds, rel=1e-3,
    cases=check.draw(20, size=[0, 8, 4096, 10**6, 3 * 10**9], latency_us=[1.5, 4, 30, 200],
                     gigabits_per_second=[0.1, 1, 25, 100, 1600]),
    expected=lambda size, latency_us, gigabits_per_second:
        latency_us / 1e6 + 8 * size / gigabits_per_second / 1e9)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="message-seconds" hint="in bits per second"
# def message_seconds(size, latency_us, gigabits_per_second):
#     return latency_us * 1e-6 + size / (gigabits_per_second * 1e9)

# %% [raw] tags=["mutant"] answer="message-seconds" hint="the latency is missing"
# def message_seconds(size, latency_us, gigabits_per_second):
#     return size * 8 / (gigabits_per_second * 1e9)

# %% [raw] tags=["mutant"] answer="message-seconds" hint="the answer is in seconds"
# def message_seconds(size, latency_us, gigabits_per_second):
#     return latency_us + size * 8 / (gigabits_per_second * 1e9)

# %% [raw] tags=["mutant"] answer="message-seconds" hint="in milliseconds"
# def message_seconds(size, latency_us, gigabits_per_second):
#     return latency_us * 1e-3 + size * 8 / (gigabits_per_second * 1e6)

# %% [markdown]
# ### Measure it
#
# This program sends messages of growing size from one rank to another and back. It is short; read it.

# %% tags=["explore"]
!cat code/messages.py

# %% [markdown]
# Guess: how many **megabytes** per second will the largest messages reach between two ranks of one
# node?

# %% nbgrader={"grade": false, "grade_id": "guess-megabytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_megabytes = 2000
### END SOLUTION

# %% tags=["explore"]
!srun --nodes=1 --ntasks=2 python code/messages.py | tee megatron/logs/messages_one_node.txt
one_node = links.read("one node", "megatron/logs/messages_one_node.txt")
check.compare("megabytes per second", guess_megabytes, one_node.fit.bandwidth / 1e6)

# %% [markdown]
# And between two nodes?

# %% tags=["explore"]
!srun --nodes=2 --ntasks=2 python code/messages.py | tee megatron/logs/messages_two_nodes.txt
two_nodes = links.read("two nodes", "megatron/logs/messages_two_nodes.txt")

# %% [markdown]
# Both figures have two straight parts: small messages all take the same time, large ones take time in
# proportion to their size. The thin lines are the formula above, with the latency of the smallest
# messages and the bandwidth by which the largest ones differ. Points off the line? No real link is as
# simple as the formula, and your machine does other things, too.

# %% tags=["explore"]
print(one_node)
print(two_nodes)
links.plot(one_node, two_nodes)

# %% [markdown]
# Do not take these for a cluster's figures. Both nodes are on your machine, and the "network" between
# them is a piece of software. What is real is the way of the bytes: the ranks talk to each other as
# they would on a cluster with Ethernet, and it is the CPU that copies each byte.
#
# ### A slower link
#
# The course's cluster can slow its links down, so make one that is like an ordinary office network:
# 1 Gbit/s. (If the next cell says *loopback mode*, then your machine does not allow nodes with
# networks of their own, and there is no link to slow down: the measurement below will look like the
# one above. The virtual links further down show you the difference. On a site's own cluster it says
# that the links are not ours to change, and all stays as it is.)

# %% tags=["explore"]
!lab cluster link 1gbit

# %% tags=["explore"]
!srun --nodes=2 --ntasks=2 python code/messages.py | tee megatron/logs/messages_slow.txt
slow = links.read("two nodes, 1 Gbit/s", "megatron/logs/messages_slow.txt")
by_formula = message_seconds(slow.sizes[-1], slow.fit.latency * 1e6, 1)
check.compare("milliseconds of the largest message, by your formula", by_formula * 1e3,
              slow.seconds[-1] * 1e3)
links.plot(two_nodes, slow)

# %% [markdown]
# Give the cluster its speed back (`unlimited` is what it has unless somebody asked for a rate):

# %% tags=["explore"]
!lab cluster link unlimited

# %% [markdown]
# The bandwidth is another one now, and the latency is not: a slow network carries few bytes, but it
# does not make the first one late. (Messages of middling size may be quicker than the line says: what
# slows the link down lets a first burst pass before it steps in. Real switches do that, too.)
#
# ### Virtual links
#
# The same curves for links that you probably do not have: between two V100 of one node, between two
# T4 of one node, which have no NVLink, and over two networks. The second network has four adapters per
# node, but a GPU sends through the adapter that is nearest to it. So one pair of GPUs reaches 100 of the
# 400 Gbit/s, and it takes four pairs at a time, each with its own adapter, to reach all of it.

# %% tags=["explore"]
virtual_links = [links.virtual("v100"), links.virtual("t4"),
                 links.virtual("v100", "ethernet:25gbit"),
                 links.virtual("v100", "infiniband:4x100gbit")]
for curve in virtual_links:
    print(curve)
links.plot(*virtual_links)

# %% [markdown]
# ### Exercise 4: half of the bandwidth
#
# How large must a message be to reach **half** of the link's bandwidth? From this size on it pays to
# have a faster link; below it, it pays to send fewer and larger messages. Work it out from the formula
# above: half of the bandwidth means that the message takes twice as long as its bytes alone would.

# %% nbgrader={"grade": false, "grade_id": "half-size", "locked": false, "schema_version": 3, "solution": true, "task": false}
def half_size(latency_us, gigabytes_per_second):
    """Bytes (a float) of a message that reaches half of the bandwidth.

    latency_us: in microseconds.   gigabytes_per_second: the bandwidth in 10**9 bytes per second.
    """
    ### BEGIN SOLUTION
    return latency_us * 1e-6 * gigabytes_per_second * 1e9
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "half-size-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    half_size, rel=1e-3,
    cases=[{"latency_us": 10, "gigabytes_per_second": 100},
           {"latency_us": 40, "gigabytes_per_second": 2.5}],
    expected=[1_000_000.0, 100_000.0],
    hints={
        "At this size the latency is half as long as the bytes take: that is two thirds of the "
        "bandwidth.": [2_000_000.0, 200_000.0],
        "At this size the latency is twice as long as the bytes take: that is a third of the "
        "bandwidth.": [500_000.0, 50_000.0],
        "Look at the units: microseconds are 1e-6 s, and a gigabyte per second is 1e9 bytes per "
        "second.": [1000.0, 100.0],
        "Those are bits per second divided out; the bandwidth is in bytes here.":
            [125_000.0, 12_500.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    half_size, rel=1e-3,
    cases=check.draw(20, latency_us=[1.5, 2.5, 14.5, 50, 200],
                     gigabytes_per_second=[0.125, 3.125, 25, 300, 450]),
    expected=lambda latency_us, gigabytes_per_second: 1000.0 * latency_us * gigabytes_per_second)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="half-size" hint="two thirds of the"
# def half_size(latency_us, gigabytes_per_second):
#     return 2 * latency_us * gigabytes_per_second * 1e3

# %% [raw] tags=["mutant"] answer="half-size" hint="a third of the"
# def half_size(latency_us, gigabytes_per_second):
#     return latency_us * gigabytes_per_second * 1e3 / 2

# %% [raw] tags=["mutant"] answer="half-size" hint="Look at the units"
# def half_size(latency_us, gigabytes_per_second):
#     return float(latency_us * gigabytes_per_second)

# %% [raw] tags=["mutant"] answer="half-size" hint="divided out"
# def half_size(latency_us, gigabytes_per_second):
#     return latency_us * gigabytes_per_second * 1e3 / 8

# %% [markdown]
# On your links and on the virtual ones, and what it means for a model's gradients, which can be sent
# one layer at a time or all together:

# %% tags=["explore"]
for curve in [one_node, two_nodes, *virtual_links]:
    latency, bandwidth = curve.fit
    half = half_size(latency * 1e6, bandwidth / 1e9)
    print(f"{result(f'{half / 1024:9,.0f} KiB')}  {curve.name}")
latency, bandwidth = links.virtual("v100", "ethernet:25gbit").fit
size, pieces = 400e6, 10_000
print("virtual 25 Gbit/s: 400 MB "
      f"in one message {good(f'{1e3 * (latency + size / bandwidth):.0f} ms')}, "
      f"in {pieces:,} messages {bad(f'{1e3 * (pieces * latency + size / bandwidth):.0f} ms')}")

# %% [markdown]
# ## Arithmetic or memory?
#
# A training is mostly **matrix products**. To compute C = A B, the processor reads A and B from its
# memory, computes, and writes C. Both can be the limit: the arithmetic, or the memory's bandwidth. The
# **arithmetic intensity** says which one: how many floating-point operations (FLOPs) are there for
# each byte that has to be moved?
#
# ### Exercise 5: arithmetic intensity
#
# A is [m, k] and B is [k, n]. Every entry of C is the sum of k products, so it takes k multiplications
# and k additions (all usual counts take k for k - 1 there). A and B are read once, C is written once.

# %% nbgrader={"grade": false, "grade_id": "intensity", "locked": false, "schema_version": 3, "solution": true, "task": false}
def intensity(m, n, k, bytes_each=2):
    """FLOPs per byte (a float) of a product [m, k] x [k, n].

    bytes_each: of one number: 2 in fp16 and bf16, 4 in fp32.
    """
    ### BEGIN SOLUTION
    flops = 2 * m * n * k
    moved = bytes_each * (m * k + k * n + m * n)
    return flops / moved
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "intensity-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    intensity, rel=1e-3,
    cases=[{"m": 300, "n": 300, "k": 300}, {"m": 1000, "n": 1, "k": 1000},
           {"m": 512, "n": 256, "k": 128, "bytes_each": 4}],
    expected=[100.0, 0.998004, 36.571429],
    hints={
        "Each entry of C takes k multiplications and k additions: both count.":
            [50.0, 0.499002, 18.285714],
        "Those are FLOPs for each number that is moved; a number has several bytes.":
            [200.0, 1.996008, 146.285714],
        "C has to be written as well.": [150.0, 0.999001, 42.666667],
        "Upside down: those are bytes per FLOP.": [0.01, 1.002, 0.02734375],
    })
### BEGIN HIDDEN TESTS
check.function(
    intensity, rel=1e-3,
    cases=check.draw(20, m=[1, 8, 768, 4096], n=[1, 64, 1024, 50304], k=[1, 64, 3072, 12288],
                     bytes_each=[1, 2, 4]),
    expected=lambda m, n, k, bytes_each:
        2 * m * n * k / (bytes_each * m * k + bytes_each * k * n + bytes_each * m * n))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="intensity" hint="both count"
# def intensity(m, n, k, bytes_each=2):
#     return m * n * k / (bytes_each * (m * k + k * n + m * n))

# %% [raw] tags=["mutant"] answer="intensity" hint="a number has several bytes"
# def intensity(m, n, k, bytes_each=2):
#     return 2 * m * n * k / (m * k + k * n + m * n)

# %% [raw] tags=["mutant"] answer="intensity" hint="C has to be written"
# def intensity(m, n, k, bytes_each=2):
#     return 2 * m * n * k / (bytes_each * (m * k + k * n))

# %% [raw] tags=["mutant"] answer="intensity" hint="Upside down"
# def intensity(m, n, k, bytes_each=2):
#     return bytes_each * (m * k + k * n + m * n) / (2 * m * n * k)

# %% [markdown]
# A square product of order n has an intensity of n / 3 in fp16: the larger, the better. A matrix times
# a **vector** has about 1, however large the matrix is. This is why a chat bot that writes one token
# at a time keeps a GPU's arithmetic idle, and why trainings use large batches.

# %% tags=["explore"]
for m, n, k in [(64, 64, 64), (1024, 1024, 1024), (8192, 8192, 8192), (8192, 1, 8192)]:
    print(f"[{m}, {k}] x [{k}, {n}]: {intensity(m, n, k):8.1f} FLOP per byte")

# %% [markdown]
# ### Exercise 6: the ridge point
#
# How many FLOPs does a card do in the time in which its memory delivers one byte? This number is the
# card's **ridge point**. A product with a lower intensity is *memory-bound*: the arithmetic waits for
# the memory. One with a higher intensity is *compute-bound*. Work it out from the data sheet.

# %% nbgrader={"grade": false, "grade_id": "ridge", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ridge(teraflops, gigabytes_per_second):
    """The ridge point in FLOP per byte (a float).

    teraflops: the peak in 10**12 FLOP/s.   gigabytes_per_second: of the memory, 10**9 bytes/s.
    """
    ### BEGIN SOLUTION
    return teraflops * 1e12 / (gigabytes_per_second * 1e9)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ridge-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    ridge, rel=1e-3,
    cases=[{"teraflops": 100, "gigabytes_per_second": 800},
           {"teraflops": 20, "gigabytes_per_second": 1000}],
    expected=[125.0, 20.0],
    hints={
        "Tera is 1e12 and giga is 1e9: a factor of a thousand is missing.": [0.125, 0.02],
        "Upside down: those are bytes per FLOP.": [0.008, 0.05],
        "The memory's bandwidth is in bytes already, not in bits.": [1000.0, 160.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    ridge, rel=1e-3,
    cases=check.draw(20, teraflops=check.between(1.0, 2000.0, digits=1),
                     gigabytes_per_second=check.between(100.0, 8000.0, digits=0)),
    expected=lambda teraflops, gigabytes_per_second: 1000 * teraflops / gigabytes_per_second)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="ridge" hint="factor of a thousand"
# def ridge(teraflops, gigabytes_per_second):
#     return teraflops / gigabytes_per_second

# %% [raw] tags=["mutant"] answer="ridge" hint="Upside down"
# def ridge(teraflops, gigabytes_per_second):
#     return gigabytes_per_second * 1e9 / (teraflops * 1e12)

# %% [raw] tags=["mutant"] answer="ridge" hint="in bytes already"
# def ridge(teraflops, gigabytes_per_second):
#     return 8 * teraflops * 1000 / gigabytes_per_second

# %% [markdown]
# The ridge points of all cards, from their data sheets. On the whole peaks have grown faster than
# memories did: what was compute-bound on an old card can be memory-bound on a new one.

# %% tags=["explore"]
for card in CARDS.values():
    peak, rate = card.tflops["fp16"], card.bandwidth / 1e9
    order = 3 * ridge(peak, rate)  # of a square product with this intensity
    print(f"{card.name:16} {peak:6.0f} TFLOP/s {rate:6.0f} GB/s: "
          f"{result(f'{ridge(peak, rate):4.0f} FLOP/byte')}, square products from n = {order:.0f}")

# %% [markdown]
# ### Exercise 7: under the roof
#
# What can a product reach at best? Two limits hold at once. The arithmetic does not go beyond its
# peak. And the memory delivers so many bytes per second, each of which is worth *intensity* FLOPs.

# %% nbgrader={"grade": false, "grade_id": "attainable", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attainable(flops_per_byte, teraflops, gigabytes_per_second):
    """TFLOP/s (a float) that a product of this intensity reaches at best."""
    ### BEGIN SOLUTION
    fed = flops_per_byte * gigabytes_per_second * 1e9 / 1e12
    return min(teraflops, fed)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "attainable-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    attainable, rel=1e-3,
    cases=[{"flops_per_byte": 10.0, "teraflops": 100, "gigabytes_per_second": 1000},
           {"flops_per_byte": 500.0, "teraflops": 100, "gigabytes_per_second": 1000}],
    expected=[10.0, 100],
    hints={
        "That is the peak, but at this intensity the memory cannot deliver the numbers in time: the "
        "lower limit counts. (Or are the units off? FLOP per byte times gigabytes per second are "
        "GFLOP/s.)": [100, 100],
        "That is more than the peak: the memory could feed it, but the arithmetic is at its limit.":
            [10.0, 500.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    attainable, rel=1e-3,
    cases=check.draw(30, flops_per_byte=check.between(0.1, 700.0, digits=1),
                     teraflops=[8.1, 15.7, 125.0, 312.0, 989.0],
                     gigabytes_per_second=[320.0, 900.0, 2039.0, 4800.0]),
    expected=lambda flops_per_byte, teraflops, gigabytes_per_second:
        min(teraflops, flops_per_byte * gigabytes_per_second / 1000))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="attainable" hint="That is the peak"
# def attainable(flops_per_byte, teraflops, gigabytes_per_second):
#     return float(teraflops)

# %% [raw] tags=["mutant"] answer="attainable" hint="at its limit"
# def attainable(flops_per_byte, teraflops, gigabytes_per_second):
#     return flops_per_byte * gigabytes_per_second / 1000

# %% [raw] tags=["mutant"] answer="attainable" hint="lower limit counts"
# def attainable(flops_per_byte, teraflops, gigabytes_per_second):
#     return max(teraflops, flops_per_byte * gigabytes_per_second / 1000)

# %% [markdown]
# ### Measure your CPU
#
# That was paper. This program multiplies matrices [n, k] x [k, n] with a large n and a growing k, and
# so with a growing intensity, and it measures how fast the memory copies. It runs on a node, with two
# CPUs. Guess first: how many **GFLOP/s** (10**9 a second) will the best product reach?

# %% nbgrader={"grade": false, "grade_id": "guess-gigaflops", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_gigaflops = 100
### END SOLUTION

# %% tags=["explore"]
!srun --cpus-per-task=2 python code/matmul.py | tee megatron/logs/matmul.txt
cpu = roofline.read("megatron/logs/matmul.txt")
check.compare("GFLOP/s of two CPUs", guess_gigaflops, cpu.peak / 1e9)

# %% [markdown]
# A CPU's data sheet seldom names its peak. So the best product counts as the peak here, and the copy
# as the memory's bandwidth: the line is the roof that *your measurements* give.

# %% tags=["explore"]
print(f"ridge point of this CPU: {result(f'{cpu.ridge:.0f} FLOP per byte')}")
roofline.plot(cpu)

# %% [markdown]
# The points rise with the intensity until the arithmetic is the limit, and then no more. Most stay
# below the roof, some of them far: it is a limit, not a promise. The library is written for large
# products and wastes time on thin ones, and your machine has other things to do.
#
# ### A virtual card against its data sheet
#
# The same products on a V100, modeled, in fp32 and in fp16. Here the roof is the data sheet's.

# %% tags=["explore"]
shapes = [(4096, 4096, 2**power) for power in range(13)]
v100 = roofline.virtual("v100", "fp16", shapes)
v100_fp32 = roofline.virtual("v100", "fp32", shapes)
roofline.plot(v100, v100_fp32)

# %% [markdown]
# In fp16 the roof is higher, because of the **Tensor Cores**: units that multiply small matrices at
# once. But its ridge point lies further to the right: to profit from them, a product must be large.
# Both stay below their roofs. No program reaches a data sheet, and good ones come near.
#
# ### Exercise 8: share of the peak
#
# This is how people say how well a GPU is used: a product's FLOPs, divided by its time, as a share of
# the data sheet's peak.

# %% nbgrader={"grade": false, "grade_id": "share-of-peak", "locked": false, "schema_version": 3, "solution": true, "task": false}
def share_of_peak(m, n, k, milliseconds, teraflops):
    """The share of the peak (a float, 1.0 is all of it) that a product [m, k] x [k, n] reached."""
    ### BEGIN SOLUTION
    reached = 2 * m * n * k / (milliseconds / 1000)
    return reached / (teraflops * 1e12)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "share-of-peak-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    share_of_peak, rel=1e-3,
    cases=[{"m": 4096, "n": 4096, "k": 4096, "milliseconds": 1.6, "teraflops": 125.0},
           {"m": 1000, "n": 1000, "k": 1000, "milliseconds": 0.5, "teraflops": 16.0}],
    expected=[0.687195, 0.25],
    hints={
        "A multiplication and an addition are two FLOPs.": [0.343597, 0.125],
        "The share is in per cent; 1.0 is to be all of the peak.": [68.7195, 25.0],
        "The time is in milliseconds, and the peak is per second.": [0.000687195, 0.00025],
        "Those are TFLOP/s; which share of the peak is that?": [85.8993, 4.0],
    })
### BEGIN HIDDEN TESTS
check.function(
    share_of_peak, rel=1e-3,
    cases=check.draw(20, m=[512, 4096, 8192], n=[768, 3072, 50304], k=[64, 1024, 12288],
                     milliseconds=check.between(0.1, 90.0, digits=3), teraflops=[15.7, 125.0, 989.0]),
    expected=lambda m, n, k, milliseconds, teraflops:
        2 * m * n * k / milliseconds * 1e-9 / teraflops)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="share-of-peak" hint="two FLOPs"
# def share_of_peak(m, n, k, milliseconds, teraflops):
#     return m * n * k / (milliseconds / 1000) / (teraflops * 1e12)

# %% [raw] tags=["mutant"] answer="share-of-peak" hint="in per cent"
# def share_of_peak(m, n, k, milliseconds, teraflops):
#     return 100 * 2 * m * n * k / (milliseconds / 1000) / (teraflops * 1e12)

# %% [raw] tags=["mutant"] answer="share-of-peak" hint="per second"
# def share_of_peak(m, n, k, milliseconds, teraflops):
#     return 2 * m * n * k / milliseconds / (teraflops * 1e12)

# %% [raw] tags=["mutant"] answer="share-of-peak" hint="Those are TFLOP/s"
# def share_of_peak(m, n, k, milliseconds, teraflops):
#     return 2 * m * n * k / (milliseconds / 1000) / 1e12

# %% tags=["explore"]
for one in v100.products[::3]:
    share = share_of_peak(one.m, one.n, one.k, one.seconds * 1000, v100.peak / 1e12)
    print(f"virtual V100, fp16, k = {one.k:4}: {result(f'{share:6.1%}')} of the data sheet's peak")

# %% [markdown]
# ## Tensor Cores need shapes
#
# Tensor Cores read rows of 16-bit numbers in pieces of 16 bytes. When a matrix has a row length that
# is no multiple of **8**, the pieces do not fit, and the library takes a slower way. Guess: a product
# with n = 4096 reaches some number of TFLOP/s on a V100. What **share** of that will n = 4095 reach?

# %% nbgrader={"grade": false, "grade_id": "guess-odd", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_odd = 0.9
### END SOLUTION

# %% tags=["explore"]
around = roofline.virtual("v100", "fp16", [(4096, n, 4096) for n in range(4060, 4133)])
rates = {one.n: one.rate for one in around.products}
check.compare("share that n = 4095 reaches (virtual V100)", guess_odd, rates[4095] / rates[4096])
roofline.plot_sizes(around, every=8)

# %% [markdown]
# One column less costs much of the speed, although cuBLAS uses Tensor Cores for all sizes since version 11.
# On an H100, most of it is gone:

# %% tags=["explore"]
for name in ("v100", "a100", "h100"):
    odd, even = roofline.virtual(name, "fp16", [(4096, 4095, 4096), (4096, 4096, 4096)]).products
    print(f"virtual {name}: n = 4095 reaches {result(f'{odd.rate / even.rate:.0%}')} of what "
          "n = 4096 does")

# %% [markdown]
# So good models have sizes that are multiples of 8, better of 64 or 128, and their vocabulary is
# **padded**: some entries are added that no text uses. More work, less time.
#
# ### Exercise 9: tiles and waves
#
# A GPU cuts the result [m, n] into **tiles** and gives each tile to one of its multiprocessors (SMs).
# When all of them have one, that is a **wave**; the next wave begins when this one is over. A tile
# that overhangs the edge takes as long as a whole one, and so does a wave that is not full.
#
# ![On the left a matrix in two rows of five tiles; the last column and the last row overhang. On the
# right four multiprocessors, which compute the ten tiles in three waves: four, four, and two, where
# two multiprocessors are idle.](../images/tiles_and_waves.svg)
#
# Return the number of tiles, the number of waves, and the **use**: the share of the time of all
# multiprocessors that goes into entries of the result which somebody wants.

# %% nbgrader={"grade": false, "grade_id": "waves", "locked": false, "schema_version": 3, "solution": true, "task": false}
def waves(m, n, tile_m, tile_n, multiprocessors):
    """(tiles, waves, use) of a result [m, n]: two ints and a float, 1.0 if nothing is wasted."""
    ### BEGIN SOLUTION
    tiles = -(-m // tile_m) * -(-n // tile_n)
    rounds = -(-tiles // multiprocessors)
    return tiles, rounds, m * n / (rounds * multiprocessors * tile_m * tile_n)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "waves-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check.function(
    waves, rel=1e-3,
    cases=[{"m": 2048, "n": 1280, "tile_m": 256, "tile_n": 128, "multiprocessors": 80},
           {"m": 2048, "n": 1281, "tile_m": 256, "tile_n": 128, "multiprocessors": 80},
           {"m": 200, "n": 100, "tile_m": 64, "tile_n": 64, "multiprocessors": 4}],
    expected=[(80, 1, 1.0), (88, 2, 0.500391), (8, 2, 0.610352)],
    hints={
        "A last wave that is not full takes as long as a full one: a number of waves is whole.":
            [(80, 1.0, 1.0), (88, 1.1, 0.909801), (8, 2.0, 0.610352)],
        "Round up in each direction by itself: tiles are not cut and put together again.":
            [(80, 1, 1.0), (81, 2, 0.500391), (5, 2, 0.610352)],
        "What overhangs needs a tile of its own: round up, in each of the two directions.":
            [(80, 1, 1.0), (80, 1, 1.000781), (3, 1, 1.220703)],
        "The tiles are right and the waves are, too; but the use counts whole tiles: what overhangs "
        "is computed, and nobody wants it.": [(80, 1, 1.0), (88, 2, 0.55), (8, 2, 1.0)],
    })
### BEGIN HIDDEN TESTS
def by_counting(m, n, tile_m, tile_n, multiprocessors):
    """The tiles one by one."""
    tiles = sum(1 for _ in range(0, m, tile_m) for _ in range(0, n, tile_n))
    rounds = len(range(0, tiles, multiprocessors))
    return tiles, rounds, m * n / (rounds * multiprocessors * tile_m * tile_n)


check.function(
    waves, rel=1e-3,
    cases=check.draw(20, m=range(1, 4096, 7), n=range(1, 4096, 5), tile_m=[64, 128, 256],
                     tile_n=[64, 128], multiprocessors=[40, 80, 108, 132]),
    expected=by_counting)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="waves" hint="What overhangs needs a tile"
# -    tiles = -(-m // tile_m) * -(-n // tile_n)
# +    tiles = (m // tile_m) * (n // tile_n)

# %% [raw] tags=["mutant"] answer="waves" hint="in each direction by itself"
# -    tiles = -(-m // tile_m) * -(-n // tile_n)
# +    tiles = -(-(m * n) // (tile_m * tile_n))

# %% [raw] tags=["mutant"] answer="waves" hint="a number of waves is whole"
# -    rounds = -(-tiles // multiprocessors)
# +    rounds = tiles / multiprocessors

# %% [raw] tags=["mutant"] answer="waves" hint="the use counts whole tiles"
# -    return tiles, rounds, m * n / (rounds * multiprocessors * tile_m * tile_n)
# +    return tiles, rounds, tiles / (rounds * multiprocessors)

# %% [markdown]
# Look at the second case: one column more, and the product takes twice as long. On a virtual A100 (108
# multiprocessors) the speed of a growing matrix goes up like the teeth of a saw: it rises while the
# last wave fills, and falls when a new one begins.

# %% tags=["explore"]
for n in (6912, 6976):
    print(n, "tiles {}, waves {}, use {:.0%}".format(*waves(2048, n, 256, 128, 108)))
roofline.plot_sizes(roofline.virtual("a100", "fp16", [(2048, n, 4096)
                                                      for n in range(128, 8192, 64)]))

# %% [markdown]
# (The library has several shapes of tiles and takes the quickest, which makes the teeth smaller.) You
# need not compute waves for every model. But when one size of a model is oddly slow, you know now
# where to look.

# %% [markdown]
# ## Discuss
#
# 1. **Where to put the ranks.** Four ranks that talk to each other all the time, and two nodes of four
#    GPUs. Do you ask for one node or for two? What would change your mind?
# 2. **The faster network.** Somebody offers you twice the bandwidth for a training that sends
#    thousands of messages of a few kilobytes each. Do you take it?
# 3. **The new card.** A card has three times the peak and twice the memory bandwidth of yours. How
#    much faster does your training become?
# 4. **A model of one's own.** You may choose between a hidden size of 1000 and one of 1024. On 8 GPUs,
#    which share each matrix, the larger one is the quicker one. Why?

# %% [markdown]
# ## Clean up

# %% tags=["explore"]
!scancel --user=$USER
!rm -f megatron/logs/messages_*.txt megatron/logs/matmul.txt
!squeue

# %% [markdown]
# ## Summary
#
# - `sinfo` and `scontrol show node` say what Slurm knows of the nodes, `lscpu` and `nvidia-smi` what a
#   node knows of itself.
# - A message takes latency + bytes / bandwidth. Up to latency x bandwidth its size hardly matters: send
#   few large messages.
# - A product is memory-bound below the ridge point (peak / memory bandwidth) and compute-bound above
#   it. Large products have a high intensity, products with a vector have not.
# - Share of the peak = 2 m n k / time / peak. Nothing reaches 100 %.
# - Sizes that are multiples of 8, better of 64 or 128, keep Tensor Cores busy; padding can save time.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded.
#
# **The way on:** in [the next lab](02_single_node.ipynb) you train on one node, with one GPU and with
# two, and see which of these limits you meet.
