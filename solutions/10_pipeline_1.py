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
# # Pipeline I: a model across GPUs, run by your own code
#
# Tensor parallelism ends where NVLink ends. ZeRO-3 (lab 08) reaches further, but it gathers every parameter in each
# pass, which pays off only while each GPU has many tokens. You can also split a model between its layers: the first
# ones go on one node and the next ones on another, and only a single tensor passes each boundary. In this lab, you
# write the program that trains such a model:
#
# - **First sitting, 90 minutes.** You split a training step in two, write GPipe's schedule, cut your Llama into stages,
#   and write the executor that runs any schedule on real ranks.
# - **Second sitting, 90 minutes.** Another schedule deadlocks your executor. You find out who waits for whom and fix it
#   twice: by reordering the sends and receives, and by making them asynchronous. Then the two ends of the model share a
#   matrix, the stages become unequal, and your trainer trains with a pipeline.
#
# All values are real, computed by ranks on the CPU. GPU time and memory are **modeled** by virtual GPUs. Your answers
# are files in `mytrainer/`, and labs 11 and 12 build on them.

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
check.mask("cluster_planner", "lab.mytrainer", "lablib.executor", "lablib.plots.bubbles",
           "layout_estimator", "minimegatron",
           *check.PIPELINE_LIBRARIES)

# %% tags=["explore"]
import virtualgpu
from job_monitor import logs
from lab.mytrainer import pieces, worked
from labcore.colors import bad, good, result
from lablib import executor, jobs, pipeline_parts, plots, simple_program
from pipeline_schedules import Durations, simulate
from pipeline_schedules import parse as parse_schedule
from warmranks import RanksDeadlock, record_ranks, run_ranks

jobs.connect()

# %% [markdown]
# This lab builds on your trainer and on your Llama from lab 09. If any of their files is missing, the next cell
# installs the course's version:

# %% tags=["explore"]
for name in ("collectives", "ddp", "launch", "new/train", "precision", "checkpointing", "states", "saved", "tensor_parallel",
             "heads", "vocabulary", "randomness", "llama", "grad_norm"):
    if not pieces.find(name).target.path.exists():
        print("\n".join(worked.install_or_explain(pieces.find(name))))

# %% [markdown]
# ## A batch on four GPUs
#
# Llama 3 70B ([Llama Team, 2024](https://arxiv.org/abs/2407.21783)) has 70.6 billion parameters. At the
# 18 bytes per parameter of your trainer in bf16 (lab 08), its training state takes 1.27 TB, which fills 16 GPUs with
# 80 GB each before the first activation is stored. Lab 09 measured what tensor parallelism costs once its all-reduces leave the NVLink domain: each layer has two
# of them in each pass, and no computation to hide them behind. So whatever crosses nodes has to be small. Between two
# layers of a model, only one tensor passes: the hidden states. That is the place to cut:
#
# ![A model of six layers is cut into three stages of two layers, each on a GPU of its own. Stage 0 also has the
# embedding, and the last stage computes the loss. Activations go from stage to stage in the forward pass, gradients of
# activations come back in the backward pass.](../images/pipeline_stages.svg)
#
# Each part of the model is a **stage**, and each stage has its own GPU (or its own group of GPUs, which share its
# layers by tensor parallelism). In the **forward pass**, a stage computes its layers and sends the result to the next
# stage. The last stage computes the loss. In the **backward pass**, each stage receives the gradient of what it sent,
# computes the gradients of its own parameters, and sends the gradient of its input back to the previous stage. This is
# **inter-layer model parallelism**. It is easy to do, and easy to do badly.
#
# Here is GPT-2 small in four stages, on two nodes with two virtual V100s each, with a batch of 8 samples. What share of
# the time will the four GPUs be busy, on average? Set `guess_share`, from 0 to 1:

# %% answer="guess-share"
### BEGIN SOLUTION
guess_share = 0.25
### END SOLUTION

# %% tags=["explore"] short={"--train-iters 4": "--train-iters 1 --timeline-iteration 1"}
!sbatch code/virtual_v100.sh --pipeline-model-parallel-size 4 --schedule gpipe --train-iters 4 --log-interval 1 \
    --micro-batch-size 8 --global-batch-size 8 --timeline megatron/timeline/four_stages

# %% tags=["explore"]
four_stages = jobs.wait()

# %% tags=["explore"]
alone = plots.timeline("megatron/timeline/four_stages")
check.compare("share of the time that a GPU is busy (modeled)", guess_share, 1 - alone.bubble_fraction)
plots.pipeline("megatron/timeline/four_stages", "One batch, four stages")

# %% [markdown]
# Read the figure from left to right. Each row is a stage, `F0` is the forward pass of batch 0, and `B0` its backward
# pass. At any moment **one** GPU computes and the others are idle: before its forward pass, a stage waits for
# activations, and between its two passes, for a gradient. Because of communication, the four GPUs are even slower than
# a single GPU with enough memory would be, and you pay for all four of them.
#
# The gray part is the **bubble** of lab 02. Backward boxes are about twice as long as forward boxes, because the
# backward pass runs two matrix multiplications for each one in the forward pass. The last stage's boxes are longer
# still, because it also computes the logits and the loss.
#
# The rest of this lab and the next two are about shrinking this gray part. But first, you need a way to split a
# training step across ranks.

# %% [markdown]
# ## Splitting a step in two
#
# Within one process, autograd follows every tensor from the loss back to the first layer. Across a network it cannot:
# to autograd, a received tensor is just a buffer with values in it, with no record of how they were computed. So each
# stage runs a backward pass of its own, over its own part of the graph. That part has two ends. At one end is the
# input, whose gradient the previous stage needs. At the other end is the output, which is a loss only on the last
# stage. On every other stage, the backward pass starts at the output hidden states $y$, with the gradient of the loss
# with respect to $y$ that the next stage has sent: `y.backward(grad)`.
#
# Soon, you will split a batch into **micro-batches** of a few samples each. A micro-batch that has finished its forward
# pass on a stage, but not yet its backward pass, is **in flight** there, and the stage holds all of its activations. A
# stage may have several micro-batches in flight at once. So it has to let go of each one as soon as its backward pass
# is done, or the memory is never freed.

# %% [markdown]
# ### Exercise 1: a stage
#
# Write `stage.py`. A stage knows nothing about other ranks: its caller passes in what was received, and sends what the
# stage returns.
#
# - `key` can be any hashable object, and backward passes may run in any order.
# - Returned tensors have no autograd history, so that a caller that holds on to one does not keep the stage's
#   activations alive.
# - On the last stage, the module returns a mean loss, and `grad` is the weight that this micro-batch has in the loss of
#   the whole batch: a tensor without dimensions, like the loss.
# - Between the two passes, `in_flight` holds what the backward pass needs. After the backward pass, nothing of the
#   micro-batch is left. The check measures your stage's memory on a virtual H100.

# %% answer="stage"
%%writefile mytrainer/stage.py
"""One stage of a pipeline: its forward and backward passes, and what is in flight between them."""


class Stage:
    """A part of a model, whose input and output come from and go to other ranks.

    Attributes:
        module: called with hidden states and a micro-batch; returns hidden states, or on the last stage the mean loss of
            the micro-batch. The first stage's hidden states are None.
        in_flight: {key of a micro-batch: what its backward pass needs}.
    """

    def __init__(self, module):
        self.module, self.in_flight = module, {}

    def forward(self, key, x, data):
        """Run the forward pass of a micro-batch, and return its output, which has no history.

        Args:
            key: identifies the micro-batch.
            x: received hidden states, or None on the first stage.
            data: the micro-batch.
        """
        ### BEGIN SOLUTION
        if x is not None:
            x = x.detach().requires_grad_()
        y = self.module(x, data)
        self.in_flight[key] = x, y
        return y.detach()
        ### END SOLUTION

    def backward(self, key, grad):
        """Run the backward pass of a micro-batch, and return the gradient of its x (None on the first stage).

        Args:
            key: identifies the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        ### BEGIN SOLUTION
        x, y = self.in_flight.pop(key)
        y.backward(grad)
        return None if x is None else x.grad
        ### END SOLUTION

# %% tags=["driver"]
def two_stages(order, sizes, seeds, counting=False):
    """Run the passes of micro-batches over two stages on this rank.

    Args:
        order: of the passes, such as "F0 F1 B1 B0"; each runs on both stages.
        sizes: samples of the micro-batches.
        seeds: of the two parts' parameters.
        counting: whether to return the sizes of both in_flight after each pass, and nothing else.

    Return whether an output has a history; what the first stage's backward passes return; and the losses, gradients of
    hidden states, and gradients of both parts' parameters.
    """
    from mytrainer.stage import Stage

    from lablib import pipeline_parts, tensor

    parts = [pipeline_parts.Part(number, 2, 2, 3, seed) for number, seed in enumerate(seeds)]
    first, last = (Stage(part) for part in parts)
    data = pipeline_parts.micro_batches(sizes, 3)
    history, flights, firsts, losses, grads = [], [], [], [], []
    for action in order.split():
        number = int(action[1:])
        if action[0] == "F":
            y = first.forward(number, None, data[number])
            loss = last.forward(number, y.detach().clone(), data[number])
            history += [y.requires_grad, loss.requires_grad]
            losses.append(loss.item())
        else:
            grad = last.backward(number, torch.tensor(sizes[number] / sum(sizes)))
            if grad is None:
                return [history, "no gradient", []]
            grads.append(tensor.projected(grad))
            firsts.append(first.backward(number, grad.clone()) is None)
        flights.append([len(first.in_flight), len(last.in_flight)])
    if counting:
        return flights
    return [history, firsts, [*losses, *grads, *(one for part in parts for one in pipeline_parts.projected_gradients(part))]]


def stage_alone(times, tokens, width, layers):
    """Run both passes of micro-batches, one after another, on a stage in the middle of a model, on a GPU."""
    from mytrainer.stage import Stage

    from lablib import pipeline_parts

    with torch.device("cuda"):
        stage = Stage(pipeline_parts.Part(1, 3, layers, width, 0.0))
        for number in range(times):
            y = stage.forward(number, torch.zeros(tokens, width), None)
            stage.backward(number, torch.zeros_like(y))
            del y

# %% tags=["check-setup"]
def in_one_number(grad):
    """Return the scalar product of a gradient with sines."""
    from lablib import tensor

    return float((grad.detach() * tensor.sines(grad.shape, 2.0)).sum())


def parts_of_one_process(sizes, layers, seeds, width):
    """Train a model in one process; return the micro-batches' losses, the gradients of their hidden states, and all parts' gradients.

    Args:
        sizes: samples of the micro-batches.
        layers: of each part.
        seeds: of each part.
        width: of the hidden states.
    """
    import torch

    from lablib import tensor

    weights = [[(tensor.sines((width, width), seed + 10 * layer) * 2 / width**0.5).requires_grad_() for layer in range(count)]
               for count, seed in zip(layers, seeds, strict=True)]
    losses, hidden = [], []
    for number, size in enumerate(sizes):
        x, between = tensor.sines((size, width), 3.0 + number), []
        for part in weights:
            for weight in part:
                x = torch.tanh(x @ weight.T)
            between.append(x)
            x.retain_grad()
        loss = (x - tensor.sines((size, width), 50.0 + number)).square().mean()
        (loss * size / sum(sizes)).backward()
        losses.append(loss.item())
        hidden.append([in_one_number(one.grad) for one in between[:-1]])
    return losses, hidden, [[in_one_number(weight.grad) for weight in part] for part in weights]

# %% check="stage" points=5
ORDERS = [{"order": "F0 F1 B0 B1", "sizes": [2, 1], "seeds": [1.0, 2.0]},
          {"order": "F0 F1 F2 B1 B2 B0", "sizes": [1, 3, 2], "seeds": [4.0, 5.0]}]
with check.parts():
    with check.part(3, "computes the gradients of the whole model"):
        for run in check.ranks(two_stages, ranks=1, cases=ORDERS, expected=None):
            history, firsts, _ = run.values[0]
            check.that(firsts != "no gradient", "The backward pass of the last stage returns no gradient of x. A received tensor is "
                       "not part of any graph. What has to be true of x before the forward pass?")
            check.that(not any(history), "What forward returns still has a history, so whoever sends it keeps the stage's "
                       "activations alive.")
            check.that(all(firsts), "The first stage has no x, so its backward pass returns None.")
        check.ranks(two_stages, ranks=1, cases=ORDERS, rel=1e-4, expected=[[[[False, False, False, False], [True, True], [0.9163789, 1.052523, -0.125704,
            0.1887935, -0.02565072, 0.1149605, 0.1829204, 0.336666]]], [[[False, False, False, False, False, False], [True, True, True], [0.4183432, 0.6554452, 0.7717767, 0.1336247, -0.07013125,
            0.05949616, 0.2529911, 0.1603196, 0.2160318, -0.106054]]]], hints={
            "The micro-batches share something: is each backward pass that of its own micro-batch?": [[[[False, False, False, False], [True, True], [0.9163789, 1.052523, 0.3775871,
            0.5663806, -0.1352067, 0.2055037, 0.1877494, 0.3693697]]], [[[False, False, False, False, False, False], [True, True, True], [0.4183432, 0.6554452, 0.7717767, -0.1051968, -0.1753281,
            -0.2103937, 0.4021423, 0.09848157, 0.08978213, -0.1701765]]]],
            "The parameters have the gradients of the last backward pass only. Gradients accumulate over the micro-batches.":
            [[[[False, False, False, False], [True, True], [0.9163789, 1.052523, -0.125704, 0.1887935, -0.02704134, 0.04110073, 0.06258312, 0.1231232]]], [[[False, False, False, False, False, False], [True, True, True], [0.4183432, 0.6554452, 0.7717767, 0.1336247, -0.07013125, 0.05949616, 0.07844845, 0.06674222, 0.05675925, -0.003076166]]]],
            "Both stages ignore grad. Where does the backward pass of a stage begin, and with which gradient?":
            [[[[False, False, False, False], [True, True], [0.9163789, 1.052523, -0.1885561, 0.5663806, 0.06606434, 0.161447,
            0.3682554, 0.6896838]]], [[[False, False, False, False, False, False], [True, True, True], [0.4183432, 0.6554452,
            0.7717767, 0.2672493, -0.2103936, 0.3569769, 1.332873, 1.225962, 0.6890281, -0.2811382]]]],
            "The gradients of the second stage ignore grad: what weight has a micro-batch in the loss of the batch?": [[[[False, False, False, False], [True, True], [0.9163789, 1.052523, -0.1885561,
            0.5663806, -0.07903804, 0.2340918, 0.3682554, 0.6896838]]], [[[False, False, False, False, False, False], [True, True, True], [0.4183432, 0.6554452, 0.7717767, 0.2672493, -0.2103936,
            0.3569769, 0.8772247, 0.6016766, 0.6890281, -0.2811382]]]]})
        ### BEGIN HIDDEN TESTS
        def stages_of_one_process(order, sizes, seeds):
            losses, hidden, gradients = parts_of_one_process(sizes, [2, 2], seeds, 3)
            forwards, backwards = ([int(one[1:]) for one in order.split() if one[0] == kind] for kind in "FB")
            return [[False] * 2 * len(sizes), [True] * len(sizes),
                    [*(losses[one] for one in forwards), *(hidden[one][0] for one in backwards), *sum(gradients, [])]]


        for order in ("F0 F1 F2 B2 B1 B0", "F0 B0 F1 F2 B1 B2", "F2 F1 B1 F0 B0 B2"):
            check.ranks(two_stages, ranks=1, rel=1e-3, cases=check.draw(
                1, order=[order], sizes=lambda dice: [dice.randint(1, 5) for _ in range(3)],
                seeds=lambda dice: [dice.uniform(0, 99), dice.uniform(0, 99)]),
                expected=lambda ranks, order, sizes, seeds: [stages_of_one_process(order, sizes, seeds)])
        ### END HIDDEN TESTS
    with check.part(2, "frees a micro-batch when its backward pass is done"):
        for run in check.ranks(two_stages, ranks=1, cases=[{**one, "counting": True} for one in ORDERS], expected=None):
            flights = run.values[0]
            check.that(flights[0] == [1, 1], "in_flight has an entry for each micro-batch between its passes.")
            check.that(flights[-1] == [0, 0], "After the last backward pass, in_flight is not empty.")
        check.ranks(two_stages, ranks=1, cases=[{**one, "counting": True} for one in ORDERS],
                    expected=[[[[1, 1], [2, 2], [1, 1], [0, 0]]], [[[1, 1], [2, 2], [3, 3], [2, 2], [1, 1], [0, 0]]]])
        MEMORY = {"tokens": 65536, "width": 1024, "layers": 2}
        cost = check.gpus(stage_alone, {"times": 6, **MEMORY}, "h100:1", least={"flops": 6 * 6 * 2 * 65536 * 1024**2})
        check.pass_mark(cost.peak_memory, "Six micro-batches, one after another, take more memory than one. What is left of a "
                        "micro-batch after its backward pass?", error=cost.memory_error, below=1.9)

# %% [raw] mutant="stage" hint="not part of any graph"
# -            x = x.detach().requires_grad_()
# +            x = x.detach()

# %% [raw] mutant="stage" hint="still has a history"
# -        return y.detach()
# +        return y

# %% [raw] mutant="stage" hint="in_flight is not empty"
# -        x, y = self.in_flight.pop(key)
# +        x, y = self.in_flight[key]

# %% [raw] mutant="stage" hint="take more memory than one"
# -        x, y = self.in_flight.pop(key)
# -        y.backward(grad)
# +        x, y = self.in_flight.pop(key)
# +        self.done = getattr(self, "done", []) + [(x, y)]
# +        y.backward(grad, retain_graph=True)

# %% [raw] mutant="stage" hint="The micro-batches share something"
# -        self.in_flight[key] = x, y
# +        self.in_flight[key] = self.last = x, y
# -        x, y = self.in_flight.pop(key)
# -        y.backward(grad)
# +        self.in_flight.pop(key)
# +        x, y = self.last
# +        y.backward(grad, retain_graph=True)

# %% [raw] mutant="stage" hint="of the last backward pass only"
# -        y.backward(grad)
# +        self.module.zero_grad()
# +        y.backward(grad)

# %% [raw] mutant="stage" hint="what weight has a micro-batch"
# -        y.backward(grad)
# +        y.backward(grad if y.dim() else None)

# %% [raw] mutant="stage" hint="Both stages ignore grad"
# -        y.backward(grad)
# +        y.sum().backward()

# %% [raw] mutant="stage" hint="The first stage has no x"
# -        return None if x is None else x.grad
# +        return grad if x is None else x.grad

# %% [raw] mutant="stage" hint="has an entry for each micro-batch"
# -        self.in_flight[key] = x, y
# -        return y.detach()
# +        self.pending = getattr(self, "pending", {})
# +        self.pending[key] = x, y
# +        return y.detach()
# -        x, y = self.in_flight.pop(key)
# +        x, y = self.pending.pop(key)

# %% [markdown]
# This is all that a pipeline sends: hidden states forward and their gradients back. Neither parameters nor their
# gradients cross a boundary. So the traffic grows with the number of tokens in a micro-batch, not with the number of
# parameters.
#
# ## Micro-batches
#
# Now comes the idea of **GPipe** ([Huang et al., 2019](https://arxiv.org/abs/1811.06965)). Split the batch, now called
# the **mini-batch**, into micro-batches. Once stage 0 has sent the first micro-batch on, it does not wait but starts
# the second one, so several stages compute at the same time. This is **pipeline parallelism**. The gradients of the
# micro-batches accumulate in `.grad`, and the optimizer takes one step for all of them. Is this still the same
# training? It is if the last stage weights each micro-batch correctly, which is what `grad` is for.

# %% [markdown]
# ### Exercise 2: the weight of a micro-batch
#
# The last stage returns the mean loss of a micro-batch over its tokens. A single process would return the mean over all
# tokens of the mini-batch. Tokens without a loss, such as padding or a prompt, count in neither mean, so micro-batches
# of equal size may have different numbers of tokens that count. The denominator of the second mean is the number of
# tokens that count in the whole mini-batch or, with data parallelism, in the mini-batches of all replicas together.
# (In your trainer, all replicas have the same number of tokens. So `loss_weights` gets the counts of one replica, and
# needs no collective.)
#
# In October 2024, gradient accumulation in widely used libraries [turned out to get this
# wrong](https://huggingface.co/blog/gradient_accumulation): they had averaged the micro-batches' means. Write
# `micro_batches.py`.

# %% answer="loss-weights"
%%writefile mytrainer/micro_batches.py
"""The weights of micro-batches."""


def loss_weights(tokens):
    """Return a list with the weight of each micro-batch in the loss of the mini-batch.

    Args:
        tokens: the number of tokens with a loss in each micro-batch; at least one has such tokens.
    """
    ### BEGIN SOLUTION
    return [count / sum(tokens) for count in tokens]
    ### END SOLUTION

# %% tags=["driver"]
def written_loss_weights(tokens):
    """Return the weights of micro_batches.py."""
    import runpy

    import mytrainer.micro_batches as file

    now = runpy.run_path(f"{file.__name__.replace('.', '/')}.py")  # the file as it is now
    return now["loss_weights"](tokens)

# %% check="loss-weights" points=2
check.function(
    written_loss_weights,
    cases=[{"tokens": [2, 1, 1]}, {"tokens": [5]}, {"tokens": [0, 3, 9]}],
    expected=[[0.5, 0.25, 0.25], [1.0], [0.0, 0.25, 0.75]],
    hints={
        "That is the mean over the micro-batches. Should one with few tokens count as much as one with many?":
            [[1 / 3, 1 / 3, 1 / 3], [1.0], [1 / 3, 1 / 3, 1 / 3]],
        "That is the sum over the micro-batches, but the loss of the mini-batch is a mean.":
            [[1.0, 1.0, 1.0], [1.0], [1.0, 1.0, 1.0]],
        "All weights are whole numbers. Where does your division lose its fraction?": [[0, 0, 0], [1], [0, 0, 0]],
        "The last stage has already divided by the micro-batch's own tokens.": [[0.25, 0.25, 0.25], [0.2], [1 / 12, 1 / 12, 1 / 12]],
    })
### BEGIN HIDDEN TESTS
check.function(written_loss_weights, cases=check.draw(12, tokens=lambda dice: [dice.randint(1, 4096) for _ in range(dice.randint(1, 9))]),
               expected=lambda tokens: [count / sum(tokens) for count in tokens])
### END HIDDEN TESTS

# %% [raw] mutant="loss-weights" hint="the mean over the micro-batches"
# -    return [count / sum(tokens) for count in tokens]
# +    return [1 / len(tokens) for count in tokens]

# %% [raw] mutant="loss-weights" hint="the loss of the mini-batch is a mean"
# -    return [count / sum(tokens) for count in tokens]
# +    return [1.0 for count in tokens]

# %% [raw] mutant="loss-weights" hint="lose its fraction"
# -    return [count / sum(tokens) for count in tokens]
# +    return [count // sum(tokens) for count in tokens]

# %% [raw] mutant="loss-weights" hint="has already divided"
# -    return [count / sum(tokens) for count in tokens]
# +    return [1 / sum(tokens) for count in tokens]

# %% [markdown]
# ## A schedule is data
#
# In which order does a stage run its passes? That is the **schedule**. It is a list with one element per stage, and
# each element is a list of **actions**: `"F3"` is the forward pass of micro-batch 3, and `"B3"` is its backward pass.
# The dependencies between actions are implied. `F3` on stage 1 needs the result of `F3` on stage 0, and `B3` on stage 0
# needs the result of `B3` on stage 1. On every stage, `B3` needs what `F3` has left in flight.
#
# In GPipe, every stage runs the forward passes of **all** micro-batches first and all backward passes after them; then
# the optimizer takes its step. The next mini-batch enters only after that step, so the pipeline drains between two
# mini-batches. This is the **pipeline flush**. Because of it, every pass of a mini-batch uses the same parameters, and
# the result is the same as without a pipeline.

# %% [markdown]
# ### Exercise 3: two schedules
#
# Write `gpipe.py`. Several answers are correct; yours is judged by its behavior. Is every action there? Does it run? Do
# the stages compute at the same time?

# %% answer="gpipe"
%%writefile mytrainer/gpipe.py
"""Two schedules, each a list with the actions of every stage: F3 and B3 are the passes of micro-batch 3."""


def one_by_one(stages, micro_batches):
    """Return the schedule in which one micro-batch at a time is in the pipeline."""
    ### BEGIN SOLUTION
    return [[f"{kind}{k}" for k in range(micro_batches) for kind in "FB"] for _ in range(stages)]
    ### END SOLUTION


def gpipe(stages, micro_batches):
    """Return GPipe's schedule (Huang et al., 2019): all forward passes, then all backward passes."""
    ### BEGIN SOLUTION
    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]
    ### END SOLUTION

# %% tags=["driver"]
def written_one_by_one(stages, micro_batches):
    """Return the schedule of gpipe.py."""
    import runpy

    import mytrainer.gpipe as file

    now = runpy.run_path(f"{file.__name__.replace('.', '/')}.py")  # the file as it is now
    return now["one_by_one"](stages, micro_batches)


def written_gpipe(stages, micro_batches):
    """Return the schedule of gpipe.py."""
    import runpy

    import mytrainer.gpipe as file

    now = runpy.run_path(f"{file.__name__.replace('.', '/')}.py")  # the file as it is now
    return now["gpipe"](stages, micro_batches)

# %% check="gpipe" points=4
with check.parts():
    with check.part(1, "one_by_one"):
        check.schedule(
            written_one_by_one,
            cases=[(2, 1), (2, 3), (4, 2)],
            live=[1, 1, 1],
            hints={"All forward passes come before the backward passes, so the micro-batches overlap. Run one at a time.": "gpipe",
                   "Return a list with an element per stage. How many stages are there?": "wrong stages",
                   "Micro-batches are numbered from 0, and each needs one F and one B on every stage.": "incomplete"})
        ### BEGIN HIDDEN TESTS
        check.schedule(written_one_by_one, cases=check.draw(12, stages=range(1, 9), micro_batches=range(1, 9)),
                       live=lambda stages, micro_batches: 1)
        ### END HIDDEN TESTS
    with check.part(3, "gpipe"):
        check.schedule(
            written_gpipe,
            cases=[{"stages": 4, "micro_batches": 8}, {"stages": 2, "micro_batches": 3}, {"stages": 1, "micro_batches": 2}],
            like="gpipe",
            hints={
                "It works for some pipelines only. Which number did you hard-code?": "some sizes",
                "One micro-batch at a time is what GPipe avoids. Which stages are busy meanwhile?": "one at a time",
                "The stages deadlock. Follow micro-batch 0 by hand: in which order do its forward and backward "
                "passes reach each stage?": "deadlock",
                "No two stages ever run forward passes at once in this order. A stage should process micro-batches in the order "
                "in which they arrive.": "serial forwards",
                "No two stages ever run backward passes at once in this order. A stage should process gradients in the order in "
                "which they arrive.": "serial backwards",
                "A backward pass precedes a forward pass. In GPipe all forward passes come first.": "forwards first",
                "Each stage needs an F and a B of each micro-batch, numbered from 0.": "incomplete",
            })
        ### BEGIN HIDDEN TESTS
        check.schedule(written_gpipe, cases=check.draw(16, stages=range(1, 9), micro_batches=range(1, 17)), like="gpipe")
        ### END HIDDEN TESTS

# %% [raw] mutant="gpipe" hint="so the micro-batches overlap"
# -    return [[f"{kind}{k}" for k in range(micro_batches) for kind in "FB"] for _ in range(stages)]
# +    return [[f"{kind}{k}" for kind in "FB" for k in range(micro_batches)] for _ in range(stages)]

# %% [raw] mutant="gpipe" hint="How many stages are there"
# -    return [[f"{kind}{k}" for k in range(micro_batches) for kind in "FB"] for _ in range(stages)]
# +    return [[f"{kind}{k}" for k in range(micro_batches) for kind in "FB"] for _ in range(micro_batches)]

# %% [raw] mutant="gpipe" hint="each needs one F and one B on every stage"
# -    return [[f"{kind}{k}" for k in range(micro_batches) for kind in "FB"] for _ in range(stages)]
# +    return [[f"{kind}{k + 1}" for k in range(micro_batches) for kind in "FB"] for _ in range(stages)]

# %% [raw] mutant="gpipe" hint="One micro-batch at a time is"
# -    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]
# +    return one_by_one(stages, micro_batches)

# %% [raw] mutant="gpipe" hint="It works for some"
# -    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]
# +    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in range(micro_batches)] for _ in range(4)]

# %% [raw] mutant="gpipe" hint="The stages deadlock. Follow"
# -    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]
# +    last = [f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in range(micro_batches)]
# +    return one_by_one(stages - 1, micro_batches) + [last]

# %% [raw] mutant="gpipe" hint="No two stages ever run backward"
# -    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]
# +    backwards = [f"B{k}" for k in range(micro_batches)]
# +    return [[f"F{k}" for k in range(micro_batches)] + backwards[::1 if stage % 2 else -1] for stage in range(stages)]

# %% [raw] mutant="gpipe" hint="No two stages ever run forward"
# -    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]
# +    forwards = [f"F{k}" for k in range(micro_batches)]
# +    return [forwards[::-1 if stage % 2 else 1] + [f"B{k}" for k in range(micro_batches)] for stage in range(stages)]

# %% [raw] mutant="gpipe" hint="A backward pass precedes"
# -    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]
# +    schedule = []
# +    for stage in range(stages):
# +        early = min(stages - 1 - stage, micro_batches)
# +        order = [f"F{k}" for k in range(early)]
# +        for k in range(early, micro_batches):
# +            order += [f"F{k}", f"B{k - early}"]
# +        schedule.append(order + [f"B{k}" for k in range(micro_batches - early, micro_batches)])
# +    return schedule

# %% [raw] mutant="gpipe" hint="Each stage needs an F and a B"
# -    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]
# +    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in range(1, micro_batches)] for _ in range(stages)]

# %% [markdown]
# Now look at both schedules. Here, a backward pass takes twice as long as a forward pass. Step through GPipe with the
# slider and count how many stages are busy at each moment. The strip below each stage shows how many micro-batches it
# has in flight.

# %% tags=["explore"]
CLOCK = Durations(forward=1, backward=1, weight=1)  # a backward pass: its two matmuls, one unit each


def schedules_of(stages, micro_batches):
    """Return both schedules of gpipe.py."""
    from mytrainer import gpipe

    return gpipe.one_by_one(stages, micro_batches), gpipe.gpipe(stages, micro_batches)


one, all_forwards = run_ranks(schedules_of, 1, 3, 2)[0], run_ranks(schedules_of, 1, 4, 6)[0][1]
if one[0]:
    display(plots.pipeline(simulate(parse_schedule(one[0]), CLOCK), "One at a time"))
if all_forwards:
    display(plots.pipeline(simulate(parse_schedule(all_forwards), CLOCK), "My GPipe", steps=True))

# %% [markdown]
# ## The bubble
#
# How large is the gray part that remains? Lab 02 used a formula for it. Derive it from your GPipe with $p$ equal stages
# and $m$ micro-batches: in one row, a stage is busy for $m$ forward and $m$ backward passes. When does its first forward
# pass start, and when does its last backward pass end?
#
# There are two ways to express a stage's idle time as a ratio. The **bubble fraction** divides it by the length of the
# whole step. The **bubble overhead** divides it by the time the stage is busy. Read papers with care: the GPipe paper
# (section 2.3) calls our *fraction* the "bubble overhead", and Narayanan et al.
# ([2021](https://arxiv.org/abs/2104.04473), section 2.2) call our *overhead* the "bubble time fraction".

# %% [markdown]
# ### Exercise 4: enough micro-batches
#
# You want to lose at most a given share of the step to the bubble. How many micro-batches does that take?

# %% answer="bubble"
import math


def enough(p, limit):
    """Return the smallest number of micro-batches, at least 1, with which GPipe's bubble fraction is at most limit.

    Args:
        p: the number of stages, all equally fast.
        limit: the largest bubble fraction, above 0 and below 1.
    """
    ### BEGIN SOLUTION
    return max(1, math.ceil((p - 1) * (1 - limit) / limit))
    ### END SOLUTION

# %% check="bubble" points=2
check.function(
    enough,
    cases=[(5, 0.26), (8, 0.11), (1, 0.1), (16, 0.045), (2, 0.9)],
    expected=[12, 57, 1, 319, 1],
    hints={
        "That keeps the bubble overhead below the limit. The bubble fraction divides by the whole step.":
            [16, 64, 1, 334, 2],
        "With that many micro-batches, the bubble still exceeds the limit. Which way do you round?":
            [11, 56, 1, 318, 1],
        "One stage has no bubble, but a step has at least one micro-batch.":
            [12, 57, 0, 319, 1],
        "At the start, all stages but one wait. How many are those?":
            [15, 65, 9, 340, 1],
        "With that number, the stages are busy for this share of the step, not idle.":
            [2, 1, 1, 1, 10],
    })
### BEGIN HIDDEN TESTS
# The limits are such that no bubble fraction equals one, where rounding would decide.
LIMITS = [share / 997 for share in (67, 71, 73, 79, 83, 101, 151, 199, 251, 307, 401, 499)]
check.function(enough, cases=check.draw(20, p=range(1, 65), limit=LIMITS),
               expected=lambda p, limit: next(m for m in range(1, 2000) if (p - 1) / (m + p - 1) <= limit))
### END HIDDEN TESTS

# %% [raw] mutant="bubble" hint="the bubble overhead"
# -    return max(1, math.ceil((p - 1) * (1 - limit) / limit))
# +    return max(1, math.ceil((p - 1) / limit))

# %% [raw] mutant="bubble" hint="Which way do you round"
# -    return max(1, math.ceil((p - 1) * (1 - limit) / limit))
# +    return max(1, math.floor((p - 1) * (1 - limit) / limit))

# %% [raw] mutant="bubble" hint="Which way do you round"
# -    return max(1, math.ceil((p - 1) * (1 - limit) / limit))
# +    return max(1, round((p - 1) * (1 - limit) / limit))

# %% [raw] mutant="bubble" hint="at least one micro-batch"
# -    return max(1, math.ceil((p - 1) * (1 - limit) / limit))
# +    return math.ceil((p - 1) * (1 - limit) / limit)

# %% [raw] mutant="bubble" hint="all stages but one"
# -    return max(1, math.ceil((p - 1) * (1 - limit) / limit))
# +    return max(1, math.ceil(p * (1 - limit) / limit))

# %% [raw] mutant="bubble" hint="busy for this share"
# -    return max(1, math.ceil((p - 1) * (1 - limit) / limit))
# +    return max(1, math.ceil((p - 1) * limit / (1 - limit)))

# %% tags=["explore"]
from pipeline_schedules import load


def simulated(p, m):
    """Return the bubble fraction of the course's GPipe, from a simulation."""
    return simulate(load("gpipe", p, m), CLOCK).bubble_fraction


display(plots.bubbles(simulated))
for p in (4, 8, 16):
    m = enough(p, 0.19)
    print(f"{p:2} stages: a bubble of {result(f'{simulated(p, m):.1%}')} with your {m} micro-batches, "
          f"and of {simulated(p, m - 1):.1%} with one fewer")

# %% [markdown]
# Each curve stands for one number of stages. What matters is the number of micro-batches *per stage*: with four times
# as many micro-batches as stages, the bubble fraction is below a fifth. The GPipe paper (section 2.3) finds the bubble
# negligible from there on.

# %% [markdown]
# ## From a model to stages
#
# Where can you cut a model? Between any two layers of a *sequence*. GPT-2 is one, if you look at it the right way: the
# embeddings come first (call them *pre*), then $L$ blocks that all map hidden states to hidden states, and finally the
# last norm, the output layer, and the loss (*post*). Libraries such as torchgpipe ([Kim et al.,
# 2020](https://arxiv.org/abs/2004.09910)) take this literally and ask for an `nn.Sequential`. That has a price: each
# layer then gets what the previous one returns, and nothing else. If the last stage needs labels or a loss mask, or all
# blocks need an attention mask, all of these have to be part of that result. The result becomes a tuple that every
# layer takes and returns and that crosses every boundary in full, and it may contain only tensors. A matrix that two
# layers share needs special support.
#
# Your stages take two arguments instead: the hidden states, which only the previous stage has, and the micro-batch,
# which every rank can read from disk. So only what the next stage cannot get anywhere else crosses a boundary.

# %% [markdown]
# ### Exercise 5: a stage of your Llama
#
# Write `llama_stage.py` with the classes of your `llama.py` and `vocabulary.py`. The check replaces them with stand-ins
# that have the same interface.
#
# - Every parameter has the same name as in the whole `Llama`, whose `layers` is a `ModuleList`. So the stages and
#   the whole model can read each other's checkpoints, and initial values that are derived from names do not depend on
#   the layout.
# - A stage builds only its own modules. Building the whole model first and then deleting the rest would need memory
#   that you do not have.
# - A stage may be both the first and the last one, and it may have no layers.
# - The logits come from `region.columns`, as in `Llama`. The loss is a tensor without dimensions.
# - If no token of a micro-batch counts, its loss is 0, and so are its gradients. Its weight of 0 is not enough to
#   ensure that, because 0 times NaN is NaN.

# %% answer="llama-stage"
%%writefile mytrainer/llama_stage.py
"""A part of your Llama, for one stage of a pipeline."""

import torch
from mytrainer.llama import Layer, RMSNorm
from mytrainer.vocabulary import VocabParallelEmbedding, cross_entropy


class LlamaStage(torch.nn.Module):
    """Consecutive layers of a Llama, and the ends of the model that belong to the stage.

    Every parameter has the name that it has in the whole Llama: the first layer of the second of two stages of a model of
    eight layers is layers.4.

    Attributes:
        embedding: VocabParallelEmbedding, on the first stage only.
        layers: contains a Layer for each number.
        norm, head: RMSNorm and VocabParallelEmbedding, on the last stage only.
    """

    def __init__(self, shape, region, numbers, is_first, is_last):
        """Args:
            shape: as for Llama.
            region: the ranks that share the stage.
            numbers: indices of the stage's layers in the whole model.
            is_first: whether the stage begins with the embedding.
            is_last: whether the stage ends with the norm, the output layer, and the loss.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.region, self.is_first, self.is_last = region, is_first, is_last
        if is_first:
            self.embedding = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
        self.layers = torch.nn.ModuleDict({str(number): Layer(shape, region) for number in numbers})
        if is_last:
            self.norm = RMSNorm(shape.hidden_size, region, shape.epsilon)
            self.head = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
        ### END SOLUTION

    def forward(self, x, data):
        """Return the hidden states [s, b, h] of the last layer, or on the last stage the mean loss (fp32, no dimensions).

        Args:
            x: hidden states of the previous stage, or None on the first stage.
            data: the micro-batch, with tokens, labels (int64), and loss_mask (0 or 1), all [s, b]. The loss is the mean over
                the tokens whose mask is 1.
        """
        ### BEGIN SOLUTION
        if self.is_first:
            x = self.embedding(data.tokens)
        for layer in self.layers.values():
            x = layer(x)
        if not self.is_last:
            return x
        (logits,) = self.region.columns(self.norm(x), self.head)
        losses = cross_entropy(logits, data.labels, self.head.first, self.region)
        return (losses * data.loss_mask).sum() / data.loss_mask.sum().clamp(min=1)
        ### END SOLUTION

# %% tags=["driver"]
def llama_in_stages(split, seed, tokens, labels, mask):
    """Build all stages of a small Llama, and run both passes of a micro-batch over them in this process.

    Args:
        split: the layers' numbers of each stage.
        seed: of the parameters.
        tokens, labels, mask: lists [s, b].

    Return for each stage the names of its parameters, and the classes that it built; the number of dimensions of each
    result; how many layers went through region.columns; and the loss, with one number for each parameter's gradient.
    """
    import zlib

    from lablib import llama_parts, tensor

    llama_parts.install()
    from mytrainer.llama_stage import LlamaStage

    class Counting(llama_parts.Region):
        layers = 0

        def columns(self, x, *layers):
            self.layers += len(layers)
            return super().columns(x, *layers)

    region, stages, built = Counting(), [], []
    shape = llama_parts.Shape(layers=sum(map(len, split)))
    for number, numbers in enumerate(split):
        llama_parts.built.clear()
        stages.append(LlamaStage(shape, region, numbers, number == 0, number == len(split) - 1))
        built.append(sorted(llama_parts.built))
    names = [[name for name, _ in stage.named_parameters()] for stage in stages]
    with torch.no_grad():
        for stage in stages:
            for name, one in stage.named_parameters():
                one.copy_(0.5 * tensor.sines(one.shape, seed + zlib.crc32(name.encode()) % 97) + (one.dim() == 1))
    x, dims = None, []
    data = llama_parts.Tokens(torch.tensor(tokens), torch.tensor(labels), torch.tensor(mask))
    for stage in stages:
        x = stage(x, data)
        dims.append(x.dim())
        if stage is not stages[-1] and x.dim() != 3:
            break
    if dims[-1] == 0:
        x.backward()
    grads = {name: tensor.projected(one.grad) for stage in stages for name, one in stage.named_parameters() if one.grad is not None}
    return [[sorted(one) for one in names], built, dims, region.layers, [x.item() if dims[-1] == 0 else 0.0, *(grads[name] for name in sorted(grads))]]

# %% tags=["check-setup"]
def llama_of_one_process(layers, seed, tokens, labels, mask):
    """Return the loss of the whole model, and one number for each parameter's gradient, by name."""
    import zlib

    import torch
    import torch.nn.functional as F

    from lablib import tensor

    shapes = {"embedding.weight": (7, 4), "norm.weight": (4,), "head.weight": (7, 4)} | {f"layers.{one}.weight": (4, 4) for one in range(layers)}
    weights = {name: (0.5 * tensor.sines(shape, seed + zlib.crc32(name.encode()) % 97) + (len(shape) == 1)).requires_grad_()
               for name, shape in shapes.items()}
    x = weights["embedding.weight"][torch.tensor(tokens)]
    for number in range(layers):
        x = x + (x @ weights[f"layers.{number}.weight"].T).tanh()
    x = x * (x.square().mean(-1, keepdim=True) + 1e-2).rsqrt() * weights["norm.weight"]
    losses = F.cross_entropy((x @ weights["head.weight"].T).flatten(0, 1), torch.tensor(labels).flatten(), reduction="none")
    counted = torch.tensor(mask).flatten()
    loss = (losses * counted).sum() / counted.sum()
    loss.backward()
    return [loss.item(), *(in_one_number(weights[name].grad) for name in sorted(weights))]


def names_of_stages(split):
    """Return the names of each stage's parameters, sorted, and the classes that it builds."""
    names, built = [], []
    for number, numbers in enumerate(split):
        is_first, is_last = number == 0, number == len(split) - 1
        names.append(sorted(["embedding.weight"] * is_first + [f"layers.{one}.weight" for one in numbers] + ["norm.weight", "head.weight"] * is_last))
        built.append(["Layer"] * len(numbers) + ["RMSNorm"] * is_last + ["VocabParallelEmbedding"] * (is_first + is_last))
    return names, built

# %% check="llama-stage" points=5
def require_stages(run, split):
    names, built, dims, columns, _ = run.values[0]
    right, classes = names_of_stages(split)
    for number, numbers in enumerate(split):
        more = [one for one in set(built[number]) if built[number].count(one) > classes[number].count(one)]
        check.that(not more, f"Stage {number} of {len(split)} builds more than it has, of {more}. Its layers are {numbers}.")
        check.that(names[number] == right[number], f"The parameters of stage {number} are {names[number]}. In the whole model, what is the "
                   f"name of layer {numbers[0] if numbers else 0}, and which ends belong to this stage?")
    check.that(all(one == 3 for one in dims[:len(split) - 1]), "A stage that is not the last one returns hidden states [s, b, h].")
    check.that(dims[-1] == 0, "The result of the last stage has dimensions. It is the mean loss of the micro-batch.")
    check.that(columns == 1, "The output layer is column-parallel: its logits come from region.columns.")


TEXT = {"tokens": [[1, 4], [2, 2], [6, 0]], "labels": [[2, 2], [6, 0], [3, 5]], "mask": [[1, 1], [1, 0], [1, 0]]}
CASES = [{"split": [[0, 1], [2], [3]], "seed": 1.0, **TEXT}, {"split": [[], [0]], "seed": 2.0, **TEXT}]
with check.parts():
    with check.part(2, "builds its part of the model"):
        for case, run in zip(CASES, check.ranks(llama_in_stages, ranks=1, cases=CASES, expected=None), strict=True):
            require_stages(run, case["split"])
    with check.part(3, "computes what the whole model computes"):
        check.ranks(llama_in_stages, ranks=1, cases=CASES, rel=1e-4, expected=[[[[["embedding.weight", "layers.0.weight", "layers.1.weight"], ["layers.2.weight"], ["head.weight", "layers.3.weight",
            "norm.weight"]], [["Layer", "Layer", "VocabParallelEmbedding"], ["Layer"], ["Layer", "RMSNorm",
            "VocabParallelEmbedding"]], [3, 3, 0], 1, [2.462285, -0.08703241, 0.267261, 0.3221471, 0.253231, 0.3537837, 0.4192049,
            -0.06786509]]], [[[["embedding.weight"], ["head.weight", "layers.0.weight", "norm.weight"]],
            [["VocabParallelEmbedding"], ["Layer", "RMSNorm", "VocabParallelEmbedding"]], [3, 0], 1, [1.929754, -0.551287,
            -0.2000683, 3.38035, 0.168798]]]], hints={
            "Some tokens have no loss: which of them count?": [[[[["embedding.weight", "layers.0.weight", "layers.1.weight"], ["layers.2.weight"], ["head.weight", "layers.3.weight",
            "norm.weight"]], [["Layer", "Layer", "VocabParallelEmbedding"], ["Layer"], ["Layer", "RMSNorm",
            "VocabParallelEmbedding"]], [3, 3, 0], 1, [2.543458, -0.1373453, -0.1751886, 0.4534882, 0.2485649, 0.4630311,
            1.404433, 0.04501822]]], [[[["embedding.weight"], ["head.weight", "layers.0.weight", "norm.weight"]],
            [["VocabParallelEmbedding"], ["Layer", "RMSNorm", "VocabParallelEmbedding"]], [3, 0], 1, [2.067647, -0.4313768,
            -0.4847983, 2.373243, 0.2199445]]]],
            "That is the mean over all tokens, and those without a loss count as zero.": [[[[["embedding.weight", "layers.0.weight", "layers.1.weight"], ["layers.2.weight"], ["head.weight", "layers.3.weight",
            "norm.weight"]], [["Layer", "Layer", "VocabParallelEmbedding"], ["Layer"], ["Layer", "RMSNorm",
            "VocabParallelEmbedding"]], [3, 3, 0], 1, [1.641523, -0.05802149, 0.178174, 0.2147646, 0.1688207, 0.2358557,
            0.2794699, -0.0452434]]], [[[["embedding.weight"], ["head.weight", "layers.0.weight", "norm.weight"]],
            [["VocabParallelEmbedding"], ["Layer", "RMSNorm", "VocabParallelEmbedding"]], [3, 0], 1, [1.286502, -0.3675247,
            -0.1333789, 2.253567, 0.112532]]]],
            "The hidden states need the last norm before the output layer.": [[[[["embedding.weight", "layers.0.weight", "layers.1.weight"], ["layers.2.weight"], ["head.weight", "layers.3.weight",
            "norm.weight"]], [["Layer", "Layer", "VocabParallelEmbedding"], ["Layer"], ["Layer", "RMSNorm",
            "VocabParallelEmbedding"]], [3, 3, 0], 1, [1.994664, -0.04485117, 0.09538543, 0.07176128, 0.0363622, 0.06935202,
            0.1312673]]], [[[["embedding.weight"], ["head.weight", "layers.0.weight", "norm.weight"]],
            [["VocabParallelEmbedding"], ["Layer", "RMSNorm", "VocabParallelEmbedding"]], [3, 0], 1, [1.913091, -0.02658074,
            0.06303088, 0.5024216]]]]})
        for run in check.ranks(llama_in_stages, ranks=1, cases=[{**CASES[0], "mask": [[0, 0], [0, 0], [0, 0]]}], expected=None):
            check.that(not any(run.values[0][-1]), "In a micro-batch with no token that counts, the loss and its gradients are "
                       f"{run.values[0][-1]}, and not 0.")
        ### BEGIN HIDDEN TESTS
        for split in ([[0, 1, 2]], [[0], [1], [2], [3, 4]]):
            for run in check.ranks(llama_in_stages, ranks=1, cases=[{"split": split, "seed": 3.0, **TEXT}], expected=None):
                require_stages(run, split)
        for split in ([[0, 1, 2]], [[0], [1], [2], [3, 4]], [[*range(8)], [8, 9, 10]]):
            names, built = names_of_stages(split)
            check.ranks(llama_in_stages, ranks=1, rel=1e-3, cases=check.draw(
                1, split=[split], seed=check.between(0, 99), tokens=lambda dice: [[dice.randrange(7) for _ in range(3)] for _ in range(4)],
                labels=lambda dice: [[dice.randrange(7) for _ in range(3)] for _ in range(4)],
                mask=lambda dice: [[1, dice.randrange(2), dice.randrange(2)] for _ in range(4)]),
                expected=lambda ranks, split, **case: [[names, built, [3] * (len(split) - 1) + [0], 1,
                                                        llama_of_one_process(layers=sum(map(len, split)), **case)]])
        ### END HIDDEN TESTS

# %% [raw] mutant="llama-stage" hint="what is the name of layer"
# -        self.layers = torch.nn.ModuleDict({str(number): Layer(shape, region) for number in numbers})
# +        self.layers = torch.nn.ModuleDict({str(place): Layer(shape, region) for place, number in enumerate(numbers)})

# %% [raw] mutant="llama-stage" hint="builds more than it has"
# -        if is_first:
# -            self.embedding = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
# +        self.embedding = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
# +        if not is_first:
# +            del self.embedding

# %% [raw] mutant="llama-stage" hint="builds more than it has"
# -        self.layers = torch.nn.ModuleDict({str(number): Layer(shape, region) for number in numbers})
# +        self.layers = torch.nn.ModuleDict({str(number): Layer(shape, region) for number in range(shape.layers)})

# %% [raw] mutant="llama-stage" hint="has dimensions"
# -        return (losses * data.loss_mask).sum() / data.loss_mask.sum().clamp(min=1)
# +        return losses * data.loss_mask

# %% [raw] mutant="llama-stage" hint="no token that counts"
# -        return (losses * data.loss_mask).sum() / data.loss_mask.sum().clamp(min=1)
# +        return (losses * data.loss_mask).sum() / data.loss_mask.sum()

# %% [raw] mutant="llama-stage" hint="which of them count"
# -        return (losses * data.loss_mask).sum() / data.loss_mask.sum().clamp(min=1)
# +        return losses.mean()

# %% [raw] mutant="llama-stage" hint="count as zero"
# -        return (losses * data.loss_mask).sum() / data.loss_mask.sum().clamp(min=1)
# +        return (losses * data.loss_mask).mean()

# %% [raw] mutant="llama-stage" hint="need the last norm"
# -        (logits,) = self.region.columns(self.norm(x), self.head)
# +        (logits,) = self.region.columns(x, self.head)

# %% [raw] mutant="llama-stage" hint="come from region.columns"
# -        (logits,) = self.region.columns(self.norm(x), self.head)
# +        logits = self.norm(x) @ self.head.weight.T

# %% [raw] mutant="llama-stage" hint="returns hidden states"
# -        if not self.is_last:
# -            return x
# +        if not self.is_last:
# +            return x.flatten(0, 1)

# %% [markdown]
# ## The executor
#
# You have stages, and you have schedules. What is missing is the **executor**, the code that runs a schedule on a rank.
# Its input is a **program**: a list of the rank's actions in which every send and receive is spelled out. This is the
# program of the second of three stages, for one micro-batch:
#
# ```
# recv F0 from 0    start to receive the input of F0
# F0                the forward pass
# send F0 to 2      send the result of F0
# recv B0 from 2    start to receive the input of B0, the gradient of what was sent
# B0                the backward pass
# send B0 to 0      send the result of B0, the gradient of the input
# ```
#
# Who turns a schedule into such programs? In the second sitting, you will. For now, `lablib.simple_program` does the
# obvious thing: every action receives its input right before it runs, and sends its result right after.
#
# **Shapes and dtypes.** A receive needs a buffer of the right shape and dtype before anything arrives. A pipeline
# either *knows* them, because every stage can compute them from the micro-batch (Megatron-LM uses the sequence length,
# the micro-batch size, and the hidden size), or *negotiates* them: a header with the shape precedes each tensor, or a
# first pass records all shapes. Your executor knows them: `buffer(data[k])` returns an empty tensor for micro-batch
# $k$. A gradient has the shape of its tensor, so one function is enough for both directions.

# %% [markdown]
# ### Exercise 6: run any program
#
# Write `Pipeline.run` in `pipeline.py`. `BlockingLinks`, which sends and receives for it, is given; the links that you
# write in exercise 8 will not block.
#
# - Run the items of the program in order. Keep no tensor after you have sent it or a pass has consumed it.
# - `links.receive` may return before the tensor has arrived. It then returns an object with a method `wait()`. Wait as
#   late as you can.
# - `pipeline.py` imports `parse` from `mytrainer.program`, which you write in exercise 7. Until then, checks and cells
#   substitute `lablib.simple_program`.
# - A rank may have several parts of the model that are not adjacent. They are called **chunks**, and each has a `Stage`
#   of its own (lab 11). `F3.1` is the forward pass of micro-batch 3 on chunk 1.
# - `W3` is a pass that computes only the gradients of the parameters, so that `B3` does not have to (lab 12). Run it by
#   calling the stage's method `weight(3)`. Your `Stage` has no such method; the one in lab 12 will.
# - Only the loss is a tensor without dimensions, so a module that returns one is at the end of the model. Its backward
#   pass gets the weight of the micro-batch, which no other rank sends. On that rank, `run` returns the loss of the
#   mini-batch, a tensor without a history; on all others, it returns None.
# - When everything has been computed, `links.finish()` waits until everything has been sent.

# %% answer="pipeline"
%%writefile mytrainer/pipeline.py
"""Execute a pipeline schedule on one rank."""

import torch
import torch.distributed as dist
from mytrainer.program import parse
from mytrainer.stage import Stage


class BlockingLinks:
    """Sends and receives that return when the tensor has been sent or received.

    Attributes:
        group: the ranks of the pipeline; the rank of stage s is number s.
    """

    def __init__(self, group):
        self.group = group

    def send(self, tensor, stage, kind):
        """Send to a stage; kind: "F" for hidden states, and "B" for their gradients."""
        dist.send(tensor, group_dst=stage, group=self.group)

    def receive(self, tensor, stage, kind):
        """Receive from a stage, into a tensor; return None, or an object whose `wait()` waits for it."""
        dist.recv(tensor, group_src=stage, group=self.group)

    def finish(self):
        """Wait for all sends."""


class Pipeline:
    """One rank of a pipeline.

    Attributes:
        stages: a Stage for each chunk of the model on this rank.
        links: the sends and receives.
    """

    def __init__(self, modules, links, buffer, make_stage=Stage):
        """Args:
            modules: a module for each chunk.
            links: the sends and receives.
            buffer: returns an empty tensor for the hidden states of a micro-batch, given the micro-batch.
            make_stage: returns the Stage of a module.
        """
        self.stages, self.links, self.buffer = [make_stage(module) for module in modules], links, buffer

    def run(self, program, data, weights):
        """Run the passes of a step, and return the loss, weighted over the micro-batches (None except on the last stage).

        Args:
            program: this rank's actions, sends, and receives. `parse` splits an action: ("B", 3, 1) for B3.1.
            data: the micro-batches.
            weights: for each micro-batch, its weight in the loss, a float; they sum to 1. `Stage.backward` takes it as a
                tensor.
        """
        ### BEGIN SOLUTION
        arrived, results, total = {}, {}, None
        for item in program:
            verb, *rest = item.split()
            if verb == "send":
                action, peer = rest[0], int(rest[2])
                self.links.send(results.pop(action), peer, action[0])
            elif verb == "recv":
                action, peer = rest[0], int(rest[2])
                tensor = self.buffer(data[parse(action)[1]])
                arrived[action] = tensor, self.links.receive(tensor, peer, action[0])
            else:
                loss = self.act(verb, arrived, results, data, weights)
                if loss is not None:
                    total = loss if total is None else total + loss
        self.links.finish()
        return total

    def act(self, action, arrived, results, data, weights):
        """Run an action, which takes its input from `arrived` and adds its output to `results`.

        Return the weighted loss after a forward pass at the end of the model.
        """
        kind, number, chunk = parse(action)
        stage = self.stages[chunk]
        tensor, work = arrived.pop(action, (None, None))
        if work is not None:
            work.wait()
        if kind == "W":
            stage.weight(number)
        elif kind == "B":
            gradient = stage.backward(number, tensor)
            if gradient is not None:
                results[action] = gradient
        else:
            y = stage.forward(number, tensor, data[number])
            if y.dim():
                results[action] = y
                return None
            arrived[f"B{action[1:]}"] = torch.full_like(y, weights[number]), None
            return weights[number] * y
        return None
        ### END SOLUTION

# %% tags=["driver"]
def pipelined(schedule, sizes, layers, seed, width=3):
    """Run a schedule with simple programs on the ranks of a pipeline.

    Args:
        schedule: the actions of each stage.
        sizes: samples of each micro-batch.
        layers: of each chunk on this rank.
        seed: of this rank's parameters; 100 more for each further chunk.
        width: of the hidden states.

    Return the loss or None, and one number for the gradient of each matrix.
    """
    from lablib import pipeline_parts, simple_program

    simple_program.install()
    from mytrainer.pipeline import BlockingLinks, Pipeline

    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [pipeline_parts.Part(chunk * ranks + rank, ranks * len(layers), count, width, seed + 100 * chunk)
             for chunk, count in enumerate(layers)]
    pipeline = Pipeline(parts, BlockingLinks(dist.group.WORLD), lambda one: torch.empty_like(one.x))
    loss = pipeline.run(simple_program.add_communication(schedule)[rank], pipeline_parts.micro_batches(sizes, width),
                        [size / sum(sizes) for size in sizes])
    return [None if loss is None else float(loss), [one for part in parts for one in pipeline_parts.projected_gradients(part)]]


def pipeline_log(program, sizes, layers, width=3):
    """Run this rank's program with links that receive when they are waited for.

    Return the passes, receives, waits, and the end of the step, in their order; and whether the loss has a history, or
    "a number" if it is not a tensor.
    """
    from lablib import pipeline_parts, simple_program

    simple_program.install()
    from mytrainer.pipeline import BlockingLinks, Pipeline
    from mytrainer.stage import Stage

    rank, ranks, log = dist.get_rank(), dist.get_world_size(), []
    part = pipeline_parts.Part(rank, ranks, layers, width, 1.0)
    pipeline = Pipeline([part], pipeline_parts.LateReceives(BlockingLinks(dist.group.WORLD), log), lambda one: torch.empty_like(one.x),
                        lambda module: pipeline_parts.Recorder(Stage(module), log))
    loss = pipeline.run(program, pipeline_parts.micro_batches(sizes, width), [size / sum(sizes) for size in sizes])
    return [log, "a number" if isinstance(loss, float) else loss is not None and loss.requires_grad]


def pipeline_memory(schedule, tokens, width, layers):
    """Run a schedule with simple programs on GPUs, with micro-batches of equal size."""
    from lablib import pipeline_parts, simple_program

    simple_program.install()
    from mytrainer.pipeline import BlockingLinks, Pipeline

    rank, ranks, count = dist.get_rank(), dist.get_world_size(), len(schedule[0]) // 2
    with torch.device("cuda"):
        part = pipeline_parts.Part(rank, ranks, layers, width, 1.0)
        one = pipeline_parts.MicroBatch(torch.zeros(tokens, width), torch.zeros(tokens, width))
        pipeline = Pipeline([part], BlockingLinks(dist.group.WORLD), lambda one: torch.empty_like(one.x))
        pipeline.run(simple_program.add_communication(schedule)[rank], [one] * count, [1 / count] * count)

# %% tags=["check-setup"]
def consumers(schedule, sizes, width):
    """Return the sends of each stage in the order of its actions, as pairs of a peer and a number of bytes."""
    stages, sends = len(schedule), []
    chunks = 1 + max(int(action.partition(".")[2] or 0) for actions in schedule for action in actions)
    for stage, actions in enumerate(schedule):
        sends.append([])
        for action in actions:
            number, _, chunk = action[1:].partition(".")
            part = int(chunk or 0) * stages + stage + {"F": 1, "B": -1}[action[0]]
            if 0 <= part < stages * chunks:
                sends[-1].append((part % stages, 4 * sizes[int(number)] * width))
    return sends


def require_transfers(run, schedule, sizes, width=3):
    """Require that the ranks send hidden states and their gradients, each once, and nothing else."""
    for rank, right in enumerate(consumers(schedule, sizes, width)):
        others = {call.op for call in run.calls(rank)} - {"send", "recv"}
        check.that(not others, f"Rank {rank} calls {sorted(others)}. Only neighboring stages need to communicate.")
        sends = [(call.peer, call.bytes) for call in run.calls(rank, "send")]
        check.that(sends == right, f"Rank {rank} sends (peer, bytes) {sends}; the hidden states and gradients of its program are {right}.")


def pipeline_of_one_process(ranks, sizes, layers, seeds, width=3):
    """Return what each rank of a pipeline returns: the loss on the last one, and the gradients of its chunks."""
    chunks = len(layers[0])
    order = [(rank, chunk) for chunk in range(chunks) for rank in range(ranks)]
    losses, _, gradients = parts_of_one_process(sizes, [layers[rank][chunk] for rank, chunk in order],
                                                [seeds[rank] + 100 * chunk for rank, chunk in order], width)
    loss = sum(one * size for one, size in zip(losses, sizes, strict=True)) / sum(sizes)
    return [[loss if rank == ranks - 1 else None,
             [one for part, (owner, _) in zip(gradients, order, strict=True) if owner == rank for one in part]] for rank in range(ranks)]


# Both stages of GPipe with three micro-batches, four stages that run two micro-batches one at a time, and two chunks on each of two ranks.
PIPELINES = {"gpipe": [["F0", "F1", "F2", "B2", "B1", "B0"]] * 2, "one": [["F0", "B0", "F1", "B1"]] * 4,
             "chunks": [["F0", "F0.1", "B0.1", "B0", "F1", "F1.1", "B1.1", "B1"]] * 2}
RUNS = {"gpipe": {"schedule": PIPELINES["gpipe"], "sizes": [2, 3, 1], "layers": check.by_rank([[1], [2]]), "seed": check.by_rank([1.0, 2.0])},
        "one": {"schedule": PIPELINES["one"], "sizes": [1, 3], "layers": check.by_rank([[1], [3], [1], [2]]),
                "seed": check.by_rank([1.0, 2.0, 3.0, 4.0])},
        "chunks": {"schedule": PIPELINES["chunks"], "sizes": [2, 1], "layers": check.by_rank([[1, 1], [2, 1]]), "seed": check.by_rank([1.0, 2.0])}}

# %% check="pipeline" points=8
with check.parts():
    with check.part(4, "computes the loss and the gradients of one process"):
        for name in ("gpipe", "one"):
            for run in check.ranks(pipelined, ranks=len(PIPELINES[name]), cases=[RUNS[name]], expected=None, hints={
                    "A rank waits for something that is never sent. Does everything in the program happen?": "deadlock"}):
                *others, last = [value[0] for value in run.values]
                check.that(last is not None, "The last stage computes the loss of the mini-batch, and run returns it there.")
                check.that(set(others) == {None}, "A rank without the end of the model knows no loss: run returns None there.")
                require_transfers(run, PIPELINES[name], RUNS[name]["sizes"])
        check.ranks(pipelined, ranks=2, cases=[RUNS["gpipe"]], rel=1e-4, expected=[[[None, [-0.1189379]], [1.002888, [0.2404712, 0.5908361]]]], hints={
            "The loss is not weighted: how much does each micro-batch count?": [[[None, [-0.1189379]], [2.993665, [0.2404712, 0.5908361]]]],
            "The loss is that of the mini-batch, and its gradient is not. What is the last stage's grad?": [[[None, [-0.3758283]], [1.002888, [0.6165346, 1.710346]]]],
            "All micro-batches have the same weight. Which weights does run get?": [[[None, [-0.1252761]], [0.9978884, [0.2055115, 0.5701152]]]],
            "Every pass uses the data of the same micro-batch.": [[[None, [-0.3385095]], [0.9235821, [0.3437179, 0.6635402]]]]})
        check.ranks(pipelined, ranks=4, cases=[RUNS["one"]], rel=1e-4, expected=[[[None, [-0.07083258]], [None, [0.02590486, 0.1261293, 0.07259721]], [None, [0.07842772]], [0.8085803, [0.1202886,
            0.03293329]]]])
        ### BEGIN HIDDEN TESTS
        def gpipe_schedule(stages, micro_batches):
            return [[f"F{one}" for one in range(micro_batches)] + [f"B{one}" for one in range(micro_batches)]] * stages


        for ranks, count in ((2, 5), (3, 3), (4, 2)):
            schedule = gpipe_schedule(ranks, count)
            (case,) = check.draw(1, sizes=lambda dice: [dice.randint(1, 4) for _ in range(count)], seed=check.for_each_rank(check.between(0, 99)))
            case |= {"schedule": schedule, "layers": check.by_rank([[1 + (rank + count) % 3] for rank in range(ranks)])}
            (run,) = check.ranks(pipelined, ranks=ranks, rel=1e-3, cases=[case], expected=lambda ranks, schedule, sizes, layers, seed: (
                pipeline_of_one_process(ranks, sizes, layers, seed)))
            require_transfers(run, schedule, case["sizes"])
        ### END HIDDEN TESTS
    with check.part(1, "runs several chunks, and passes for the weights"):
        check.ranks(pipelined, ranks=2, cases=[RUNS["chunks"]], rel=1e-4, expected=[[[None, [0.0528703, 0.2940696]], [0.8805869, [0.06344118, 0.1631654, 0.2291419]]]])
        for run in check.ranks(pipeline_log, ranks=1, cases=[{"program": ["F0", "B0", "F1", "W0", "B1", "W1"], "sizes": [1, 2], "layers": 1}],
                               expected=None):
            check.that(run.values[0][0] == ["F0", "B0", "F1", "W0", "B1", "W1", "finish"], "A program with the actions F0 B0 F1 W0 B1 W1 "
                       f"calls {' '.join(run.values[0][0])}. An action W calls weight of the stage.")
    with check.part(2, "waits for what it receives, and no earlier than it must"):
        LATE = [["F0", "send F0 to 1", "F1", "send F1 to 1", "recv B0 from 1", "B0", "recv B1 from 1", "B1"],
                ["recv F0 from 0", "recv F1 from 0", "F0", "F1", "B0", "send B0 to 0", "B1", "send B1 to 0"]]
        for run in check.ranks(pipeline_log, ranks=2, cases=[{"program": check.by_rank(LATE), "sizes": [1, 2], "layers": 1}], expected=None,
                               hints={"A receive may return before its tensor has arrived: what does it return?": "deadlock"}):
            (log, history), (other, _) = run.values[1], run.values[0]
            check.that(history != "a number", "run returns a number. Return a tensor, so that the caller does not wait for the GPU.")
            check.that(not history, "The loss that run returns has a history.")
            check.that(log[-1:] == ["finish"] and other[-1:] == ["finish"], "The step ends when everything has been sent: links.finish().")
            check.that(log == ["recv F from 0", "recv F from 0", "wait F from 0", "F0", "wait F from 0", "F1", "B0", "B1", "finish"],
                       f"With the program {', '.join(LATE[1])}, rank 1 does: {', '.join(log)}. When does it have to wait for a tensor?")
    with check.part(1, "keeps nothing that was sent or consumed"):
        SIZE = {"tokens": 65536, "width": 1024, "layers": 1}
        cost = check.gpus(pipeline_memory, {"schedule": [[f"{kind}{one}" for one in range(16) for kind in "FB"]] * 2, **SIZE}, "h100:2",
                          least={"communicated": 16 * 4 * 65536 * 1024, "among": 2})
        check.pass_mark(cost.peak_memory, "Only one micro-batch is in the pipeline at a time, and 16 of them take more memory than one. What "
                        "does your executor still have after it has sent or used it?", error=cost.memory_error, below=3.0)

# %% [raw] mutant="pipeline" hint="The loss is not weighted"
# -            return weights[number] * y
# +            return y

# %% [raw] mutant="pipeline" hint="What is the last stage's grad"
# -            arrived[f"B{action[1:]}"] = torch.full_like(y, weights[number]), None
# +            arrived[f"B{action[1:]}"] = torch.ones_like(y), None

# %% [raw] mutant="pipeline" hint="have the same weight"
# -        arrived, results, total = {}, {}, None
# +        arrived, results, total = {}, {}, None
# +        weights = [1 / len(weights)] * len(weights)

# %% [raw] mutant="pipeline" hint="the data of the same micro-batch"
# -            y = stage.forward(number, tensor, data[number])
# +            one = type(data[0])(*(value.repeat(9, 1)[:len(data[number].x)] for value in (data[0].x, data[0].y)))
# +            y = stage.forward(number, tensor, one)

# %% [raw] mutant="pipeline" hint="run returns it there"
# -        return total

# %% [raw] mutant="pipeline" hint="knows no loss"
# -        return total
# +        return torch.zeros(()) if total is None else total

# %% [raw] mutant="pipeline" hint="Does everything in the program happen"
# -                self.links.send(results.pop(action), peer, action[0])
# +                if action[0] == "F":
# +                    self.links.send(results.pop(action), peer, action[0])

# %% [raw] mutant="pipeline" hint="the hidden states and gradients of its program are"
# -                self.links.send(results.pop(action), peer, action[0])
# +                self.links.send(results.pop(action).double(), peer, action[0])
# -                tensor = self.buffer(data[parse(action)[1]])
# -                arrived[action] = tensor, self.links.receive(tensor, peer, action[0])
# +                tensor = self.buffer(data[parse(action)[1]]).double()
# +                self.links.receive(tensor, peer, action[0])
# +                arrived[action] = tensor.float(), None

# %% [raw] mutant="pipeline" hint="Only neighboring stages need to communicate"
# -        self.links.finish()
# -        return total
# +        self.links.finish()
# +        dist.barrier()
# +        return total

# %% [raw] mutant="pipeline" hint="An action W calls weight"
# -        if kind == "W":
# -            stage.weight(number)
# -        elif kind == "B":
# +        if kind == "W":
# +            pass
# +        elif kind == "B":

# %% [raw] mutant="pipeline" hint="what does it return"
# -        if work is not None:
# -            work.wait()

# %% [raw] mutant="pipeline" hint="When does it have to wait"
# -                arrived[action] = tensor, self.links.receive(tensor, peer, action[0])
# +                work = self.links.receive(tensor, peer, action[0])
# +                if work is not None:
# +                    work.wait()
# +                arrived[action] = tensor, None

# %% [raw] mutant="pipeline" hint="links.finish()"
# -        self.links.finish()

# %% [raw] mutant="pipeline" hint="after it has sent or used it"
# -                self.links.send(results.pop(action), peer, action[0])
# +                self.links.send(results[action], peer, action[0])

# %% [raw] mutant="pipeline" hint="run returns a number"
# -            return weights[number] * y
# +            return weights[number] * y.item()

# %% [raw] mutant="pipeline" hint="The loss that run returns has a history"
# -            return weights[number] * y
# +            return torch.tensor(weights[number], requires_grad=True) * y

# %% [markdown]
# Does it train a real model? The next cell cuts a Llama of 8 layers into four unequal stages, and runs your GPipe with
# micro-batches of 1, 3, and 2 samples. For comparison, a single process computes the same loss:

# %% tags=["explore"]
SPLIT = [[0, 1, 2], [3, 4], [5, 6], [7]]


def llama_pipeline(split, sizes, s=6):
    """Run a step of a Llama in stages; return the loss and the square of the gradient's norm on this rank."""
    from lablib import llama_parts, tensor_training

    simple_program.install()
    from mytrainer import gpipe, llama_stage, pipeline, tensor_parallel

    rank, stages = dist.get_rank(), len(split)
    group = [dist.new_group([one]) for one in range(stages)][rank]
    shape = tensor_training.Shape(layers=8)
    module = llama_stage.LlamaStage(shape, tensor_parallel.Region(group), split[rank], rank == 0, rank == stages - 1)
    tensor_training.fill(module, 0.0)
    tokens, labels = tensor_training.batch(shape.vocab_size, s, sum(sizes))
    data = [llama_parts.Tokens(*one, torch.ones_like(one[0])) for one in zip(tokens.split(sizes, 1), labels.split(sizes, 1), strict=True)]
    made = pipeline.Pipeline([module], pipeline.BlockingLinks(dist.group.WORLD),
                             lambda one: torch.empty(*one.tokens.shape, shape.hidden_size))
    loss = made.run(simple_program.add_communication(gpipe.gpipe(stages, len(sizes)))[rank], data, [size / sum(sizes) for size in sizes])
    return None if loss is None else loss.item(), sum(one.grad.square().sum().item() for one in module.parameters())


for name, split in {"four stages": SPLIT, "one process": [list(range(8))]}.items():
    values = run_ranks(llama_pipeline, len(split), split, [1, 3, 2])
    print(f"{name}: loss {result(f'{values[-1][0]:.6f}')}, norm of the gradient {result(f'{sum(one for _, one in values) ** 0.5:.6f}')}")

# %% [markdown]
# ## What GPipe stores
#
# Your stages free a micro-batch when its backward pass is done, and in GPipe all backward passes come last. Take a
# mini-batch of a fixed size, on a pipeline of four virtual H100s. You split it into 4 micro-batches, and then into 16,
# because the bubble is too large. By what factor does the peak memory of a stage change? Set `guess_memory`, where 2.0
# means that it doubles:

# %% answer="guess-memory"
### BEGIN SOLUTION
guess_memory = 1.0
### END SOLUTION

# %% tags=["explore"]
def gpu_pipeline(name, count, tokens=65536, width=4096, layers=4, links="BlockingLinks", given=None):
    """Run a step on GPUs with a schedule of gpipe.py, or a given one and its programs; return its milliseconds."""
    dist.init_process_group()
    if not os.path.exists("mytrainer/program.py"):
        simple_program.install()
    from mytrainer import gpipe, pipeline, program

    rank, stages = dist.get_rank(), dist.get_world_size()
    programs = given or program.add_communication(getattr(gpipe, name)(stages, count))
    if links == "BlockingLinks":
        made = pipeline.BlockingLinks(dist.group.WORLD)
    else:
        from mytrainer.p2p import Links

        made = Links({kind: dist.new_group(list(range(stages))) for kind in "FB"})
    with torch.device("cuda"):
        part = pipeline_parts.Part(rank, stages, layers, width, 1.0).bfloat16()
        one = pipeline_parts.MicroBatch(*(torch.zeros(tokens // count, width, dtype=torch.bfloat16) for _ in range(2)))
        run = pipeline.Pipeline([part], made, lambda one: torch.empty_like(one.x))
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        run.run(programs[rank], [one] * count, [1 / count] * count)
        marks[1].record()
        torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1])


def stage_peaks(name, count):
    """Return the peak memory of each of four stages on virtual H100s, in GiB."""
    return [rank.peak / 2**30 for rank in virtualgpu.run(lambda: gpu_pipeline(name, count), "h100:1", nodes=4)]


peaks = {count: stage_peaks("gpipe", count) for count in (4, 16)}
for count, values in peaks.items():
    print(f"{count:2} micro-batches:", ", ".join(f"{one:.2f}" for one in values), "GiB at the peak of the four stages (modeled)")
check.compare("change of stage 1's peak (modeled)", guess_memory, peaks[16][1] / peaks[4][1])

# %% [markdown]
# Every stage holds the activations of **all** $m$ micro-batches at once, that is, of the whole mini-batch. Splitting
# the mini-batch four times as finely, to shrink the bubble, saves only 14% of stage 1's peak (modeled). Only the
# tensors of a single pass shrink: on top of everything in flight, a backward pass needs gradients of hidden states, and
# these are smaller for a smaller micro-batch. Stage 0 needs less memory, because it receives no hidden states and
# computes no gradient of its input. The last stage needs more, because it also computes the loss.
#
# GPipe therefore came with **activation checkpointing**: a stage saves only its *input* for each micro-batch, and
# recomputes the rest just before the backward pass. That adds a third to the computation if a backward pass takes twice
# as long as a forward pass, and it does not reduce the number of micro-batches in flight. But with recomputation, a
# finer split does save memory: the stage stores the inputs of all micro-batches, but all other activations of only one
# micro-batch at a time. Lab 11 finds a schedule with fewer micro-batches in flight.
#
# **This is the end of the first sitting.**

# %% [markdown]
# ## Who waits for whom?
#
# Here is another schedule for two stages and three micro-batches. Every action comes after the actions it depends on,
# and a simulation runs it without a problem:

# %% tags=["explore"]
OTHER = [["F0", "F1", "B0", "F2", "B1", "B2"],
         ["F0", "B0", "F1", "B1", "F2", "B2"]]
plots.pipeline(simulate(parse_schedule(OTHER), CLOCK), "Another schedule")

# %% [markdown]
# Your executor runs it next, with the same simple programs. `record_ranks` calls your code on real ranks. Unlike a real
# cluster, it knows which rank waits for what, so it can report a deadlock without waiting for a timeout:

# %% tags=["explore"]
def run_schedule(schedule):
    """Run a schedule with simple programs and blocking sends."""
    simple_program.install()
    from mytrainer import pipeline

    rank, count = dist.get_rank(), len(schedule[0]) // 2
    made = pipeline.Pipeline([pipeline_parts.Part(rank, len(schedule), 1, 3, rank)], pipeline.BlockingLinks(dist.group.WORLD),
                             lambda one: torch.empty_like(one.x))
    return made.run(simple_program.add_communication(schedule)[rank], pipeline_parts.micro_batches([1] * count, 3), [1 / count] * count)


for stage, items in enumerate(simple_program.add_communication(OTHER)):
    print(f"stage {stage}:", ", ".join(items))
try:
    record_ranks(run_schedule, 2, OTHER)
    print("It ran: is run() written?")
except RanksDeadlock as deadlock:
    print(bad("deadlock: ") + str(deadlock))

# %% [markdown]
# Follow the two programs by hand. At which item is each stage stuck, and what would the other have to do? Neither the
# schedule nor the stages are at fault: both ranks want to *send*, and each waits for the other to receive.
#
# Does a send wait at all? That depends on the library and on the size of the tensor. In a **rendezvous** send, the
# sender waits until the receiver has posted a buffer, and then the data goes straight into that buffer. This is how
# `dist.send` behaves with gloo, and how NCCL's kernels behave once their small internal buffers are full. In an
# **eager** send, the library copies the data into a buffer of its own and returns. MPI libraries do this for messages
# up to a certain size, the **eager limit**. So a program like yours may run for weeks and then hang on the day somebody
# doubles the hidden size. A correct program never relies on an eager send. NCCL's maintainers [say
# so](https://github.com/NVIDIA/nccl/issues/783) of `ncclSend`, too.
#
# You will write two ways out, because they fail in different ways: an order of sends and receives that works even if
# every send blocks, and sends that do not block.

# %% [markdown]
# ### Exercise 7: an order that cannot deadlock
#
# Write `add_communication` in `program.py`. The first three functions are given. Your programs must not deadlock even
# if every send waits for its receive and every receive for its send. This must hold *for every schedule that can run at
# all*: with any number of chunks (more than one only if there are two or more stages, since a stage does not send to
# itself), and with `W` actions, which need the `B` of the same micro-batch and chunk and involve no communication.
#
# - The actions of a stage keep their order. Each transfer occurs exactly once in the sender's program and once in the
#   receiver's. A receive may come earlier than it has to: that is correct, and the next section shows what it costs.
# - If no order of communication can make a schedule run, raise a `ValueError`. Nobody wants to find out on 1,000 GPUs.
#   An action needs its input, except for `F` on the first part of the model and `B` on the last part, which receive
#   none; and on the same stage, `B` also needs its `F`.
#
# A schedule contains every action of a step exactly once. Think of all transfers of a step, on all ranks. In which
# order should each rank take part in the transfers that involve it?

# %% answer="program"
%%writefile mytrainer/program.py
"""From a schedule to programs: the actions of each stage, and its sends and receives."""


def parse(action):
    """Return the kind, micro-batch, and chunk of an action: ("F", 3, 0) for F3, and ("B", 3, 1) for B3.1."""
    number, _, chunk = action[1:].partition(".")
    return action[0], int(number), int(chunk or 0)


def spell(kind, number, chunk):
    """Return an action, given what `parse` returns."""
    return f"{kind}{number}.{chunk}" if chunk else f"{kind}{number}"


def consumer(stage, action, stages, chunks=1):
    """Return the stage and the action that take the result of an action, or None.

    Chunk c of stage s is number c * stages + s of the model's parts.
    """
    kind, number, chunk = parse(action)
    part = chunk * stages + stage + {"F": 1, "B": -1}.get(kind, stages * chunks)
    if not 0 <= part < stages * chunks:
        return None
    return part % stages, spell(kind, number, part // stages)


def add_communication(schedule):
    """Return the program of each stage: its actions in their order, and its sends and receives.

    "send F0 to 1" sends the result of F0, and "recv F0 from 0" receives the input of F0. A send may block until its
    receive has begun.

    Raises ValueError if the actions themselves are in an order that cannot run.
    """
    ### BEGIN SOLUTION
    stages = len(schedule)
    chunks = 1 + max((parse(action)[2] for actions in schedule for action in actions), default=0)
    programs, positions, received, done = [[] for _ in schedule], [0] * stages, set(), set()

    def is_ready(stage, action):
        kind, number, chunk = parse(action)
        if kind == "W":
            return (stage, spell("B", number, chunk)) in done
        if kind == "B" and (stage, spell("F", number, chunk)) not in done:
            return False
        needs_nothing = (stage, chunk) == ((0, 0) if kind == "F" else (stages - 1, chunks - 1))
        return needs_nothing or (stage, action) in received

    while any(position < len(actions) for position, actions in zip(positions, schedule, strict=True)):
        ready = [stage for stage in range(stages) if positions[stage] < len(schedule[stage])
                 and is_ready(stage, schedule[stage][positions[stage]])]
        if not ready:
            waiting = [f"stage {stage} waits for the input of {actions[position]}" for stage, (position, actions) in
                       enumerate(zip(positions, schedule, strict=True)) if position < len(actions)]
            raise ValueError("this schedule deadlocks: " + ", ".join(waiting))
        for stage in ready:
            action = schedule[stage][positions[stage]]
            positions[stage] += 1
            done.add((stage, action))
            programs[stage].append(action)
            target = consumer(stage, action, stages, chunks)
            if target is not None:  # at once, and at both ends: all transfers are in one order
                programs[stage].append(f"send {action} to {target[0]}")
                programs[target[0]].append(f"recv {target[1]} from {stage}")
                received.add(target)
    return programs
    ### END SOLUTION

# %% tags=["driver"]
def written_programs(schedule):
    """Return what program.py makes of a schedule."""
    import runpy

    import mytrainer.program as file

    now = runpy.run_path(f"{file.__name__.replace('.', '/')}.py")  # the file as it is now
    return [list(one) for one in now["add_communication"](schedule)]


def programs_or_error(schedule):
    """Return what program.py makes of a schedule, or the message of its ValueError."""
    try:
        return written_programs(schedule)
    except ValueError as error:
        return str(error)


def scheduled(schedule, sizes, layers, seed, width=3):
    """Run a schedule with the programs of program.py and blocking links; return what `pipelined` returns.

    Args:
        schedule, sizes, layers, seed, width: as for `pipelined`.
    """
    from mytrainer.pipeline import BlockingLinks, Pipeline
    from mytrainer.program import add_communication

    from lablib import pipeline_parts

    return pipeline_parts.step(Pipeline, BlockingLinks(dist.group.WORLD), add_communication(schedule), sizes, layers, seed, width)

# %% tags=["check-setup"]
def split_action(action):
    """Return the kind, micro-batch, and chunk of an action."""
    number, _, chunk = action[1:].partition(".")
    return action[0], int(number), int(chunk or 0)


def action_of(kind, number, chunk):
    """Return an action."""
    return f"{kind}{number}.{chunk}" if chunk else f"{kind}{number}"


def target_of(stage, action, stages, chunks):
    """Return the stage and the action that take an action's result, or None."""
    kind, number, chunk = split_action(action)
    part = chunk * stages + stage + {"F": 1, "B": -1, "W": stages * chunks}[kind]
    return (part % stages, action_of(kind, number, part // stages)) if 0 <= part < stages * chunks else None


def is_possible(stage, action, done, stages, chunks):
    """Return whether an action's own stage and the stage that supplies its input have done what it needs."""
    kind, number, chunk = split_action(action)
    if kind != "F" and (stage, action_of("F" if kind == "B" else "B", number, chunk)) not in done:
        return False
    part = chunk * stages + stage + {"F": -1, "B": 1, "W": stages * chunks}[kind]
    return not 0 <= part < stages * chunks or (part % stages, action_of(kind, number, part // stages)) in done


def drawn_schedule(dice, stages, micro_batches, chunks, split):
    """Return a random schedule that can run.

    Args:
        dice: random numbers.
        stages, micro_batches, chunks: sizes.
        split: whether there are actions W.
    """
    left = {stage: [action_of(kind, number, chunk) for kind in ("FBW" if split else "FB") for number in range(micro_batches)
                    for chunk in range(chunks)] for stage in range(stages)}
    schedule, done = [[] for _ in range(stages)], set()
    while any(left.values()):
        stage, action = dice.choice([(stage, action) for stage, actions in left.items() for action in actions
                                     if is_possible(stage, action, done, stages, chunks)])
        left[stage].remove(action)
        schedule[stage].append(action)
        done.add((stage, action))
    return schedule


def chunks_of(schedule):
    """Return the number of chunks on each stage."""
    return 1 + max(split_action(action)[2] for actions in schedule for action in actions)


def transfers_of(schedule):
    """Return the sends and receives of each stage, sorted."""
    stages, chunks = len(schedule), chunks_of(schedule)
    found = [[] for _ in schedule]
    for stage, actions in enumerate(schedule):
        for action in actions:
            target = target_of(stage, action, stages, chunks)
            if target:
                found[stage].append(f"send {action} to {target[0]}")
                found[target[0]].append(f"recv {target[1]} from {stage}")
    return [sorted(one) for one in found]


def executed(schedule, programs):
    """Execute programs in which a send and its receive wait for each other.

    Return None if they end, or a pair of a word for what went wrong and an explanation.
    """
    stages, chunks = len(schedule), chunks_of(schedule)
    positions, done, received = [0] * stages, set(), set()

    def current(stage):
        return programs[stage][positions[stage]] if positions[stage] < len(programs[stage]) else "end"

    while any(current(stage) != "end" for stage in range(stages)):
        moved = False
        for stage in range(stages):
            verb, *rest = current(stage).split()
            if verb == "send":
                if (stage, rest[0]) not in done:
                    return "early", f"stage {stage} has not run {rest[0]} when it sends its result"
                peer, consumed = target_of(stage, rest[0], stages, chunks)
                other = current(peer)
                if other == f"recv {consumed} from {stage}":
                    positions[stage] += 1
                    positions[peer] += 1
                    received.add((peer, consumed))
                    moved = True
                elif other.startswith("recv") and other.endswith(f" from {stage}"):
                    return "crossed", f"stage {stage} is at '{current(stage)}', and stage {peer} at '{other}'"
            elif verb not in ("recv", "end"):
                kind, number, chunk = split_action(verb)
                at_end = (stage, chunk) == ((0, 0) if kind == "F" else (stages - 1, chunks - 1))
                if kind != "W" and not at_end and (stage, verb) not in received:
                    return "early", f"stage {stage} runs {verb} before it has received its input"
                done.add((stage, verb))
                positions[stage] += 1
                moved = True
        if not moved:
            return "deadlock", "; ".join(f"stage {stage} is at '{current(stage)}'" for stage in range(stages))
    return None


# Schedules that can run: the one above, four stages with two micro-batches, and two chunks with separate passes for the weights.
RUNNABLE = [[["F0", "F1", "B0", "F2", "B1", "B2"], ["F0", "B0", "F1", "B1", "F2", "B2"]],
            [["F0", "F1", "F2", "B0", "B1", "B2"], ["F0", "F1", "B0", "F2", "B1", "B2"], ["F0", "F1", "B0", "B1", "F2", "B2"],
             ["F0", "B0", "F1", "B1", "F2", "B2"]],
            [["F0", "F1", "F0.1", "F1.1", "B0.1", "W0.1", "B1.1", "B0", "B1", "W1.1", "W0", "W1"],
             ["F0", "F1", "F0.1", "B0.1", "F1.1", "B1.1", "B0", "W0.1", "B1", "W0", "W1", "W1.1"]]]

# %% check="program" points=8
def require_programs(schedule, programs):
    """Require programs that run without a deadlock."""
    check.that(not isinstance(programs, str), f"The schedule {schedule} can run, and add_communication raises a ValueError: {programs}. "
               "Which stage and which chunk take each result?")
    actions = [[item for item in program if " " not in str(item)] for program in programs]
    check.that(actions == schedule, f"For the schedule {schedule}, the actions in your programs are {actions}. A program for each stage "
               "contains all of its actions, in their order.")
    for stage, (program, transfers) in enumerate(zip(programs, transfers_of(schedule), strict=True)):
        mine = sorted(item for item in program if " " in item)
        check.that(mine == transfers, f"For the schedule {schedule}, stage {stage} has the transfers {mine}. Each result is sent once to "
                   "the stage that takes it, and received once, under the name of the action that takes it.")
    kind, text = executed(schedule, programs) or ("", "")
    check.that(kind != "early", f"For the schedule {schedule}, {text}. A transfer comes after the action that produces the tensor "
               "and before the one that takes it.")
    check.that(kind != "crossed", f"For the schedule {schedule}, {text}: two transfers between the same ranks are in different orders at "
               "their two ends.")
    check.that(kind != "deadlock", f"For the schedule {schedule}, the programs deadlock: {text}. In which order do all ranks agree to "
               "make their transfers?")


with check.parts():
    with check.part(4, "never deadlocks"):
        for schedule in RUNNABLE:
            require_programs(schedule, check.call(programs_or_error, schedule))
        ### BEGIN HIDDEN TESTS
        for stages, micro_batches, chunks, split in ((2, 6, 1, False), (4, 4, 1, True), (3, 3, 2, False), (2, 4, 3, True)):
            for case in check.draw(3, schedule=lambda dice: drawn_schedule(dice, stages, micro_batches, chunks, split)):
                require_programs(case["schedule"], check.call(programs_or_error, case["schedule"]))
        ### END HIDDEN TESTS
    with check.part(2, "refuses schedules that cannot run"):
        for schedule in ([["F0", "B0", "F1", "B1"], ["F1", "B1", "F0", "B0"]], [["F0", "B0"], ["B0", "F0"]], [["F0", "W0", "B0"]],
                         [["F0", "F0.1", "B0", "B0.1"], ["F0", "F0.1", "B0.1", "B0"]]):
            check.raises(written_programs, ValueError, {"schedule": schedule})
        ### BEGIN HIDDEN TESTS
        for case in check.draw(6, schedule=lambda dice: drawn_schedule(dice, 3, 3, 1, False), stage=range(3), at=range(1, 6)):
            actions = case["schedule"][case["stage"]]
            late = next(place for place, action in enumerate(actions) if action[0] == "B")
            actions.insert(0, actions.pop(late))
            check.raises(written_programs, ValueError, {"schedule": case["schedule"]})
        ### END HIDDEN TESTS
    with check.part(2, "runs on your executor"):
        CASE = {"schedule": RUNNABLE[1], "sizes": [1, 2, 1], "layers": check.by_rank([[1], [2], [1], [1]]),
                "seed": check.by_rank([5.0, 6.0, 7.0, 8.0])}
        (run,) = check.ranks(scheduled, ranks=4, cases=[CASE], rel=1e-4, expected=[[[None, [0.2306288]], [None, [0.05943555, -0.1837189]], [None, [-0.2188141]], [0.4686705, [-0.4459859]]]])
        require_transfers(run, RUNNABLE[1], [1, 2, 1])
        ### BEGIN HIDDEN TESTS
        for stages, chunks in ((2, 2), (4, 1)):
            (case,) = check.draw(1, schedule=lambda dice: drawn_schedule(dice, stages, 3, chunks, False),
                                 sizes=lambda dice: [dice.randint(1, 4) for _ in range(3)], seed=check.for_each_rank(check.between(0, 99)))
            case |= {"layers": check.by_rank([[1 + rank % 2] * chunks for rank in range(stages)])}
            (run,) = check.ranks(scheduled, ranks=stages, rel=1e-3, cases=[case], expected=lambda ranks, schedule, sizes, layers, seed: (
                pipeline_of_one_process(ranks, sizes, layers, seed)))
            require_transfers(run, case["schedule"], case["sizes"])
        ### END HIDDEN TESTS

# %% [raw] mutant="program" hint="the programs deadlock"
# -                programs[stage].append(f"send {action} to {target[0]}")
# -                programs[target[0]].append(f"recv {target[1]} from {stage}")
# -                received.add(target)
# -    return programs
# +                programs[stage].append(f"send {action} to {target[0]}")
# +                received.add(target)
# +    for stage, program in enumerate(programs):
# +        sources = {consumer(s, a, stages, chunks): s for s, actions in enumerate(schedule) for a in actions}
# +        for place in reversed(range(len(program))):
# +            if (stage, program[place]) in sources:
# +                program.insert(place, f"recv {program[place]} from {sources[stage, program[place]]}")
# +    return programs

# %% [raw] mutant="program" hint="which chunk take each result"
# -            target = consumer(stage, action, stages, chunks)
# +            target = consumer(stage, action, stages)

# %% [raw] mutant="program" hint="contains all of its actions"
# -    return programs
# +    return [[item for item in one if not item.startswith("W")] for one in programs]

# %% [raw] mutant="program" hint="under the name of the action"
# -                programs[target[0]].append(f"recv {target[1]} from {stage}")
# +                programs[target[0]].append(f"recv {action} from {stage}")

# %% [raw] mutant="program" hint="under the name of the action"
# -                programs[stage].append(f"send {action} to {target[0]}")
# -                programs[target[0]].append(f"recv {target[1]} from {stage}")
# -                received.add(target)
# +                if action[0] == "F":
# +                    programs[stage].append(f"send {action} to {target[0]}")
# +                    programs[target[0]].append(f"recv {target[1]} from {stage}")
# +                received.add(target)

# %% [raw] mutant="program" hint="A transfer comes after the action"
# -            programs[stage].append(action)
# -            target = consumer(stage, action, stages, chunks)
# +            target = consumer(stage, action, stages, chunks)
# -                received.add(target)
# -    return programs
# +                received.add(target)
# +            programs[stage].append(action)
# +    return programs

# %% [raw] mutant="program" hint="in different orders at"
# -    return programs
# +    return [[*program] if stage else swapped(program) for stage, program in enumerate(programs)]
# +
# +
# +def swapped(program):
# +    places = [place for place, item in enumerate(program) if item.startswith("recv")]
# +    program = list(program)
# +    program[places[0]], program[places[1]] = program[places[1]], program[places[0]]
# +    return program

# %% [raw] mutant="program" hint="this is not valid input"
# -            raise ValueError("this schedule deadlocks: " + ", ".join(waiting))
# +            return programs

# %% [raw] mutant="program" hint="this is not valid input"
# -        if kind == "B" and (stage, spell("F", number, chunk)) not in done:
# -            return False

# %% [markdown]
# ## What blocking sends cost
#
# Your programs never deadlock now. Are they fast? On four stages, the simulated bubble of GPipe with 8 micro-batches is
# $3/11 = 27\%$. Here it is with your executor and blocking links, on four virtual H100s, each on a node of its own,
# beside another schedule with the same simulated bubble:

# %% tags=["explore"]
DEPTH = 12  # matrices per stage


def simulated_and_modeled(links, schedules):
    """Print the simulated and the modeled bubble of schedules on four virtual H100s."""
    seconds = {}
    for name, schedule in schedules.items():
        count, programs = len(schedule[0]) // 2, executor.add_communication(schedule)
        work = run_alone(count)
        (last, *_) = sorted((rank.value for rank in virtualgpu.run(
            lambda programs=programs, count=count: gpu_pipeline(None, count, layers=DEPTH, given=programs, links=links), "h100:1", nodes=4)), reverse=True)
        simulated = float(simulate(parse_schedule(schedule), CLOCK).bubble_fraction)
        seconds[name] = last
        print(f"{name:16} {last:6.1f} ms, bubble {result(f'{1 - work / last:.1%}')} (modeled), {simulated:.1%} simulated")
    return seconds


def run_alone(count):
    """Return the milliseconds that a stage computes in a step: what it takes on a GPU by itself, without a bubble."""
    return virtualgpu.run(lambda: gpu_pipeline(None, count, layers=DEPTH, given=[[f"{kind}{one}" for kind in "FB" for one in range(count)]]), "h100")[0].value


FOUR = {"GPipe": [[f"F{k}" for k in range(8)] + [f"B{k}" for k in range(8)]] * 4,
        "another schedule": [text.split() for text in (
            "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7", "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
            "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7")]}
blocking = simulated_and_modeled("BlockingLinks", FOUR)

# %% [markdown]
# While a GPU sends, it does not compute, and neither does a GPU that waits for its receiver. At each boundary, the two
# stages wait for each other once per transfer. In the other schedule, these waits add up to more time, because its
# stages alternate between the two directions. The simulated bubble includes none of this, because transfers take no
# time in the simulation.
#
# With blocking links, the position of a receive in the program matters, too. The cell above therefore takes its
# programs from the course's `add_communication`, which lets every stage run one action per round, so that no stage
# receives long before it has to. A program that first receives all of a stage's hidden states, and only then runs `F0`,
# is also correct, but slow. With links that do not block, both programs take the same time, but the first one holds the
# buffers of all its early receives (lab 11 counts them).
#
# ## Sends that do not block
#
# `dist.isend` and `dist.irecv` *start* a transfer and return a work object. On a GPU, the transfer runs on a stream of
# its own. The work object's `wait()` makes the current stream wait for the transfer, while the host moves on. This
# leaves you with two new responsibilities.
#
# The first is **memory**. Until a send is complete, the tensor must not be freed or overwritten. So your code has to
# hold on to the tensor, but no longer than necessary, because every tensor that it keeps too long takes up activation
# memory.
#
# The second is **order**. With gloo, a tag tells two sends between the same ranks apart. NCCL ignores tags: within a
# communicator, the $n$-th send from A to B is matched with the $n$-th receive on B from A. With blocking sends, your
# programs from exercise 7 put all transfers between two ranks into one order. That is not enough once receives start
# early: NCCL also *runs* the operations of a communicator one after another, in both directions, so a receive that
# still waits for its gradient would hold up the hidden states that are sent after it. And with two stages of several
# chunks, both kinds even travel from A to B. So each kind gets a process group of its own, with its own communicators
# and streams (PyTorch creates them [for each pair of ranks](https://github.com/pytorch/pytorch/issues/132852)). Within
# one kind, transfers keep the order of the program. NCCL also
# [expects](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html) all ranks to issue
# operations on several communicators in the same order, and your programs from exercise 7 do.
#
# A third way out of the deadlock is `dist.batch_isend_irecv`, which hands NCCL a group of sends and receives that start
# together. PyTorch's own pipeline uses it, and so does Megatron-LM, unless its transfers overlap with computation.

# %% [markdown]
# ### Exercise 8: asynchronous links
#
# Write `Links` in `p2p.py`. It replaces `BlockingLinks` in your executor, and nothing else changes.
#
# - `groups[kind]` is the process group for this kind of tensor; a stage's number is its rank in the group.
# - The caller drops the tensor at once, so keep it until it has been sent. (PyTorch's work object holds a reference to
#   its tensor, too, but does not protect it from being overwritten.) Drop it at the first call of `send` after the
#   transfer has completed, and do not block to find out whether it has.

# %% answer="p2p"
%%writefile mytrainer/p2p.py
"""Asynchronous sends and receives between the stages of a pipeline."""

import torch.distributed as dist


class Links:
    """Sends and receives that start at once, so that a stage can go on computing.

    Attributes:
        groups: {"F": the process group of hidden states, "B": that of their gradients}, of the same ranks.
    """

    def __init__(self, groups):
        ### BEGIN SOLUTION
        self.groups, self.sent = groups, []
        ### END SOLUTION

    def send(self, tensor, stage, kind):
        """Start to send to a stage; the tensor stays in memory until it is sent, and not past the next send after that."""
        ### BEGIN SOLUTION
        self.sent = [one for one in self.sent if not one[0].is_completed()]
        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor))
        ### END SOLUTION

    def receive(self, tensor, stage, kind):
        """Start to receive from a stage, and return an object whose `wait()` waits for the tensor."""
        ### BEGIN SOLUTION
        return dist.irecv(tensor, group_src=stage, group=self.groups[kind])
        ### END SOLUTION

    def finish(self):
        """Wait for all sends."""
        ### BEGIN SOLUTION
        for work, _ in self.sent:
            work.wait()
        self.sent = []
        ### END SOLUTION

# %% tags=["driver"]
def exchanged(values):
    """Exchange values with the other of two ranks: start a send, compute, start a receive, compute, wait.

    Return what arrived.
    """
    from mytrainer.p2p import Links

    links, other = Links({kind: dist.new_group([0, 1]) for kind in "FB"}), 1 - dist.get_rank()
    one, got = torch.ones(8, 8), torch.zeros(len(values))
    links.send(torch.tensor(values), other, "F")
    one = one @ one
    work = links.receive(got, other, "F")
    one = one @ one
    work.wait()
    links.finish()
    return got.tolist()


def two_kinds(hidden, gradient):
    """Send hidden states, then a gradient, from stage 0, which is rank 2, to stage 1, which takes the gradient first.

    Return what stage 1 has received, or "another rank" if the links ask for a rank outside of their groups.
    """
    from mytrainer.p2p import Links

    links, rank = Links({"F": dist.new_group([2, 3]), "B": dist.new_group([2, 3, 4])}), dist.get_rank()
    found = [torch.zeros(2), torch.zeros(2)]
    try:
        if rank == 2:
            links.send(torch.tensor(hidden), 1, "F")
            links.send(torch.tensor(gradient), 1, "B")
        elif rank == 3:
            links.receive(found[1], 0, "B").wait()
            links.receive(found[0], 0, "F").wait()
    except ValueError:
        return "another rank"
    links.finish()
    return [one.tolist() for one in found]


def kept_tensors(count):
    """Send two tensors from rank 0 to rank 1, which receives late.

    Return for rank 0 whether each tensor still exists before it is received, and after the next send.
    """
    import weakref

    from mytrainer.p2p import Links

    links, rank = Links({kind: dist.new_group([0, 1]) for kind in "FB"}), dist.get_rank()
    alive = []
    if rank == 0:
        references = []
        for _ in range(2):
            tensor = torch.ones(count)
            references.append(weakref.ref(tensor))
            links.send(tensor, 1, "F")
            del tensor
        alive.append([one() is not None for one in references])
        for _ in range(2):
            dist.barrier()
        links.send(torch.ones(1), 1, "F")
        alive.append([one() is not None for one in references])
        links.finish()
    else:
        dist.barrier()
        for _ in range(2):
            links.receive(torch.empty(count), 0, "F").wait()
        dist.barrier()
        slow = torch.eye(600)
        for _ in range(40):  # takes a while
            slow = slow @ slow
        links.receive(torch.empty(1), 0, "F").wait()
        links.finish()
    dist.barrier()
    return alive


def scheduled_at_once(schedule, sizes, layers, seed, width=3):
    """Run a schedule with the programs of program.py and asynchronous links; return what `pipelined` returns.

    Args:
        schedule, sizes, layers, seed, width: as for `pipelined`.
    """
    from mytrainer.p2p import Links
    from mytrainer.pipeline import Pipeline
    from mytrainer.program import add_communication

    from lablib import pipeline_parts

    links = Links({kind: dist.new_group(list(range(dist.get_world_size()))) for kind in "FB"})
    return pipeline_parts.step(Pipeline, links, add_communication(schedule), sizes, layers, seed, width)


def pipeline_on_gpus(schedule, tokens, width, layers):
    """Run a schedule on GPUs with asynchronous links, with micro-batches of equal size."""
    from mytrainer.p2p import Links
    from mytrainer.pipeline import Pipeline
    from mytrainer.program import add_communication

    from lablib import pipeline_parts

    rank, ranks, count = dist.get_rank(), dist.get_world_size(), len(schedule[0]) // 2
    links = Links({kind: dist.new_group(list(range(ranks))) for kind in "FB"})
    with torch.device("cuda"):
        part = pipeline_parts.Part(rank, ranks, layers, width, 1.0).bfloat16()
        one = pipeline_parts.MicroBatch(*(torch.zeros(tokens, width, dtype=torch.bfloat16) for _ in range(2)))
        pipeline = Pipeline([part], links, lambda one: torch.empty_like(one.x))
        pipeline.run(add_communication(schedule)[rank], [one] * count, [1 / count] * count)

# %% check="p2p" points=7
with check.parts():
    with check.part(2, "starts transfers, and goes on"):
        for run in check.ranks(exchanged, ranks=2, cases=[{"values": check.by_rank([[1.0, 2.0], [3.0, 4.0]])}],
                               expected=[[[3.0, 4.0], [1.0, 2.0]]], hints={
                "Two ranks that send to each other first wait forever. A send has to return before its tensor has arrived.": "deadlock"}):
            for rank in range(2):
                (received,) = run.calls(rank, "recv")
                check.that(received.finished is not None and received.finished > received.started, "receive waits for its tensor before "
                           "it returns. Who waits, and when?")
        ### BEGIN HIDDEN TESTS
        check.ranks(exchanged, ranks=2, cases=check.draw(2, values=check.for_each_rank(check.between(0, 9), shape=[5])),
                    expected=lambda ranks, values: values[::-1], rel=1e-5)
        ### END HIDDEN TESTS
    with check.part(1, "keeps hidden states and gradients apart"):
        for run in check.ranks(two_kinds, ranks=5, cases=[{"hidden": [1.0, 2.0], "gradient": [3.0, 4.0]}], expected=None, hints={
                "The receiver takes the second tensor first, and never gets it: a send waited for an earlier one.": "deadlock"}):
            check.that("another rank" not in run.values[2:4], "Here, stages 0 and 1 are global ranks 2 and 3, but your links address "
                       "others. A stage's number is its rank in the group.")
            check.that(run.values[3] == [[1.0, 2.0], [3.0, 4.0]], "A gradient that overtakes hidden states is confused with them.")
            groups = [call.group for call in run.calls(2, "send")]
            check.that(groups == [(2, 3), (2, 3, 4)], "Hidden states are sent in groups['F'], and gradients in groups['B']. NCCL keeps one "
                       "order per process group, whatever the tags.")
    with check.part(2, "keeps a tensor until it is sent, and no longer"):
        for run in check.ranks(kept_tensors, ranks=2, cases=[{"count": 1000}], expected=None):
            before, after = run.values[0]
            check.that(all(before), "The caller has let go of a tensor that is still being sent, and so have the links: its memory may be "
                       "overwritten. Several sends may be on their way at once.")
            check.that(not any(after), "A tensor that was sent long ago is still in memory after the next send.")
            last, end = run.calls(1, "recv")[-1], run.calls(0, "barrier")[-1]
            check.that(end.order > last.order, "finish returns before the last tensor has been received.")
    with check.part(2, "overlaps with computation"):
        BUSY = {"schedule": [[f"F{k}" for k in range(8)] + [f"B{k}" for k in range(8)]] * 4, "tokens": 8192, "width": 4096, "layers": 2}
        cost = check.gpus(pipeline_on_gpus, BUSY, "h100:1", nodes=4, least={"flops": 8 * 4 * 2 * 8192 * 4096**2, "dtype": "bf16",
                          "communicated": 8 * 2 * 8192 * 4096, "among": 4})
        check.pass_mark(cost.milliseconds, "Eight micro-batches take longer than they need to: the stages wait for each other although "
                        "they have work. What do they wait for?", error=cost.error, below=61)
        for schedule in RUNNABLE[:2]:
            ranks = len(schedule)
            case = {"schedule": schedule, "sizes": [1, 2, 1], "layers": check.by_rank([[1], [2], [1], [1]][:ranks]),
                    "seed": check.by_rank([5.0, 6.0, 7.0, 8.0][:ranks])}
            (run,) = check.ranks(scheduled_at_once, ranks=ranks, cases=[case], rel=1e-4, expected=None)
            require_transfers(run, schedule, [1, 2, 1])
        ### BEGIN HIDDEN TESTS
        for stages, chunks in ((2, 2), (4, 1)):
            (case,) = check.draw(1, schedule=lambda dice: drawn_schedule(dice, stages, 3, chunks, False),
                                 sizes=lambda dice: [dice.randint(1, 4) for _ in range(3)], seed=check.for_each_rank(check.between(0, 99)))
            case |= {"layers": check.by_rank([[1 + rank % 2] * chunks for rank in range(stages)])}
            check.ranks(scheduled_at_once, ranks=stages, rel=1e-3, cases=[case], expected=lambda ranks, schedule, sizes, layers, seed: (
                pipeline_of_one_process(ranks, sizes, layers, seed)))
        ### END HIDDEN TESTS

# %% [raw] mutant="p2p" hint="wait forever"
# -        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor))
# +        dist.send(tensor, group_dst=stage, group=self.groups[kind])

# %% [raw] mutant="p2p" hint="What do they wait for"
# -        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor))
# +        work = dist.isend(tensor, group_dst=stage, group=self.groups[kind])
# +        work.wait()

# %% [raw] mutant="p2p" hint="a send waited for an earlier one"
# -        self.sent = [one for one in self.sent if not one[0].is_completed()]
# +        self.finish()

# %% [raw] mutant="p2p" hint="is confused with them"
# -        self.groups, self.sent = groups, []
# +        self.groups, self.sent = dict.fromkeys("FB", groups["F"]), []

# %% [raw] mutant="p2p" hint="is its rank in the group"
# -        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor))
# +        self.sent.append((dist.isend(tensor, dst=stage, group=self.groups[kind]), tensor))
# -        return dist.irecv(tensor, group_src=stage, group=self.groups[kind])
# +        return dist.irecv(tensor, src=stage, group=self.groups[kind])

# %% [raw] mutant="p2p" hint="receive waits for its tensor before"
# -        return dist.irecv(tensor, group_src=stage, group=self.groups[kind])
# +        work = dist.irecv(tensor, group_src=stage, group=self.groups[kind])
# +        work.wait()
# +        return work

# %% [raw] mutant="p2p" hint="whatever the tags"
# -        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor))
# +        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups["F"], tag=ord(kind)), tensor))
# -        return dist.irecv(tensor, group_src=stage, group=self.groups[kind])
# +        return dist.irecv(tensor, group_src=stage, group=self.groups["F"], tag=ord(kind))

# %% [raw] mutant="p2p" hint="still in memory after the next send"
# -        self.sent = [one for one in self.sent if not one[0].is_completed()]

# %% [raw] mutant="p2p" hint="finish returns before"
# -        for work, _ in self.sent:
# -            work.wait()

# %% [raw] mutant="p2p" hint="its memory may be"
# -        self.sent = [one for one in self.sent if not one[0].is_completed()]
# -        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor))
# +        self.sent = [(dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor)]

# %% [markdown]
# Does it help? Here are the same two schedules on the same four GPUs, with your links:

# %% tags=["explore"]
overlapped = simulated_and_modeled("Links", FOUR)
for name in FOUR:
    print(f"{name:16} {result(f'{1 - overlapped[name] / blocking[name]:.0%}')} less time than with blocking sends (modeled)")

# %% [markdown]
# What remains above the simulated bubble are transfers that nothing can hide. The first micro-batch has to cross every
# boundary before the last stage can begin, and the last gradient has to cross every boundary on its way back. And
# wherever a stage waits for the result of its neighbor's latest action, it waits for the network, too.
#
# If shapes were negotiated, each transfer would begin with a header. The receiver's host would have to *read* it before
# it could allocate the buffer, so the host would wait for the GPU each time and could not queue any work behind the
# transfer. That is why training frameworks know the shapes or negotiate them only once. PyTorch's `PipelineStage` runs
# shape inference in the first step; Megatron-LM has `--variable-seq-lengths` for those who cannot avoid exchanging
# shapes each time.

# %% [markdown]
# ## One matrix on two stages
#
# GPT-2 also uses its embedding matrix as the weight of the output layer. In a pipeline, the first stage needs this
# **tied** matrix for the embedding, and the last one for the logits. So each of them has a copy, and each copy gets
# only the gradient from its own use. In a single process, autograd would add the two up.

# %% [markdown]
# ### Exercise 9: tied ends
#
# Write `TiedEnds` in `tied.py`. Both copies stay equal if they start equal and get the same gradient.
#
# The gradient norm has to count the matrix once. Your `clip_grad_norm` of lab 09 divides the squared norm of a gradient
# by the parameter's `copies`, the number of ranks that have the same part, and sums over a group. With a pipeline, that
# is the group of all ranks that share the model: its stages, and the tensor-parallel ranks of each. What is `copies` of
# a tied matrix?
#
# Ranks in the middle are not in the group of the two ends and do not take part. So communicate within this group, in
# which the first stage is rank 0.

# %% answer="tied"
%%writefile mytrainer/tied.py
"""One matrix on both ends of a pipeline: the embedding of the first stage, and the output layer of the last."""

import torch.distributed as dist


class TiedEnds:
    """The two copies of a matrix.

    Attributes:
        weight: this end's parameter. Its `copies`, 1 if it has none, counts the ranks with the same part.
        group: the process group of both ends; number 0 is the first stage.
    """

    def __init__(self, weight, group):
        """Give both ends the values of the first stage's parameter, and set its `copies` to the number that exist now."""
        ### BEGIN SOLUTION
        self.weight, self.group = weight, group
        dist.broadcast(weight.data, group_src=0, group=group)
        weight.copies = 2 * getattr(weight, "copies", 1)
        ### END SOLUTION

    def finish(self):
        """Complete the gradient of the matrix after the backward passes of a step."""
        ### BEGIN SOLUTION
        dist.all_reduce(self.weight.grad, group=self.group)
        ### END SOLUTION

# %% tags=["driver"]
def tied_ends(values, grads, ends, copies):
    """Tie the parameters of two ranks; return the values, the gradient, and the copies of each, and None on other ranks.

    Args:
        values, grads: this rank's.
        ends: the two ranks.
        copies: of the parameter before; None: it has no such attribute.
    """
    group = dist.new_group(ends)
    if dist.get_rank() not in ends:
        return None
    from mytrainer.tied import TiedEnds

    weight = torch.nn.Parameter(torch.tensor(values))
    if copies is not None:
        weight.copies = copies
    try:
        tied = TiedEnds(weight, group)
        weight.grad = torch.tensor(grads)
        tied.finish()
    except (RuntimeError, ValueError) as error:
        if "with Gloo" in str(error):  # it has no averages
            return "a mean"
        if "not part of group" in str(error):
            return "another rank"
        raise
    return [weight.tolist(), weight.grad.tolist(), getattr(weight, "copies", 0)]

# %% check="tied" points=4
def require_tied(runs, ends, size):
    for run in runs:
        for rank in range(len(run.values)):
            sent = run.bytes(rank, "all_reduce")
            check.that(sent == (size if rank in ends else 0), "In a step, each end all-reduces the gradient of the matrix once.")


TIED = {"values": check.by_rank([[9.0, 9.0], [1.0, 2.0], [9.0, 9.0], [3.0, 5.0]]), "grads": check.by_rank([[0.0, 0.0], [0.5, 1.0], [0.0, 0.0], [2.0, 4.0]]),
        "ends": [1, 3]}
CASES = [{**TIED, "copies": None}, {**TIED, "copies": 2}]
check.ranks(tied_ends, ranks=4, cases=CASES, expected=[[None, [[1.0, 2.0], [2.5, 5.0], 2], None, [[1.0, 2.0], [2.5, 5.0], 2]],
        [None, [[1.0, 2.0], [2.5, 5.0], 4], None, [[1.0, 2.0], [2.5, 5.0], 4]]], hints={
    "Ranks wait for each other: only the two ends take part, so pass their group to every collective.": "deadlock",
    "The ends begin with different values.": [[None, [[1.0, 2.0], [2.5, 5.0], 2], None, [[3.0, 5.0], [2.5, 5.0], 2]],
        [None, [[1.0, 2.0], [2.5, 5.0], 4], None, [[3.0, 5.0], [2.5, 5.0], 4]]],
    "Each end has the gradient of its own use only.": [[None, [[1.0, 2.0], [0.5, 1.0], 2], None, [[1.0, 2.0], [2.0, 4.0], 2]],
        [None, [[1.0, 2.0], [0.5, 1.0], 4], None, [[1.0, 2.0], [2.0, 4.0], 4]]],
    "That is the mean of two gradients. What does autograd do with a matrix that is used twice?": [[None, [[1.0, 2.0], [1.25, 2.5], 2], None, [[1.0, 2.0], [1.25, 2.5], 2]],
        [None, [[1.0, 2.0], [1.25, 2.5], 4], None, [[1.0, 2.0], [1.25, 2.5], 4]]],
    "The first end may already be on several ranks, by tensor parallelism. How many have the same part now?": [[None, [[1.0, 2.0], [2.5, 5.0], 2], None, [[1.0, 2.0], [2.5, 5.0], 2]],
        [None, [[1.0, 2.0], [2.5, 5.0], 2], None, [[1.0, 2.0], [2.5, 5.0], 2]]],
    "The gradient norm will count the matrix more than once.": [[None, [[1.0, 2.0], [2.5, 5.0], 0], None, [[1.0, 2.0], [2.5, 5.0], 0]],
        [None, [[1.0, 2.0], [2.5, 5.0], 2], None, [[1.0, 2.0], [2.5, 5.0], 2]]],
    "Both ends get the values of the first one, number 0 of the group.": [[None, [[3.0, 5.0], [2.5, 5.0], 2], None, [[3.0, 5.0], [2.5, 5.0], 2]],
        [None, [[3.0, 5.0], [2.5, 5.0], 4], None, [[3.0, 5.0], [2.5, 5.0], 4]]],
    "Global rank 0 is not in the group of the two ends. Which rank of the group is the first stage?":
        [[None, "another rank", None, "another rank"], [None, "another rank", None, "another rank"]],
    "An all-reduce that averages gives the mean of two gradients (and Gloo has none). What does autograd do with a matrix that is used twice?":
        [[None, "a mean", None, "a mean"], [None, "a mean", None, "a mean"]]})
require_tied(check.ranks(tied_ends, ranks=4, cases=CASES, expected=None), [1, 3], 8)
### BEGIN HIDDEN TESTS
require_tied(check.ranks(tied_ends, ranks=3, rel=1e-5, cases=check.draw(
    2, values=check.for_each_rank(check.between(-1, 1), shape=[3, 2]), grads=check.for_each_rank(check.between(-1, 1), shape=[3, 2]),
    ends=[[0, 2]], copies=[1, 2, 3]), expected=lambda ranks, values, grads, ends, copies: [
        None if rank == 1 else [values[0], [[a + b for a, b in zip(one, other, strict=True)] for one, other in zip(grads[0], grads[2], strict=True)],
                                2 * copies] for rank in range(3)]), [0, 2], 24)
### END HIDDEN TESTS

# %% [raw] mutant="tied" hint="begin with different values"
# -        dist.broadcast(weight.data, group_src=0, group=group)

# %% [raw] mutant="tied" hint="the gradient of its own use only"
# -        dist.all_reduce(self.weight.grad, group=self.group)

# %% [raw] mutant="tied" hint="only the two ends take part"
# -        dist.all_reduce(self.weight.grad, group=self.group)
# +        dist.all_reduce(self.weight.grad)

# %% [raw] mutant="tied" hint="the mean of two gradients"
# -        dist.all_reduce(self.weight.grad, group=self.group)
# +        dist.all_reduce(self.weight.grad, group=self.group)
# +        self.weight.grad /= 2

# %% [raw] mutant="tied" hint="An all-reduce that averages"
# -        dist.all_reduce(self.weight.grad, group=self.group)
# +        dist.all_reduce(self.weight.grad, dist.ReduceOp.AVG, group=self.group)

# %% [raw] mutant="tied" hint="count the matrix more than once"
# -        weight.copies = 2 * getattr(weight, "copies", 1)

# %% [raw] mutant="tied" hint="already be on several ranks"
# -        weight.copies = 2 * getattr(weight, "copies", 1)
# +        weight.copies = 2

# %% [raw] mutant="tied" hint="number 0 of the group"
# -        dist.broadcast(weight.data, group_src=0, group=group)
# +        dist.broadcast(weight.data, group_src=1, group=group)

# %% [raw] mutant="tied" hint="is not in the group of the two ends"
# -        dist.broadcast(weight.data, group_src=0, group=group)
# +        dist.broadcast(weight.data, src=0, group=group)

# %% [raw] mutant="tied" hint="all-reduces the gradient of the matrix once"
# -        dist.all_reduce(self.weight.grad, group=self.group)
# +        both = [self.weight.grad.clone() for _ in range(2)]
# +        dist.all_gather(both, self.weight.grad, group=self.group)
# +        self.weight.grad.copy_(both[0] + both[1])

# %% [markdown]
# Each of the two ends contributes half of the squared norm of the matrix's gradient, so the sum over all ranks counts
# it once. If the copies' gradients were not added up first, the norm would be wrong even though every rank did its
# part.
#
# Untied matrices need none of this.

# %% [markdown]
# ## Unequal stages
#
# Real stages differ. The last one computes the logits, and layers rarely divide evenly. Follow the micro-batches of
# GPipe through the forward phase: the first one spends its forward time on every stage, one after the other. How much
# later does the second one leave the last stage, and what determines the gap? The backward phase works the same way, in
# the other direction.

# %% [markdown]
# ### Exercise 10: the step time
#
# How long does a step of GPipe take? Assume that on any one stage, all forward passes take the same time, and so do all
# backward passes. Communication takes none.

# %% answer="step-time"
def step_time(forward, backward, m):
    """Return the step time, in ms, with m micro-batches. forward, backward: ms of each stage."""
    ### BEGIN SOLUTION
    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
    ### END SOLUTION

# %% check="step-time" points=3
check.function(
    step_time,
    cases=[([10, 10], [20, 20], 1), ([10, 10], [20, 20], 4), ([10, 10, 16], [20, 20, 40], 5), ([10, 14], [30, 20], 2)],
    expected=[60, 150, 340, 118],
    hints={
        "That omits the pipeline's warm-up and cool-down: it is the slowest stage's time only.": [30, 120, 280, 88],
        "That runs all passes one after the other, but the stages run at the same time.": [60, 240, 580, 148],
        "Not every stage is as slow as the slowest: the first micro-batch takes each stage's own time.": [60, 150, 392, 132],
        "The forward and the backward phase each have their own slowest stage.": [60, 150, 340, 114],
        "Of m micro-batches, how many follow the first?": [90, 180, 396, 162],
        "The slowest stage sets the pace, and it need not be the last one.": [60, 150, 340, 108],
    })
### BEGIN HIDDEN TESTS
import numpy as np

drawn = check.draw(20, m=range(1, 33), stages=range(1, 9), seed=range(10**6))
cases = []
for case in drawn:
    times = np.random.default_rng(case["seed"]).integers(1, 100, size=(2, case["stages"])).tolist()
    cases.append((*times, case["m"]))
check.function(step_time, cases=cases, expected=lambda forward, backward, m: (
    sum(forward) + sum(backward) + (m - 1) * (max(forward) + max(backward))))
### END HIDDEN TESTS

# %% [raw] mutant="step-time" hint="That omits the pipeline's"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return m * (max(forward) + max(backward))

# %% [raw] mutant="step-time" hint="That runs all passes"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return m * (sum(forward) + sum(backward))

# %% [raw] mutant="step-time" hint="Not every stage is"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return (m + len(forward) - 1) * (max(forward) + max(backward))

# %% [raw] mutant="step-time" hint="The forward and the"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return sum(forward) + sum(backward) + (m - 1) * max(f + b for f, b in zip(forward, backward))

# %% [raw] mutant="step-time" hint="Of m micro-batches, how"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return sum(forward) + m * max(forward) + sum(backward) + m * max(backward)

# %% [raw] mutant="step-time" hint="need not be the last one"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return sum(forward) + (m - 1) * forward[-1] + sum(backward) + (m - 1) * backward[-1]

# %% [markdown]
# Now predict a run. The second of four stages has 6 layers, and the others have 4. A virtual H100 measures a forward
# and a backward pass of each stage, your function predicts the step time, and four virtual GPUs run the step:

# %% tags=["explore"]
LAYERS = [4, 6, 4, 4]


def passes(number, tokens=8192, width=4096):
    """Return the milliseconds of a forward pass and of a backward pass of a stage on a GPU."""
    with torch.device("cuda"):
        part = pipeline_parts.Part(number, 4, LAYERS[number], width, 1.0).bfloat16()
        one = pipeline_parts.MicroBatch(*(torch.zeros(tokens, width, dtype=torch.bfloat16) for _ in range(2)))
        for _ in range(2):  # the first backward pass allocates the gradients, the second adds to them
            x = None if number == 0 else torch.zeros(tokens, width, dtype=torch.bfloat16, requires_grad=True)
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            marks[0].record()
            y = part(x, one)
            marks[1].record()
            y.backward(torch.ones_like(y))
            marks[2].record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])


if step_time([1], [1], 1):
    forward, backward = zip(*(virtualgpu.run(lambda number=number: passes(number), "h100")[0].value for number in range(4)), strict=True)
    print("forward ", ", ".join(f"{one:.2f}" for one in forward), "ms; backward", ", ".join(f"{one:.2f}" for one in backward), "ms (modeled)")
    ranks = virtualgpu.run(lambda: gpu_pipeline("gpipe", 8, layers=LAYERS[int(os.environ["RANK"])], links="Links"), "h100:1", nodes=4)
    check.compare("ms per step (modeled)", step_time(forward, backward, 8), max(rank.value for rank in ranks))

# %% [markdown]
# One stage with 1.5 times as many layers slows down the whole pipeline, and adding micro-batches does not help: all
# other stages wait for it, $m$ times. Lab 11 balances stages. What your prediction lacks is the network.

# %% [markdown]
# ## Train with it
#
# Your trainer can now use all of this except `tied.py`, because the Llama below does not tie its two matrices.
# `code/my_trainer.sh` starts two ranks on each of two nodes. With `--pipeline-model-parallel-size 2`, a replica of your
# Llama has two stages. Your DDP from lab 04 averages the gradients of the two replicas, so the layout is PP 2 x DP 2.
# The parameters start with the values that `pretrain_gpt.py` gives them, so you can compare the losses with those of a
# single process. Your executor runs all backward passes of a step in one call, so the gradients are all-reduced after
# the last of them, and the script does not use `--overlap-grad-reduce`.
#
# If your `train.py` has no argument `clip` (lab 09), the next cell replaces it with the course's version and keeps
# yours as `train.mine.py`:

# %% tags=["explore"]
if "clip=" not in pieces.find("train").path.read_text():
    print("\n".join(worked.install(pieces.find("new/train"), force=True)))

# %% tags=["explore"] short={"--train-iters 20": "--train-iters 3"}
FLAGS = ("--device cpu --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
         "--swiglu --normalization RMSNorm --position-embedding-type rope --group-query-attention --num-query-groups 1 "
         "--untie-embeddings-and-output-weights --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 "
         "--micro-batch-size 1 --global-batch-size 8 --train-iters 20 --lr 1e-3 --min-lr 1e-5 --lr-warmup-fraction 0.2 "
         "--lr-decay-style cosine --clip-grad 1.0 --log-interval 1 --eval-iters 0 --split 949,50,1 "
         "--data-path data/bpe-4096/text_document --vocab-file data/bpe-4096/vocab.json --merge-file data/bpe-4096/merges.txt")
!sbatch --output=megatron/logs/mine_pp.txt code/my_trainer.sh {FLAGS} --pipeline-model-parallel-size 2 --schedule gpipe
!OMP_NUM_THREADS=1 python megatron/Megatron-LM/pretrain_gpt.py {FLAGS} > megatron/logs/reference_llama.txt

# %% tags=["explore"]
jobs.wait()
!grep -hE "^training|error:" megatron/logs/mine_pp.txt
reference, mine = (logs.read(f"megatron/logs/{name}.txt") for name in ("reference_llama", "mine_pp"))
assert mine.iterations, "Your job has failed. megatron/logs/mine_pp.txt says why."
norms = max(abs(yours.grad_norm / theirs.grad_norm - 1) for theirs, yours in zip(reference.iterations, mine.iterations, strict=True))
losses = logs.loss_difference(reference, mine)
print(f"losses differ by at most {result(f'{losses:.1e}')}, gradient norms by {result(f'{norms:.1e}')}, relatively")
assert losses < 1e-4, "One of your files trains differently from the reference. `lab mytrainer` tests each of them."
assert norms < 1e-2, "The losses agree, and the gradient norms do not. Look at the weight of a micro-batch in stage.py and pipeline.py."

# %% [markdown]
# A difference of `0.0e+00` means that all printed digits are equal.

# %% tags=["explore"] short={"!lab mytrainer": "!true"}
!lab mytrainer

# %% [markdown]
# ## For comparison: PyTorch
#
# [`torch.distributed.pipelining`](https://docs.pytorch.org/docs/stable/distributed.pipelining.html) is PyTorch's own
# pipeline. A `PipelineStage` wraps a module, and a schedule class drives it. It has the same parts as yours: a stage
# that keeps what is in flight, schedules as lists of actions (computed by its schedule classes), and a function that
# adds sends and receives. The next cell runs the same model with the same micro-batches in both:

# %% tags=["explore"]
def beside_pytorch(sizes):
    """Run GPipe on two ranks with PyTorch's pipeline and with yours; return the gradients of this rank's matrices."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    simple_program.install()
    from mytrainer import gpipe, pipeline

    from lablib import tensor

    rank, count, found = dist.get_rank(), len(sizes), []

    class Last(torch.nn.Module):
        def __init__(self, part):
            super().__init__()
            self.weights = part.weights

        def forward(self, x):
            for weight in self.weights:
                x = torch.nn.functional.linear(x, weight).tanh()
            return x

    part = pipeline_parts.Part(rank, 2, 2, 8, float(rank))
    stage = PipelineStage(Last(part), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, count, loss_fn=torch.nn.functional.mse_loss)
    data = pipeline_parts.micro_batches(sizes, 8)
    x, y = (torch.cat([getattr(one, name) for one in data]) for name in "xy")
    schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == 1 else {}))
    found.append(tensor.gradients(list(part.weights)))
    part.zero_grad()
    mine = pipeline.Pipeline([part], pipeline.BlockingLinks(dist.group.WORLD), lambda one: torch.empty_like(one.x))
    mine.run(simple_program.add_communication(gpipe.gpipe(2, count))[rank], data, [size / sum(sizes) for size in sizes])
    found.append(tensor.gradients(list(part.weights)))
    return found


for rank, (theirs, yours) in enumerate(run_ranks(beside_pytorch, 2, [2, 2, 2, 2])):
    print(f"rank {rank}: largest difference between the gradients {result(f'{max(abs(a - b) for a, b in zip(theirs, yours, strict=True)):.1e}')}")

# %% [markdown]
# PyTorch's schedule splits the batch with `torch.tensor_split` and averages the micro-batches' gradients with equal
# weights, which is why the cell above uses micro-batches of one size. You know when that is right.
#
# ## For comparison: torchgpipe
#
# [torchgpipe](https://torchgpipe.readthedocs.io) ([Kim et al., 2020](https://arxiv.org/abs/2004.09910)) implements
# GPipe in one process, with a thread for each device. It needs the model as an `nn.Sequential`, and the **balance**:
# the number of layers on each device. Its argument `chunks` is the number of micro-batches (not the chunks of exercise
# 6). Here are eight GPT blocks on four devices, all of which are this CPU:

# %% tags=["explore"]
import copy
import sys

sys.path.insert(0, "code/examples")
from torchgpipe import GPipe

from gpt_layers import Block, Size, build
from lablib import torchgpipe_cpu  # lets the stages run side by side on a CPU

small = Size(layers=8, hidden=128, heads=4, positions=64, vocabulary=1000)
plain = torch.nn.Sequential(*(build(Block, small, seed) for seed in range(8)))
piped = GPipe(copy.deepcopy(plain), balance=[2, 2, 2, 2], devices=["cpu"] * 4, chunks=4, checkpoint="except_last")

x = torch.randn(8, 64, 128)
for model in (plain, piped):
    model(x).square().mean().backward()
pairs = zip(plain.parameters(), piped.parameters(), strict=True)
worst = max((one.grad - other.grad).abs().max().item() for one, other in pairs)
print(f"largest difference between the gradients: {worst:.1e}")

# %% [markdown]
# You did not have to write any communication: on GPUs, the library copies from device to device. Its checkpoint modes
# are GPipe's recomputation:
#
# | `checkpoint=` | saved after the forward pass |
# |---|---|
# | `"never"` | everything, for every micro-batch |
# | `"always"` | only the input, for every micro-batch |
# | `"except_last"` | only the input, but everything for the last micro-batch, because its backward pass comes next |
#
# `code/examples/gpipe.py` is a complete program. It trains a GPT-2 as a `Sequential` of 14 layers (the embeddings, 12
# blocks, and the head) on four devices, with the balance `[4, 3, 3, 4]`. Predict first: with four micro-batches, how
# many forward passes does each stage run a second time per step, in each of the three modes?

# %% tags=["explore"] short={"--batch-size 8 --seq-length 64": "--batch-size 4 --seq-length 32"}
RUN = "python code/examples/gpipe.py --preset tiny --iterations 1 --batch-size 8 --seq-length 64"
for mode in ("never", "always", "except_last"):
    print(mode)
    !{RUN} --chunks 4 --checkpoint {mode} | grep -o -E "loss.*norm [0-9.]*|^memory.*at most"

# %% [markdown]
# The loss is the same in all three modes, but the memory for activations, which the program counts tensor by tensor, is
# not. The price is forward passes that run twice: none with `never`, all four with `always`, and three with
# `except_last`. The program also prints times, but this cell drops them: on a few shared cores, the time of a single
# iteration is noise.
#
# In that program, the tied matrix is not on two stages, because a `Sequential` cannot share it. It travels from the
# first layer to the last with every micro-batch, as a skip connection, and its gradient comes back the same way.
#
# ## Fine-tuning in a pipeline
#
# A pipeline is also how you fine-tune a model that does not fit on one GPU. The same program starts from pretrained
# weights, which it copies layer by layer into the stages. The classic exercise takes GPT-2 and SQuAD ([Rajpurkar et
# al., 2016](https://arxiv.org/abs/1606.05250)): the model reads a paragraph, a question, and the answer. Without
# internet access, `code/examples/offline.py` makes stand-ins. It briefly trains a small GPT-2 on your corpus, and it
# turns the documentation of Python's standard library into questions in SQuAD's format.

# %% tags=["explore"] short={"--steps 60": "--steps 2"}
import json
import urllib.request

HUB = "https://huggingface.co/openai-community/gpt2/resolve/main/config.json"
try:
    urllib.request.urlopen(HUB, timeout=5).close()
    WEIGHTS, QUESTIONS = "openai-community/gpt2", "rajpurkar/squad"
    print("The hub answers: the next cell downloads GPT-2 (about 550 MB) and SQuAD.")
except OSError:
    WEIGHTS, QUESTIONS = "data/offline/gpt2", "data/offline/questions.json"
    !python code/examples/offline.py data/offline --steps 60 --batch-size 8 | grep "^data"
    with open(QUESTIONS) as file:
        paragraphs = json.load(file)["data"][0]["paragraphs"]
    example, asked = next((one, one["qas"][0]) for one in paragraphs if one["qas"][0]["id"] == "shutil.disk_usage")
    print("context: ", example["context"], "\nquestion:", asked["question"], "\nanswer:  ", asked["answers"][0]["text"])

# %% [markdown]
# Now fine-tune the model on four stages. For comparison, the second run starts a small model from random weights:

# %% tags=["explore"] short={"--iterations 5": "--iterations 1"}
TUNE = "python code/examples/gpipe.py --iterations 5 --batch-size 16 --seq-length 64 --lr 1e-3"
print("pretrained weights")
!{TUNE} --dataset {QUESTIONS} --pretrained {WEIGHTS} | grep -o "iteration.*loss [0-9.]*"
print("random weights")
!{TUNE} --dataset {QUESTIONS} | grep -o "iteration.*loss [0-9.]*"

# %% [markdown]
# Random weights begin near $\ln V$, the loss of a model that finds all $V$ tokens equally likely. Pretrained weights
# begin below it, although the model has never seen a question. Padding has no label: the loss is the mean over all
# tokens with a label in the mini-batch, as in exercise 2, and not the mean of the micro-batches' means.
#
# **This is the end of the second sitting.**
#
# ## Discuss
#
# 1. **More micro-batches for nothing?** The bubble shrinks with every micro-batch that you add. Why does nobody use a
#    thousand?
# 2. **Two ways to four GPUs.** The model fits on one GPU. Would you rather use data parallelism or a pipeline? And if
#    the network is slow?
# 3. **The price of the flush.** The bubble exists because the pipeline drains at every step. What would happen if the
#    next mini-batch followed right away, without a flush?
# 4. **A batch in another order.** Your GPipe runs the backward passes in one of several possible orders. Does the order
#    change the gradient? The memory? The last bits of the loss?
# 5. **A deadlock in production.** A job hangs after the hidden size was doubled. Which measurements tell you whether
#    the cause is a send that used to be eager?

# %% [markdown]
# ## Cleanup
#
# Keep `mytrainer/`: the next labs build on it.

# %% tags=["explore"]
!scancel --quiet {four_stages.job}
!rm -rf data/offline megatron/timeline/four_stages megatron/logs/mine_pp.txt megatron/logs/reference_llama.txt
!squeue

# %% [markdown]
# ## Summary
#
# - If you split a model between layers, only hidden states and their gradients cross the boundary. A stage runs its own
#   backward pass, which starts at what it sent.
# - Micro-batches let the stages compute at the same time. Their gradients add up to the mini-batch's gradient if each
#   is weighted by its share of the tokens with a loss.
# - A schedule is a list of actions per stage. GPipe's bubble fraction is $(p - 1) / (m + p - 1)$, and every stage has
#   all $m$ micro-batches in flight.
# - A program that needs eager sends is wrong. Either all ranks take part in their transfers in one common order, or
#   sends do not block. The second fix is also faster.
# - With NCCL, only the order within a communicator tells tensors apart, so hidden states and their gradients each get
#   communicators of their own.
# - A tied matrix has a copy on each end of the pipeline. The gradients of the two copies are added up, and the norm
#   counts the matrix once.
#
# ## Read next
#
# - [Huang et al., 2019](https://arxiv.org/abs/1811.06965), *GPipe*: micro-batches, the flush, and recomputation, on
#   giant image and translation models.
# - [Kim et al., 2020](https://arxiv.org/abs/2004.09910), *torchgpipe*: how a pipeline fits into PyTorch's autograd and
#   streams.
# - [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473), *Efficient large-scale language model training on GPU
#   clusters*: section 2.2 compares the bubble of GPipe with that of later schedules.
# - [Megatron-LM's
#   `p2p_communication.py`](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/pipeline_parallel/p2p_communication.py):
#   your exercises 7 and 8, with batched sends and even and odd ranks in opposite orders.
# - [PyTorch's `schedules.py`](https://github.com/pytorch/pytorch/blob/main/torch/distributed/pipelining/schedules.py):
#   actions as data, and `_add_send_recv`, which resembles your `add_communication`.
#
# **Next:** better schedules, and how to tell which one your cluster needs: [Pipeline II](11_pipeline_2.ipynb).
