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
# Your group has 100,000 dollars and two weeks to train a language model. Can you afford 7 billion parameters, or only
# 2? Which GPUs do you rent, and how many? You cannot find out by trying. You need the answer before anything runs, and
# if it is wrong, you run out of money before the model is trained.
#
# In this lab you write the tools for such a plan, and test each one on a case whose answer you cannot look up:
#
# - a function that counts the parameters and FLOPs of any transformer block;
# - a log reader that reports how much of its hardware a run really used;
# - a decision that you can defend even though the estimates behind it are off by several percent;
# - if you like, a simulation of a run that fails and resumes, which chooses how often to save, and an auditor that finds
#   the errors in somebody else's plan.
#
# Along the way, you predict the results of a well-known paper before you see them.
#
# **How it works.** The lab takes one sitting of 60 minutes, from a token to a decision (Exercises 1 to 3), and needs no
# files from earlier labs. What follows, from *The rest of the bill* on, is optional, and takes 50 minutes more (Exercises
# 4 and 5). If you take it on another day, run the cells above it again, except for those of *Predict the paper*, which take
# some minutes. When you are asked for a prediction, commit to a number before you run the next cell. Predictions are not
# graded. Exercises 2 and 5 call your `count_transformer`, so solve Exercise 1 before them. The log that you read and the
# limits of your plan are drawn for you: your neighbor has others.
#
# **Real and modeled.** Published figures come with their sources. Times on virtual GPUs are modeled, and this lab
# shows how far off they are.

# %% tags=["setup"]
import os
import re

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace


def read_log(log):
    """Return a log's settings, and a dictionary for each of its iteration lines."""
    flags = dict(re.findall(r"--([\w-]+) (\w+)", log))
    hidden, heads = int(flags["hidden-size"]), int(flags["num-attention-heads"])
    model = {"layers": int(flags["num-layers"]), "hidden": hidden, "heads": heads, "groups": heads, "ffn": 4 * hidden,
             "gated": False, "experts": 1, "chosen": 1, "sequence": int(flags["seq-length"]), "learned": True,
             "vocabulary": int(re.search(r"padded vocabulary: (\d+)", log)[1]), "tied": True, "biases": True}
    settings = {"model": model, "gpus": int(re.search(r"world size: (\d+)", log)[1]),
                "peak": float(re.search(r"([\d.]+) TFLOP/s", log)[1]),
                "recompute": flags.get("recompute-granularity") == "full"}
    lines = [{"time": float(time), "iteration": int(iteration), "samples": int(samples), "ms": float(ms),
              "batch": int(batch), "skipped": int(skipped)}
             for time, iteration, samples, ms, batch, skipped in re.findall(
                 r"\[ *([\d.]+) s\] iteration (\d+)/.*samples: (\d+) .*\(ms\): ([\d.]+) .*batch size: (\d+) "
                 r".*skipped iterations: (\d+)", log)]
    return settings, lines

# %% tags=["check-setup"]
import random

from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("job_monitor", "lablib.blocks", "lablib.published", "layout_estimator", "minimegatron",
           "torch.utils.flop_counter")


def training_log(seed):
    """Return the log of an invented run: another model, cluster, and course of events for each seed."""
    dice = random.Random(seed)
    heads, recompute, ramp = dice.choice([16, 24, 32]), dice.random() < 0.6, dice.random() < 0.6
    card, peak = dice.choice([("A100", 312.0), ("H100", 989.4), ("V100", 125.0)])
    full, gpus, layers = dice.choice([256, 512, 768]), dice.choice([16, 32, 64, 128]), dice.randint(12, 60)
    hidden, length, first = heads * dice.choice([64, 96, 128]), dice.choice([1024, 2048]), dice.uniform(1.5, 4)
    usual = full * length * layers * 72 * hidden**2 / (gpus * peak * 1e12 * dice.uniform(0.2, 0.4))  # seconds of a step
    clock, samples, iteration = dice.uniform(60, 600), 0, 0  # seconds since the job began
    text = [f"> pretrain_gpt.py --num-layers {layers} --hidden-size {hidden} "
            f"--num-attention-heads {heads} --seq-length {length} --fp16"
            + " --recompute-granularity full --recompute-method uniform" * recompute,
            f"> world size: {gpus}, on {card} GPUs with a peak of {peak} TFLOP/s each; padded vocabulary: 50304"]
    lines, left = dice.randint(7, 9), dice.randint(2, 5)
    last = 10 * (lines - 1) + left
    stops = {dice.randint(2, lines - 2): "evaluation", dice.randint(2, lines - 2): "checkpoint"}
    skips = {dice.randint(1, lines - 1) for _ in range(2)} if dice.random() < 0.7 else set()
    for line in range(lines):
        steps = left if line == lines - 1 else 10
        batch = full // 2 if ramp and line < lines // 2 else full
        ms = round(1000 * usual * batch / full * dice.uniform(0.96, 1.04) * (first if line == 0 else 1), 1)
        iteration, samples = iteration + steps, samples + steps * batch
        clock += steps * ms / 1000
        skipped = dice.randint(1, 2) if line in skips else 0
        text.append(f"[{clock:9.3f} s] iteration {iteration}/{last} | consumed samples: {samples} | elapsed time per "
                    f"iteration (ms): {ms} | global batch size: {batch} | number of skipped iterations: {skipped} |")
        if line in stops:
            seconds = dice.uniform(5, 25) * usual
            clock += seconds
            text.append(f"{stops[line]} at iteration {iteration}: {seconds:.1f} s")
    return "\n".join(text)

# %% tags=["explore"]
from labcore.colors import bad, good, mark, result
from lablib import blocks, personal, published
from layout_estimator import costs
from layout_estimator.prices import DOLLARS_PER_HOUR
from minimegatron.formulas import state_bytes

# %% [markdown]
# ## What a token costs
#
# Multiplying an $m \times k$ matrix by a $k \times n$ matrix takes $mkn$ multiplications and as many additions, so
# $2mkn$ FLOPs. Every token passes through a weight matrix once, so in the forward pass **each weight costs two FLOPs
# per token**. The backward pass needs two GEMMs of the same size, for the gradients of the input and of the weight. So
# a training step takes six FLOPs per weight and token, and eight if each layer is recomputed.
#
# In a layer of GPT-2 with hidden size $h$, the attention has $4h^2$ weights and the MLP $8h^2$. Attention also
# multiplies activations with each other: for a sequence of $s$ tokens, the scores $QK^T$ and the weighted sum of the
# values take $2sh$ FLOPs per token each. With $l$ layers and $V$ words in the vocabulary, the number of parameters $P$
# (biases and layer norms included) and the FLOPs $F$ of a step with $B$ sequences and full recomputation are
#
# $$P = 12lh^2\left(1 + \frac{13}{12h} + \frac{V + s}{12lh}\right), \qquad
# F = 96Bslh^2\left(1 + \frac{s}{6h} + \frac{V}{16lh}\right).$$
#
# These are equations 2 and 3 of [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473). The common short form is
# $6N$ FLOPs per token for $N$ parameters ([Kaplan et al., 2020](https://arxiv.org/abs/2001.08361), whose $N$ does not
# count embeddings; ours does). Of the terms in $F$, it leaves out $s/6h$, which is attention. Training on $D$ tokens then
# takes $6ND$ FLOPs. How should such a budget be divided between model size and data? According to [Hoffmann et al.,
# 2022](https://arxiv.org/abs/2203.15556), parameters and tokens should grow in proportion. Their own model, Chinchilla,
# has 70 billion parameters and was trained on 1.4 trillion tokens, 20 per parameter.
#
# Both equations hold for GPT-2's block only, and most models now have other blocks.

# %% [markdown]
# ### Exercise 1: a counter for any block
#
# Write `count_transformer`. Its configuration describes how a model differs from GPT-2: fewer key and value heads
# (**grouped-query attention**, [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245)), a third matrix in the MLP
# (**SwiGLU**, [Shazeer, 2020](https://arxiv.org/abs/2002.05202)), many MLPs per layer, a few of which a router chooses
# for each token (**mixture of experts**, [Shazeer et al., 2017](https://arxiv.org/abs/1701.06538)), an untied output
# matrix, and position encodings without parameters (**RoPE**, [Su et al., 2021](https://arxiv.org/abs/2104.09864)). The
# next cell builds such a model on PyTorch's meta device, so it takes no memory. Look at its modules:

# %% tags=["explore"]
EXAMPLE = {"layers": 2, "hidden": 256, "heads": 8, "groups": 2, "ffn": 700, "gated": True, "experts": 4, "chosen": 2,
           "vocabulary": 1000, "sequence": 64, "learned": False, "tied": False, "biases": False}
print(blocks.build(EXAMPLE))

# %% [markdown]
# The check compares your function with such modules, and with what PyTorch's `FlopCounterMode` counts during their
# forward and backward passes. It counts matrix multiplications only. Attention counts in full, as if a causal mask
# saved nothing.

# %% answer="count-transformer"
def count_transformer(model, batch=1, recompute=False):
    """Count parameters and FLOPs of a transformer.

    Args:
        model: its configuration. "groups": number of key heads, and of value heads. "ffn": width of the MLP, or of
            each expert. "gated": whether the MLP has a third matrix. "experts": MLPs per layer; with more than 1, a
            router (a linear layer without a bias) chooses "chosen" of them for each token. "learned": whether each
            position has an embedding. "tied": whether the output matrix is the word embedding. "biases": whether
            linear layers have biases; the output matrix never does. Norms then have weight and bias (LayerNorm),
            otherwise only a weight (RMSNorm): two in each layer, and one at the end.
        batch: sequences per step.
        recompute: whether the backward pass first computes each layer again.

    Returns:
        "parameters": all of them. "active": all but the experts that are not chosen for a token.
        "flops": FLOPs of a training step, forward and backward. A dictionary of three ints.
    """
    ### BEGIN SOLUTION
    h, s, biases = model["hidden"], model["sequence"], int(model["biases"])
    keys = h * model["groups"] // model["heads"]
    matrices = 2 if model["gated"] else 1  # into the MLP
    attention = 2 * h * (h + keys)
    router = h * model["experts"] if model["experts"] > 1 else 0
    expert = (matrices + 1) * h * model["ffn"]
    expert_biases = biases * (matrices * model["ffn"] + h)
    norm = h * (1 + biases)
    shared = attention + biases * 2 * (h + keys) + router + 2 * norm
    output = model["vocabulary"] * h
    once = output * (1 if model["tied"] else 2) + (s * h if model["learned"] else 0) + norm
    parameters, active = (model["layers"] * (shared + met * (expert + expert_biases)) + once
                          for met in (model["experts"], model["chosen"]))
    layer = 2 * (attention + router + model["chosen"] * expert) + 4 * s * h
    passes = 4 if recompute else 3
    token = model["layers"] * layer * passes + 3 * 2 * output
    return {"parameters": parameters, "active": active, "flops": batch * s * token}
    ### END SOLUTION

# %% check="count-transformer" points=5
GPT = {"layers": 2, "hidden": 64, "heads": 4, "groups": 4, "ffn": 256, "gated": False, "experts": 1, "chosen": 1,
       "vocabulary": 1000, "sequence": 32, "learned": True, "tied": True, "biases": True}
LLAMA = {**GPT, "groups": 2, "ffn": 200, "gated": True, "learned": False, "tied": False, "biases": False}
MIXTURE = {**LLAMA, "experts": 8, "chosen": 2}
check.function(
    count_transformer, cases=[{"model": GPT}, {"model": LLAMA, "batch": 2}, {"model": MIXTURE, "batch": 2},
                  {"model": GPT, "recompute": True}, {"model": {**MIXTURE, "biases": True}, "batch": 2}],
    expected=[{"parameters": 166144, "active": 166144, "flops": 32735232},
              {"parameters": 229696, "active": 229696, "flops": 66650112},
              {"parameters": 768320, "active": 307520, "flops": 96534528},
              {"parameters": 166144, "active": 166144, "flops": 39550976},
              {"parameters": 776448, "active": 310080, "flops": 96534528}],
    hints={
        "With grouped queries, the key and value matrices have fewer columns.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 237888, "active": 237888, "flops": 69795840},
             {"parameters": 776512, "active": 315712, "flops": 99680256},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 784768, "active": 318400, "flops": 99680256}],
        "A gated MLP has a third matrix, as large as the first.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 204096, "active": 204096, "flops": 56819712},
             {"parameters": 563520, "active": 256320, "flops": 76873728},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 568448, "active": 258080, "flops": 76873728}],
        "A token pays only for the experts that are chosen for it.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 229696, "active": 229696, "flops": 66650112},
             {"parameters": 768320, "active": 307520, "flops": 273481728},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 776448, "active": 310080, "flops": 273481728}],
        "The router is a matrix, too: it has parameters, and every token passes through it.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 229696, "active": 229696, "flops": 66650112},
             {"parameters": 767296, "active": 306496, "flops": 96141312},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 775424, "active": 309056, "flops": 96141312}],
        "An output matrix that is not tied is a matrix of its own.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 165696, "active": 165696, "flops": 66650112},
             {"parameters": 704320, "active": 243520, "flops": 96534528},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 712448, "active": 246080, "flops": 96534528}],
        "That is the forward pass only. How many GEMMs does a linear layer's backward pass need?":
            [{"parameters": 166144, "active": 166144, "flops": 10911744},
             {"parameters": 229696, "active": 229696, "flops": 22216704},
             {"parameters": 768320, "active": 307520, "flops": 32178176},
             {"parameters": 166144, "active": 166144, "flops": 17727488},
             {"parameters": 776448, "active": 310080, "flops": 32178176}],
        "Only layers are recomputed, and the output matrix is not part of a layer.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 229696, "active": 229696, "flops": 66650112},
             {"parameters": 768320, "active": 307520, "flops": 96534528},
             {"parameters": 166144, "active": 166144, "flops": 43646976},
             {"parameters": 776448, "active": 310080, "flops": 96534528}],
        "Attention also multiplies activations with each other: QK^T, and the probabilities with V.":
            [{"parameters": 166144, "active": 166144, "flops": 31162368},
             {"parameters": 229696, "active": 229696, "flops": 63504384},
             {"parameters": 768320, "active": 307520, "flops": 93388800},
             {"parameters": 166144, "active": 166144, "flops": 37453824},
             {"parameters": 776448, "active": 310080, "flops": 93388800}],
        "Every query head has scores of its own, however many of them share a key head.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 229696, "active": 229696, "flops": 65077248},
             {"parameters": 768320, "active": 307520, "flops": 94961664},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 776448, "active": 310080, "flops": 94961664}],
        "Attention counts in full here: a causal mask skips nothing.":
            [{"parameters": 166144, "active": 166144, "flops": 31948800},
             {"parameters": 229696, "active": 229696, "flops": 65077248},
             {"parameters": 768320, "active": 307520, "flops": 94961664},
             {"parameters": 166144, "active": 166144, "flops": 38502400},
             {"parameters": 776448, "active": 310080, "flops": 94961664}],
        "The active parameters leave out the experts that the router does not choose.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 229696, "active": 229696, "flops": 66650112},
             {"parameters": 768320, "active": 768320, "flops": 96534528},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 776448, "active": 776448, "flops": 96534528}],
        "A word embedding is looked up, not multiplied: only the output matrix takes FLOPs.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 229696, "active": 229696, "flops": 91226112},
             {"parameters": 768320, "active": 307520, "flops": 121110528},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 776448, "active": 310080, "flops": 121110528}],
        "The router multiplies, too: every token passes through its matrix, which takes FLOPs.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 229696, "active": 229696, "flops": 66650112},
             {"parameters": 768320, "active": 307520, "flops": 96141312},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 776448, "active": 310080, "flops": 96141312}],
        "Only experts can be inactive. Embeddings are active parameters, although a token reads one row of each.":
            [{"parameters": 166144, "active": 100096, "flops": 32735232},
             {"parameters": 229696, "active": 165696, "flops": 66650112},
             {"parameters": 768320, "active": 243520, "flops": 96534528},
             {"parameters": 166144, "active": 100096, "flops": 39550976},
             {"parameters": 776448, "active": 246080, "flops": 96534528}],
        "An RMSNorm has a weight only: without biases, nothing has a bias.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 230016, "active": 230016, "flops": 66650112},
             {"parameters": 768640, "active": 307840, "flops": 96534528},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 776448, "active": 310080, "flops": 96534528}],
        "Each layer has two norms, and one more follows the last layer.":
            [{"parameters": 166016, "active": 166016, "flops": 32735232},
             {"parameters": 229632, "active": 229632, "flops": 66650112},
             {"parameters": 768256, "active": 307456, "flops": 96534528},
             {"parameters": 166016, "active": 166016, "flops": 39550976},
             {"parameters": 776320, "active": 309952, "flops": 96534528}],
        "Only learned positions have embeddings. RoPE has no parameters.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 231744, "active": 231744, "flops": 66650112},
             {"parameters": 770368, "active": 309568, "flops": 96534528},
             {"parameters": 166144, "active": 166144, "flops": 39550976},
             {"parameters": 778496, "active": 312128, "flops": 96534528}],
        "With recomputation, each layer's forward pass runs twice.":
            [{"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 229696, "active": 229696, "flops": 66650112},
             {"parameters": 768320, "active": 307520, "flops": 96534528},
             {"parameters": 166144, "active": 166144, "flops": 32735232},
             {"parameters": 776448, "active": 310080, "flops": 96534528}],
    })
### BEGIN HIDDEN TESTS
from lablib import blocks


def drawn_model(dice):
    heads, experts = dice.choice([4, 8, 16]), dice.choice([1, 1, 4, 8])
    return {"layers": dice.randint(1, 4), "hidden": heads * dice.choice([32, 64, 128]), "heads": heads,
            "groups": dice.choice([one for one in (1, 2, 4, 8, 16) if heads % one == 0]),
            "ffn": dice.randint(100, 5000), "gated": dice.random() < 0.5, "experts": experts,
            "chosen": 1 if experts == 1 else dice.randint(1, 3), "vocabulary": dice.randint(1000, 60_000),
            "sequence": dice.choice([64, 128, 1024]),
            "learned": dice.random() < 0.5, "tied": dice.random() < 0.5, "biases": dice.random() < 0.5}


check.function(count_transformer, cases=check.draw(8, model=drawn_model, batch=range(1, 9), recompute=[True, False]),
               expected=blocks.measure)
### END HIDDEN TESTS

# %% [raw] mutant="count-transformer" hint="fewer columns"
# -    keys = h * model["groups"] // model["heads"]
# +    keys = h

# %% [raw] mutant="count-transformer" hint="A gated MLP"
# -    matrices = 2 if model["gated"] else 1  # into the MLP
# +    matrices = 1

# %% [raw] mutant="count-transformer" hint="A token pays only"
# -    layer = 2 * (attention + router + model["chosen"] * expert) + 4 * s * h
# +    layer = 2 * (attention + router + model["experts"] * expert) + 4 * s * h

# %% [raw] mutant="count-transformer" hint="The router"
# -    router = h * model["experts"] if model["experts"] > 1 else 0
# +    router = 0

# %% [raw] mutant="count-transformer" hint="matrix of its own"
# -    once = output * (1 if model["tied"] else 2) + (s * h if model["learned"] else 0) + norm
# +    once = output + (s * h if model["learned"] else 0) + norm

# %% [raw] mutant="count-transformer" hint="forward pass only"
# -    token = model["layers"] * layer * passes + 3 * 2 * output
# +    token = model["layers"] * layer * (passes - 2) + 2 * output

# %% [raw] mutant="count-transformer" hint="not part of a layer"
# -    token = model["layers"] * layer * passes + 3 * 2 * output
# +    token = (model["layers"] * layer + 2 * output) * passes

# %% [raw] mutant="count-transformer" hint="multiplies activations"
# -    layer = 2 * (attention + router + model["chosen"] * expert) + 4 * s * h
# +    layer = 2 * (attention + router + model["chosen"] * expert)

# %% [raw] mutant="count-transformer" hint="scores of its own"
# -    layer = 2 * (attention + router + model["chosen"] * expert) + 4 * s * h
# +    layer = 2 * (attention + router + model["chosen"] * expert) + 4 * s * keys

# %% [raw] mutant="count-transformer" hint="skips nothing"
# -    layer = 2 * (attention + router + model["chosen"] * expert) + 4 * s * h
# +    layer = 2 * (attention + router + model["chosen"] * expert) + 2 * s * h

# %% [raw] mutant="count-transformer" hint="does not choose"
# -    return {"parameters": parameters, "active": active, "flops": batch * s * token}
# +    return {"parameters": parameters, "active": parameters, "flops": batch * s * token}

# %% [raw] mutant="count-transformer" hint="looked up"
# -    token = model["layers"] * layer * passes + 3 * 2 * output
# +    token = model["layers"] * layer * passes + 3 * 2 * output * (1 if model["tied"] else 2)

# %% [raw] mutant="count-transformer" hint="its matrix, which takes FLOPs"
# -    layer = 2 * (attention + router + model["chosen"] * expert) + 4 * s * h
# +    layer = 2 * (attention + model["chosen"] * expert) + 4 * s * h

# %% [raw] mutant="count-transformer" hint="Only experts can be inactive"
# -    return {"parameters": parameters, "active": active, "flops": batch * s * token}
# +    active -= output + (s * h if model["learned"] else 0)
# +    return {"parameters": parameters, "active": active, "flops": batch * s * token}

# %% [raw] mutant="count-transformer" hint="An RMSNorm has a weight only"
# -    norm = h * (1 + biases)
# +    norm = 2 * h

# %% [raw] mutant="count-transformer" hint="one more follows the last layer"
# -    once = output * (1 if model["tied"] else 2) + (s * h if model["learned"] else 0) + norm
# +    once = output * (1 if model["tied"] else 2) + (s * h if model["learned"] else 0)

# %% [raw] mutant="count-transformer" hint="Only learned positions"
# -    once = output * (1 if model["tied"] else 2) + (s * h if model["learned"] else 0) + norm
# +    once = output * (1 if model["tied"] else 2) + s * h + norm

# %% [raw] mutant="count-transformer" hint="each layer's forward pass runs twice"
# -    passes = 4 if recompute else 3
# +    passes = 3

# %% [markdown]
# Now count some full-size models. How close is $6N$, if $N$ is the number of active parameters?

# %% tags=["explore"]
DENSE = {"groups": 96, "gated": False, "experts": 1, "chosen": 1, "learned": True, "tied": True, "biases": True}
MODERN = {"groups": 8, "gated": True, "experts": 1, "chosen": 1, "learned": False, "tied": False, "biases": False}
GPT_3 = {**DENSE, "layers": 96, "hidden": 12288, "heads": 96, "ffn": 49152, "vocabulary": 50304, "sequence": 2048}
LLAMA_405B = {**MODERN, "layers": 126, "hidden": 16384, "heads": 128, "ffn": 53248, "vocabulary": 128256,
              "sequence": 8192}
MIXTRAL = {**MODERN, "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336, "vocabulary": 32000, "sequence": 4096,
           "experts": 8, "chosen": 2}
print(f"{'':16}{'parameters':>12}{'active':>9}{'FLOPs/token':>13}{'of 6N':>8}")
for name, model in {"GPT-3": GPT_3, "Llama 3.1 405B": LLAMA_405B, "Mixtral 8x7B": MIXTRAL}.items():
    made = count_transformer(model)
    token, active = made["flops"] / model["sequence"], made["active"]
    print(f"{name:16}{made['parameters'] / 1e9:11.1f}B{active / 1e9:8.1f}B{token:13.3g}"
          f"{result(f'{token / (6 * active):8.1%}')}")

# %% [markdown]
# The shapes are those of [Brown et al., 2020](https://arxiv.org/abs/2005.14165), table 2.1, [Grattafiori et al.,
# 2024](https://arxiv.org/abs/2407.21783), table 3, and [Jiang et al., 2024](https://arxiv.org/abs/2401.04088),
# table 1, with two exceptions: GPT-3's and Llama's vocabularies include padding and special tokens, and Mixtral's
# sequences are ours (4,096 tokens; its context has 32,768). $6N$ is too low by about $s/6h$ for a layer of about $12h^2$
# weights: 3% for GPT-3, and 8% for Llama 3.1 405B with four times the sequence length. A layer of Mixtral uses almost
# twice as many weights per token, so attention weighs half as much there. A mixture of experts computes with its active
# parameters only, but it has to *store* all of them.

# %% [markdown]
# ## Predict the paper
#
# Narayanan et al. measured ten models on up to 3,072 A100s, in fp16 with full recomputation, and published the
# throughput of each. Sequences have 2,048 tokens, and the vocabulary 51,200 words. For a prediction, start from an
# A100's peak, 312 TFLOP/s in fp16, and guess what fraction of it large GEMMs leave. The table has the number of GPUs,
# and into how many parts the model is split: each layer's matrices over TP GPUs (**tensor parallelism**, lab 09), and
# the layers into PP **pipeline stages** of one or more **chunks** (labs 10 and 11). $m$ and $v$ follow from the
# authors' scripts (Megatron-LM, `examples/sc21`). $p$ stages with $m$ micro-batches and $v$ chunks per stage are idle
# for $(p-1)/(vm)$ of the time that they compute. Do not open the paper yet: its abstract gives a row away.

# %% tags=["explore"]
print(f"{'model':8}{'layers':>8}{'hidden':>8}{'GPUs':>6}{'TP':>4}{'PP':>4}{'m':>5}{'v':>4}")
for row in published.TABLE_1:
    print(f"{row.name:8}{row.layers:8}{row.hidden:8}{row.gpus:6}{row.tp:4}{row.pp:4}{row.micro_batches:5}"
          f"{row.chunks:4}")

# %% [markdown]
# Predict the TFLOP/s per GPU in each row, where FLOPs include recomputation (the paper's $F$). Then predict how many
# days the paper estimates for two of its models: GPT-3 with 300 billion tokens on 1,024 GPUs, and the
# trillion-parameter model with 450 billion tokens on 3,072 GPUs and a batch of 3,072 sequences. Finally, predict the
# cost of four other runs, in millions of GPU-hours:
#
# | run | active parameters | tokens | GPUs |
# |---|---|---|---|
# | BLOOM | 176 billion | 366 billion | 384 A100 |
# | OPT-175B | 175 billion | 300 billion | 1,024 A100 |
# | Llama 3.1 405B | 405 billion | 15.6 trillion | up to 16,384 H100 (peak of 989 TFLOP/s in bf16) |
# | DeepSeek-V3 | 37 billion | 14.8 trillion | 2,048 H800, which compute like H100s |
#
# OPT's figure is its team's estimate for a run without failures. The others are the GPU-hours that the teams report,
# DeepSeek-V3's for pretraining only. Replace each 0 with your prediction:

# %% answer="predictions"
# TFLOP/s per GPU
predicted_teraflops = {"1.7B": 0, "3.6B": 0, "7.5B": 0, "18.4B": 0, "39.1B": 0, "76.1B": 0, "145.6B": 0, "310.1B": 0,
                       "529.6B": 0, "1008.0B": 0}
guess_gpt3_days, guess_trillion_days = 0, 0
# millions of GPU-hours
predicted_hours = {"BLOOM": 0, "OPT-175B": 0, "Llama 3.1 405B": 0, "DeepSeek-V3": 0}
### BEGIN SOLUTION
predicted_teraflops = {"1.7B": 160, "3.6B": 155, "7.5B": 150, "18.4B": 150, "39.1B": 150, "76.1B": 150,
                       "145.6B": 150, "310.1B": 150, "529.6B": 145, "1008.0B": 135}
guess_gpt3_days, guess_trillion_days = 31.0, 100.0
predicted_hours = {"BLOOM": 0.9, "OPT-175B": 0.7, "Llama 3.1 405B": 27, "DeepSeek-V3": 2.3}
### END SOLUTION

# %% [markdown]
# Now compare your predictions, and those of the virtual GPUs, with the published figures. No constant of the virtual
# GPUs was fitted to these rows, but we knew the rows when we built them. All ten take more than a minute to model, so
# they are spread over three cells.

# %% tags=["explore"] short={"published.TABLE_1[:8]": "published.TABLE_1[1:3]"}
rows = published.TABLE_1[:8]
virtual = published.modeled(rows)
published.compare(rows, predicted_teraflops, virtual)

# %% tags=["explore"] short={"published.TABLE_1[8:9]": "published.TABLE_1[3:4]"}
virtual |= published.modeled(published.TABLE_1[8:9])

# %% tags=["explore"] short={"published.TABLE_1[9:]": "published.TABLE_1[4:5]"}
virtual |= published.modeled(published.TABLE_1[9:])
shown = [row for row in published.TABLE_1 if row.name in virtual]
published.compare(shown, predicted_teraflops, virtual)
check.compare("days for GPT-3", guess_gpt3_days, published.DAYS["GPT-3"])
check.compare("days for a trillion parameters", guess_trillion_days, published.DAYS["a trillion"])
published.draw(shown, predicted_teraflops, virtual)

# %% [markdown]
# The published throughput rises with the model from 18.4 billion parameters on, although ever more GPUs communicate:
# the larger a layer's matrices, the higher their arithmetic intensity, and batches grow with the number of stages, so the
# bubble stays small. The virtual GPUs follow this trend, and where they are wrong, they are mostly too fast. Were you
# wrong about the trend, or by a constant factor?
#
# The paper computes the days with its equation 4: $8TP/(nX)$ seconds for $T$ tokens, $P$ parameters, and $n$ GPUs at
# $X$ FLOP/s each. That assumes that nothing ever goes wrong. How do runs compare that really took place?

# %% tags=["explore"]
published.compare_hours(predicted_hours)

# %% [markdown]
# The last column is $6ND$, divided by the FLOPs that the GPUs could have executed in the published hours at their
# 16-bit peak. Each row ends with its source, and `lablib/published.py` has the details. Four teams, two generations of
# GPUs, dense models and experts, and these figures are all about a third of the peak. If you remember one number from
# this lab, make it this one: **a third of the 16-bit peak, if failures cost little time.**
#
# Two of the four figures flatter the run, though. OPT's 33 days assume that nothing fails. The real run took about two months
# on 992 GPUs ([Zhang et al., 2022](https://arxiv.org/abs/2205.01068)), which is a fifth of the peak. DeepSeek-V3 runs
# most of its GEMMs in FP8 ([DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437)), and the FP8 peak is twice as high.

# %% [markdown]
# ## Reading a log
#
# A third of the peak: where did the rest go? The run in this log is invented and drawn for you, but everything in it
# happens in real runs. How well did it use its GPUs? Estimate the share of the peak from one line and $6N$ before you go
# on.

# %% tags=["explore"]
my_log = training_log(personal.dice("log").randrange(10**6))
print(my_log)

# %% [markdown]
# "How well" can mean three different things:
#
# - **HFU** (hardware FLOPs utilization): all FLOPs that the GPUs execute in their steps, divided by what their peak
#   allows in the time of these steps.
# - **MFU** (model FLOPs utilization, [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311)): the same without
#   recomputation, which the model itself does not need.
# - **Overall utilization**: the model FLOPs of those steps that updated the parameters, divided by what the peak allows
#   in all of the elapsed time, because that is the time you pay for. **Goodput** and "effective training time" are
#   related: they are the fraction of the elapsed time that is spent on such steps.
#
# ### Exercise 2: utilization
#
# Compute all three from the first iteration line of a log to its last one; everything up to the first line includes the
# startup. `read_log` parses the log for you. Its `settings` contain the `model` in the format of `count_transformer`,
# the number of `gpus`, the `peak` of each in TFLOP/s, and whether layers are recomputed (`recompute`). Compute the time
# of the steps from the `ms` of its `lines`. Do not subtract the pauses from the clock: they are printed to a tenth of a
# second only, which is not exact enough for the check. Each line has
#
# | key | meaning |
# |---|---|
# | `time` | when the line was printed, in seconds since the job started |
# | `iteration`, `samples` | iterations completed so far, and sequences consumed so far |
# | `ms` | milliseconds per iteration, averaged over the iterations since the previous line |
# | `batch` | sequences per iteration; constant between two lines |
# | `skipped` | how many of the iterations since the previous line overflowed in fp16: their forward and backward passes ran, but the optimizer did not |

# %% answer="read-utilization"
def read_utilization(log):
    """Return a run's utilization after its first iteration line: "mfu", "hfu", and "overall", from 0 to 1."""
    settings, lines = read_log(log)
    ### BEGIN SOLUTION
    from itertools import pairwise

    sequences = useful = seconds = 0
    for before, line in pairwise(lines):
        consumed = line["samples"] - before["samples"]
        sequences += consumed
        useful += consumed - line["skipped"] * line["batch"]
        seconds += (line["iteration"] - before["iteration"]) * line["ms"] / 1000
    clock = lines[-1]["time"] - lines[0]["time"]
    each = count_transformer(settings["model"])["flops"]
    executed = count_transformer(settings["model"], recompute=settings["recompute"])["flops"]
    most = settings["gpus"] * settings["peak"] * 1e12  # FLOPs per second
    return {"mfu": sequences * each / (seconds * most), "hfu": sequences * executed / (seconds * most),
            "overall": useful * each / (clock * most)}
    ### END SOLUTION

# %% check="read-utilization" points=5
check.function(
    read_utilization, cases=[{"log": training_log(seed)} for seed in (16, 12, 7)], rel=1e-4,
    expected=[{"mfu": 0.2774043, "hfu": 0.3669774, "overall": 0.1575256},
              {"mfu": 0.4701899, "hfu": 0.608637, "overall": 0.2690365},
              {"mfu": 0.2649324, "hfu": 0.2649324, "overall": 0.1791827}],
    hints={
        "The first line's iterations include the start-up. Begin after it.":
            [{"mfu": 0.2528106, "hfu": 0.3344425, "overall": 0.1748361},
             {"mfu": 0.4305363, "hfu": 0.5573074, "overall": 0.2930576},
             {"mfu": 0.2090497, "hfu": 0.2090497, "overall": 0.1993156}],
        "The last line covers fewer iterations than the others, so a plain mean of the times is wrong.":
            [{"mfu": 0.2704976, "hfu": 0.3578407, "overall": 0.1575256},
             {"mfu": 0.4592086, "hfu": 0.5944223, "overall": 0.2690365},
             {"mfu": 0.2568844, "hfu": 0.2568844, "overall": 0.1791827}],
        "Not all iterations had the same batch.":
            [{"mfu": 0.3640931, "hfu": 0.4816579, "overall": 0.2094572},
             {"mfu": 0.5917907, "hfu": 0.7660432, "overall": 0.3410999},
             {"mfu": 0.3494853, "hfu": 0.3494853, "overall": 0.2395814}],
        "Skipped iterations did not change the parameters, so they do not count in the overall utilization.":
            [{"mfu": 0.2774043, "hfu": 0.3669774, "overall": 0.1661809},
             {"mfu": 0.4701899, "hfu": 0.608637, "overall": 0.2786449},
             {"mfu": 0.2649324, "hfu": 0.2649324, "overall": 0.1892492}],
        "The FLOPs of skipped iterations were executed: only the overall utilization leaves them out.":
            [{"mfu": 0.2629561, "hfu": 0.347864, "overall": 0.1575256},
             {"mfu": 0.4539765, "hfu": 0.5876495, "overall": 0.2690365},
             {"mfu": 0.2508402, "hfu": 0.2508402, "overall": 0.1791827}],
        "The time of the steps is not all the time that passes on the clock.":
            [{"mfu": 0.2774043, "hfu": 0.3669774, "overall": 0.2629561},
             {"mfu": 0.4701899, "hfu": 0.608637, "overall": 0.4539765},
             {"mfu": 0.2649324, "hfu": 0.2649324, "overall": 0.2508402}],
        "The MFU leaves out recomputation, which the model does not ask for.":
            [{"mfu": 0.3669774, "hfu": 0.3669774, "overall": 0.2083903},
             {"mfu": 0.608637, "hfu": 0.608637, "overall": 0.3482541},
             {"mfu": 0.2649324, "hfu": 0.2649324, "overall": 0.1791827}],
        "With recomputation, the forward pass of each layer is executed twice.":
            [{"mfu": 0.2774043, "hfu": 0.2774043, "overall": 0.1575256},
             {"mfu": 0.4701899, "hfu": 0.4701899, "overall": 0.2690365},
             {"mfu": 0.2649324, "hfu": 0.2649324, "overall": 0.1791827}],
        "This run does not recompute, so its GPUs executed the model's FLOPs only.":
            [{"mfu": 0.2774043, "hfu": 0.3669774, "overall": 0.1575256},
             {"mfu": 0.4701899, "hfu": 0.608637, "overall": 0.2690365},
             {"mfu": 0.2649324, "hfu": 0.3500975, "overall": 0.1791827}],
        "The clock of the overall utilization starts at the first iteration line, and not at the start of the job.":
            [{"mfu": 0.2774043, "hfu": 0.3669774, "overall": 0.1260936},
             {"mfu": 0.4701899, "hfu": 0.608637, "overall": 0.003150855},
             {"mfu": 0.2649324, "hfu": 0.2649324, "overall": 0.1119387}],
        "The overall utilization counts the model's FLOPs, without recomputation.":
            [{"mfu": 0.2774043, "hfu": 0.3669774, "overall": 0.2083903},
             {"mfu": 0.4701899, "hfu": 0.608637, "overall": 0.3482541},
             {"mfu": 0.2649324, "hfu": 0.2649324, "overall": 0.1791827}],
        "Not every line covers ten iterations. Look at `iteration`.":
            [{"mfu": 0.2434479, "hfu": 0.3220566, "overall": 0.1575256},
             {"mfu": 0.4190278, "hfu": 0.5424103, "overall": 0.2690365},
             {"mfu": 0.2275262, "hfu": 0.2275262, "overall": 0.1791827}],
        "MFU and HFU count the time of the steps only, without the pauses between them.":
            [{"mfu": 0.1661809, "hfu": 0.2198403, "overall": 0.1575256},
             {"mfu": 0.2786449, "hfu": 0.3606918, "overall": 0.2690365},
             {"mfu": 0.1892492, "hfu": 0.1892492, "overall": 0.1791827}],
    })
### BEGIN HIDDEN TESTS
import re


def used(log):
    """Return the same from the text, step by step, and with the paper's equations."""
    def number(flag):
        return int(re.search(rf"{flag}:? (\d+)", log)[1])

    l, h, s = number("--num-layers"), number("--hidden-size"), number("--seq-length")
    model = 72 * s * l * h * h * (1 + s / (6 * h) + 50304 / (12 * l * h))
    hardware = 96 * s * l * h * h * (1 + s / (6 * h) + 50304 / (16 * l * h)) if "recompute" in log else model
    marks, seconds, passes, updates = [], 0.0, 0, 0
    for line in log.split("\n"):
        if "consumed" not in line:
            continue
        iteration = int(re.search(r"iteration (\d+)/", line)[1])
        ms, batch = float(re.search(r"\(ms\): ([\d.]+)", line)[1]), int(re.search(r"batch size: (\d+)", line)[1])
        if marks:
            steps = iteration - marks[-1][0]
            seconds += steps * ms / 1000
            passes += steps * batch
            updates += (steps - int(re.search(r"iterations: (\d+)", line)[1])) * batch
        marks.append((iteration, float(re.search(r"\[ *([\d.]+) s", line)[1])))
    most = number("world size") * float(re.search(r"([\d.]+) TFLOP", log)[1]) * 1e12
    clock = marks[-1][1] - marks[0][1]
    return {"mfu": passes * model / seconds / most, "hfu": passes * hardware / seconds / most,
            "overall": updates * model / clock / most}


drawn = [{"log": training_log(case["seed"])} for case in check.draw(16, seed=range(10**9))]
check.function(read_utilization, cases=drawn, rel=1e-4, expected=used)
### END HIDDEN TESTS

# %% [raw] mutant="read-utilization" hint="start-up"
# -    for before, line in pairwise(lines):
# +    for before, line in zip([{"samples": 0, "iteration": 0}, *lines], lines):

# %% [raw] mutant="read-utilization" hint="fewer iterations"
# -        seconds += (line["iteration"] - before["iteration"]) * line["ms"] / 1000
# -    clock = lines[-1]["time"] - lines[0]["time"]
# +    mean = sum(line["ms"] for line in lines[1:]) / (len(lines) - 1)
# +    seconds = (lines[-1]["iteration"] - lines[0]["iteration"]) * mean / 1000
# +    clock = lines[-1]["time"] - lines[0]["time"]

# %% [raw] mutant="read-utilization" hint="had the same batch"
# -        consumed = line["samples"] - before["samples"]
# +        consumed = (line["iteration"] - before["iteration"]) * lines[-1]["batch"]

# %% [raw] mutant="read-utilization" hint="did not change"
# -        useful += consumed - line["skipped"] * line["batch"]
# +        useful += consumed

# %% [raw] mutant="read-utilization" hint="were executed"
# -    return {"mfu": sequences * each / (seconds * most), "hfu": sequences * executed / (seconds * most),
# +    return {"mfu": useful * each / (seconds * most), "hfu": useful * executed / (seconds * most),

# %% [raw] mutant="read-utilization" hint="on the clock"
# -    clock = lines[-1]["time"] - lines[0]["time"]
# +    clock = seconds

# %% [raw] mutant="read-utilization" hint="does not ask for"
# -    each = count_transformer(settings["model"])["flops"]
# -    executed = count_transformer(settings["model"], recompute=settings["recompute"])["flops"]
# +    each = executed = count_transformer(settings["model"], recompute=settings["recompute"])["flops"]

# %% [raw] mutant="read-utilization" hint="does not recompute"
# -    executed = count_transformer(settings["model"], recompute=settings["recompute"])["flops"]
# +    executed = count_transformer(settings["model"], recompute=True)["flops"]

# %% [raw] mutant="read-utilization" hint="starts at the first iteration line"
# -    clock = lines[-1]["time"] - lines[0]["time"]
# +    clock = lines[-1]["time"]

# %% [raw] mutant="read-utilization" hint="counts the model's FLOPs"
# -            "overall": useful * each / (clock * most)}
# +            "overall": useful * executed / (clock * most)}

# %% [raw] mutant="read-utilization" hint="Not every line covers ten"
# -        seconds += (line["iteration"] - before["iteration"]) * line["ms"] / 1000
# +        seconds += 10 * line["ms"] / 1000

# %% [raw] mutant="read-utilization" hint="without the pauses"
# -    clock = lines[-1]["time"] - lines[0]["time"]
# +    seconds = clock = lines[-1]["time"] - lines[0]["time"]

# %% [raw] mutant="read-utilization" hint="executed twice"
# -    executed = count_transformer(settings["model"], recompute=settings["recompute"])["flops"]
# +    executed = each

# %% [markdown]
# What does it say about your run?

# %% tags=["explore"]
for name, share in read_utilization(my_log).items():
    print(f"{name:8} {result(f'{share:.1%}')}")

# %% [markdown]
# Now a real log. BLOOM's team quotes this line, which we have shortened, in [its
# chronicle](https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md) after the
# first week. It reports 149.02 TFLOP/s per GPU. Are those model FLOPs or hardware FLOPs?

# %% tags=["explore"]
print(mark(published.BLOOM_LINE, "TFLOPs: [^ ]+"))
BLOOM = {**DENSE, "groups": 112, "layers": 70, "hidden": 14336, "heads": 112, "ffn": 4 * 14336, "vocabulary": 250880,
         "sequence": 2048, "learned": False}
print(f"{count_transformer(BLOOM)['parameters']:,} parameters by your counter")
for name, recompute in (("the model's", False), ("with recomputation", True)):
    rate = count_transformer(BLOOM, batch=2048, recompute=recompute)["flops"] / (105.22 * 384) / 1e12
    print(f"{name:19} {result(f'{rate:.2f}')} TFLOP/s per GPU, {rate / 312:.1%} of the peak")

# %% [markdown]
# It is the hardware's, to the last digit. BLOOM ran at an HFU of 48%, and if you compare these TFLOP/s with another
# team's MFU, you compare two different quantities. **A percentage of the peak means nothing unless you know which FLOPs
# were counted, over what time, and against which peak.** The same holds for BLOOM's own two figures: an MFU of 36.0%,
# and 31.8% from its GPU-hours, which is 4.2 points less. Almost one of these points is attention, which $6ND$ leaves out.
# The other three were lost between the steps, and in the first week, when the batch was small. Llama 3's team reports an MFU of 38 to
# 43% ([Grattafiori et al., 2024](https://arxiv.org/abs/2407.21783), table 4), and its GPU-hours give 34.5%.

# %% [markdown]
# ## Decide
#
# Back to the 100,000 dollars and two weeks. A model of 7.5 billion parameters, trained on Chinchilla's 20 tokens per
# parameter, needs 150 billion tokens. The GPUs are rented by the hour, for 5.12 dollars (A100 with 80 GB) or 12.29
# (H100). These were AWS's on-demand prices in us-east-1 until it [cut them by up to
# 45%](https://aws.amazon.com/blogs/aws/announcing-up-to-45-price-reduction-for-amazon-ec2-nvidia-gpu-accelerated-instances/)
# in June 2025; look up [today's](https://aws.amazon.com/ec2/pricing/on-demand/) before you plan a real run. Failures need
# a reserve, so you may not plan with all of the money and time. How large your reserve is, is drawn for you:

# %% tags=["explore"]
drawn = personal.dice("plan")
DAYS, BUDGET = drawn.choice([9, 10, 11, 12]), drawn.choice(range(76_000, 92_000, 2000))
print(f"Plan for at most {result(f'{DAYS} days')} and {result(f'{BUDGET:,} dollars')}.")

# %% [markdown]
# Each of these options is a cluster and a layout. Add two that you expect to do better. You may use all of the
# trainer's flags (the job's own are in `JOB`, below, among them `--bf16`), and the GPU models `a100-80gb` and `h100-80gb`.
# In a terminal, `lab estimate` tries the layouts of a cluster that you leave open, and lists the fastest ones. The more
# you leave open, the longer it takes, up to many minutes, in which it counts the layouts that it has estimated. This one
# takes about 15 seconds of CPU time, because it varies pipeline sizes and recomputation only:
#
# ```
# lab estimate --device virtual:h100-80gb --world-size 64 --num-layers 36 --hidden-size 4096 --num-attention-heads 32 \
#     --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --bf16 --sequence-parallel \
#     --use-distributed-optimizer --global-batch-size 512 --tensor-model-parallel-size 2 --micro-batch-size 2
# ```

# %% answer="options"
# name: (GPU model, number of GPUs, flags)
my_options = {
    "64 A100": ("a100-80gb", 64, "--tensor-model-parallel-size 4 --micro-batch-size 4 --recompute-activations"),
    "256 A100": ("a100-80gb", 256, "--tensor-model-parallel-size 4 --micro-batch-size 4 --recompute-activations"),
    "64 H100": ("h100-80gb", 64, "--tensor-model-parallel-size 4 --micro-batch-size 4 --recompute-activations"),
}
### BEGIN SOLUTION
my_options |= {
    "64 H100, TP 2": ("h100-80gb", 64, "--tensor-model-parallel-size 2 --micro-batch-size 2 --recompute-activations"),
    "32 H100, TP 2": ("h100-80gb", 32, "--tensor-model-parallel-size 2 --micro-batch-size 2 --recompute-activations"),
}
### END SOLUTION

# %% tags=["explore"] short={"my_options.items()": "list(my_options.items())[2:4]"}
JOB = ("--num-layers 36 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
       "--vocab-size 51200 --bf16 --sequence-parallel --use-distributed-optimizer --global-batch-size 512 ")
options, stacks = [], {}
print(f"{'modeled':16}{'days':>7}{'dollars':>10}  fits")
for name, (gpu, gpus, flags) in my_options.items():
    if gpu not in ("a100-80gb", "h100-80gb"):
        print(bad(f"{name}: {gpu!r} is not on the price list; choose 'a100-80gb' or 'h100-80gb'"))
        continue
    (cost,) = costs.of({name: f"--device virtual:{gpu} --world-size {gpus} {flags}"}, JOB)
    options.append({"name": name, "gpus": gpus, "dollars_per_hour": DOLLARS_PER_HOUR[gpu], "fits": cost.fits,
                    "tokens_per_second": cost.tokens_per_second})
    stacks[gpu] = cost.software
    hours = 150e9 / cost.tokens_per_second / 3600
    print(f"{name:16}{hours / 24:7.1f}{hours * gpus * DOLLARS_PER_HOUR[gpu]:10,.0f}  "
          + (good("yes") if cost.fits else bad("NO")))
for gpu, stack in stacks.items():
    print(f"software on {gpu}: {stack}")

# %% [markdown]
# The bills are close to each other, and each of them is an estimate. They do not even compare the GPUs on equal terms.
# The A100s run the Megatron-LM of 2021, whose modeled step times are off by 4% on average in 18 published runs. The
# H100s run Megatron Core without Transformer Engine, for which we know no published step time. So what can these
# figures decide?
#
# ### Exercise 3: a decision that survives
#
# An option is **feasible** if it fits into memory and meets the deadline and the budget. The best option is the
# cheapest feasible one. But the real step time of each option may be longer or shorter by up to the fraction `error`,
# independently of the others. Write `choose_option`, which returns the best option by the estimates, and all
# **contenders**: the options that some combination of errors would make the best one.

# %% answer="choose-option"
def choose_option(options, tokens, days, budget, error):
    """Choose between options.

    Args:
        options: dictionaries with "name", "gpus", "dollars_per_hour" (of a GPU), "tokens_per_second" (of all GPUs), and
            "fits".
        tokens: to train on.
        days, budget: deadline, and dollars.
        error: 0.1 if real step times may be up to 10% longer or shorter than estimated.

    Returns:
        "best": the name of the cheapest feasible option by the estimates; None if none is feasible.
        "contenders": names of the options that some errors would make the best one, in the order of `options`.
    """
    ### BEGIN SOLUTION
    def dollars(option, factor):
        """Return the bill if steps take `factor` times as long; infinity if the option is not possible."""
        hours = factor * tokens / option["tokens_per_second"] / 3600
        bill = hours * option["gpus"] * option["dollars_per_hour"]
        return bill if option["fits"] and hours <= 24 * days and bill <= budget else float("inf")

    bills = [dollars(option, 1) for option in options]
    best = min(bills)
    lucky = [dollars(option, 1 - error) for option in options]
    unlucky = [dollars(option, 1 + error) for option in options]
    contenders = [option["name"] for place, option in enumerate(options) if lucky[place] < float("inf")
                  and all(lucky[place] < unlucky[other] for other in range(len(options)) if other != place)]
    return {"best": options[bills.index(best)]["name"] if best < float("inf") else None, "contenders": contenders}
    ### END SOLUTION

# %% check="choose-option" points=4
OPTIONS = [{"name": name, "gpus": gpus, "dollars_per_hour": price, "tokens_per_second": rate, "fits": fits}
           for name, gpus, price, rate, fits in (
               ("small", 8, 4.0, 90e3, True), ("large", 32, 4.0, 330e3, True), ("full", 16, 4.0, 230e3, False),
               ("new", 8, 12.0, 250e3, True), ("wide", 64, 4.0, 480e3, True))]
check.function(
    choose_option, cases=[{"options": OPTIONS, "tokens": 60e9, "days": days, "budget": budget, "error": error}
                   for days, budget, error in ((10, 8000, 0.0), (7.5, 8000, 0.05), (7.5, 6450, 0.1), (3, 8000, 0.02), (7.5, 6200, 0.1),
                                               (1, 8000, 0.1), (7, 7000, 0.25), (8, 6600, 0.04))],
    expected=[{"best": "small", "contenders": ["small"]}, {"best": "new", "contenders": ["small", "large", "new"]},
              {"best": "new", "contenders": ["small", "large", "new"]}, {"best": "new", "contenders": ["large", "new"]},
              {"best": None, "contenders": ["small", "large", "new"]}, {"best": None, "contenders": []},
              {"best": "new", "contenders": ["small", "large", "new", "wide"]},
              {"best": "small", "contenders": ["small", "large", "new"]}],
    hints={
        "You compare with the best option by the estimates only. What can the others cost at their slowest?":
            [{"best": "small", "contenders": ["small"]}, {"best": "new", "contenders": ["small", "large", "new"]},
             {"best": "new", "contenders": ["small", "large", "new"]}, {"best": "new", "contenders": ["large", "new"]},
             {"best": None, "contenders": ["small", "large", "new"]}, {"best": None, "contenders": []},
             {"best": "new", "contenders": ["small", "large", "new", "wide"]},
             {"best": "small", "contenders": ["small", "new"]}],
        "An option that does not fit into memory never runs.":
            [{"best": "full", "contenders": ["full"]}, {"best": "full", "contenders": ["full"]},
             {"best": "full", "contenders": ["full"]}, {"best": "new", "contenders": ["large", "full", "new"]},
             {"best": "full", "contenders": ["full"]}, {"best": None, "contenders": []},
             {"best": "full", "contenders": ["small", "large", "full", "new"]}, {"best": "full", "contenders": ["full"]}],
        "Some of these options miss the deadline.":
            [{"best": "small", "contenders": ["small"]}, {"best": "small", "contenders": ["small", "large", "new"]},
             {"best": "small", "contenders": ["small", "large", "new"]}, {"best": "small", "contenders": ["small"]},
             {"best": "small", "contenders": ["small", "large", "new"]},
             {"best": "small", "contenders": ["small", "large", "new"]},
             {"best": "small", "contenders": ["small", "large", "new", "wide"]},
             {"best": "small", "contenders": ["small", "new"]}],
        "Some of these options cost more than the budget.":
            [{"best": "small", "contenders": ["small"]}, {"best": "new", "contenders": ["small", "large", "new"]},
             {"best": "new", "contenders": ["small", "large", "new"]}, {"best": "new", "contenders": ["large", "new"]},
             {"best": "new", "contenders": ["small", "large", "new"]}, {"best": None, "contenders": []},
             {"best": "new", "contenders": ["small", "large", "new", "wide"]},
             {"best": "small", "contenders": ["small", "large", "new"]}],
        "The errors are independent: they need not be of the same sign.":
            [{"best": "small", "contenders": ["small"]}, {"best": "new", "contenders": ["small"]},
             {"best": "new", "contenders": ["small"]}, {"best": "new", "contenders": ["new"]},
             {"best": None, "contenders": ["small"]}, {"best": None, "contenders": []},
             {"best": "new", "contenders": ["small"]}, {"best": "small", "contenders": ["small"]}],
        "An error may also push an option past the deadline or the budget, or back within them.":
            [{"best": "small", "contenders": ["small"]}, {"best": "new", "contenders": ["large", "new"]},
             {"best": "new", "contenders": ["new"]}, {"best": "new", "contenders": ["large", "new"]},
             {"best": None, "contenders": []}, {"best": None, "contenders": []},
             {"best": "new", "contenders": ["large", "new"]}, {"best": "small", "contenders": ["small", "new"]}],
        "You pay for every GPU.":
            [{"best": "wide", "contenders": ["wide"]}, {"best": "wide", "contenders": ["wide"]},
             {"best": "wide", "contenders": ["wide"]}, {"best": "wide", "contenders": ["wide"]},
             {"best": "wide", "contenders": ["wide"]}, {"best": None, "contenders": []},
             {"best": "wide", "contenders": ["large", "wide"]}, {"best": "wide", "contenders": ["wide"]}],
        "All others may be slower than estimated, too, when an option is at its fastest. And the error is one of the step "
        "time: a time that is 25% longer is a throughput that is 20% lower.":
            [{"best": "small", "contenders": ["small"]}, {"best": "new", "contenders": ["small", "large", "new"]},
             {"best": "new", "contenders": ["small", "large", "new"]}, {"best": "new", "contenders": ["large", "new"]},
             {"best": None, "contenders": ["small", "large", "new"]}, {"best": None, "contenders": []},
             {"best": "new", "contenders": ["small", "large", "new"]}, {"best": "small", "contenders": ["small"]}],
        "An option that misses the deadline or the budget rules out no other one.":
            [{"best": "small", "contenders": []}, {"best": "new", "contenders": []}, {"best": "new", "contenders": []},
             {"best": "new", "contenders": []}, {"best": None, "contenders": []}, {"best": None, "contenders": []},
             {"best": "new", "contenders": ["small", "large", "new"]}, {"best": "small", "contenders": []}],
    })
### BEGIN HIDDEN TESTS
from itertools import product


def decided(options, tokens, days, budget, error):
    """Return the same by trying all combinations of the largest errors."""
    def cheapest(factors):
        possible = []
        for factor, option in zip(factors, options, strict=True):
            seconds = factor * tokens / option["tokens_per_second"]
            bill = seconds / 3600 * option["gpus"] * option["dollars_per_hour"]
            if option["fits"] and seconds <= 86400 * days and bill <= budget:
                possible.append((bill, option["name"]))
        return min(possible)[1] if possible else None

    winners = {cheapest(factors) for factors in product((1 - error, 1 + error), repeat=len(options))}
    return {"best": cheapest([1] * len(options)),
            "contenders": [option["name"] for option in options if option["name"] in winners]}


def drawn_decision(dice):
    tokens, options = dice.uniform(20e9, 300e9), []
    for name in ("a", "b", "c", "d", "e")[:dice.randint(2, 5)]:
        gpus, price = dice.choice([8, 16, 32, 64]), dice.choice([1.5, 4.0, 10.0])
        options.append({"name": name, "gpus": gpus, "dollars_per_hour": price, "fits": dice.random() < 0.8,
                        "tokens_per_second": gpus * price * dice.uniform(900, 1300)})
    dice.shuffle(options)
    hours = [tokens / option["tokens_per_second"] / 3600 for option in options]
    bills = [one * option["gpus"] * option["dollars_per_hour"] for one, option in zip(hours, options, strict=True)]
    return {"options": options, "tokens": tokens, "days": dice.choice(hours) / 24 * dice.uniform(0.9, 1.5),
            "budget": dice.choice(bills) * dice.uniform(0.95, 1.3), "error": dice.uniform(0.01, 0.4)}


check.function(choose_option, cases=[case["drawn"] for case in check.draw(64, drawn=drawn_decision)], expected=decided)
### END HIDDEN TESTS

# %% [raw] mutant="choose-option" hint="does not fit"
# -        return bill if option["fits"] and hours <= 24 * days and bill <= budget else float("inf")
# +        return bill if hours <= 24 * days and bill <= budget else float("inf")

# %% [raw] mutant="choose-option" hint="deadline"
# -        return bill if option["fits"] and hours <= 24 * days and bill <= budget else float("inf")
# +        return bill if option["fits"] and bill <= budget else float("inf")

# %% [raw] mutant="choose-option" hint="of the same sign"
# -    unlucky = [dollars(option, 1 + error) for option in options]
# +    unlucky = lucky

# %% [raw] mutant="choose-option" hint="past the deadline or the budget"
# -    unlucky = [dollars(option, 1 + error) for option in options]
# -    contenders = [option["name"] for place, option in enumerate(options) if lucky[place] < float("inf")
# -                  and all(lucky[place] < unlucky[other] for other in range(len(options)) if other != place)]
# +    unlucky = [bill * (1 + error) for bill in bills]
# +    contenders = [option["name"] for place, option in enumerate(options) if bills[place] < float("inf")
# +                  and all(lucky[place] < unlucky[other] for other in range(len(options)) if other != place)]

# %% [raw] mutant="choose-option" hint="All others may be slower"
# -    unlucky = [dollars(option, 1 + error) for option in options]
# +    unlucky = bills

# %% [raw] mutant="choose-option" hint="one of the step time"
# -    lucky = [dollars(option, 1 - error) for option in options]
# -    unlucky = [dollars(option, 1 + error) for option in options]
# +    lucky = [dollars(option, 1 / (1 + error)) for option in options]
# +    unlucky = [dollars(option, 1 / (1 - error)) for option in options]

# %% [raw] mutant="choose-option" hint="with the best option by the estimates only"
# -                  and all(lucky[place] < unlucky[other] for other in range(len(options)) if other != place)]
# +                  and lucky[place] <= best * (1 + error)]

# %% [raw] mutant="choose-option" hint="more than the budget"
# -        return bill if option["fits"] and hours <= 24 * days and bill <= budget else float("inf")
# +        return bill if option["fits"] and hours <= 24 * days else float("inf")

# %% [raw] mutant="choose-option" hint="rules out no other one"
# -    unlucky = [dollars(option, 1 + error) for option in options]
# +    unlucky = [(1 + error) * tokens / option["tokens_per_second"] / 3600 * option["gpus"] * option["dollars_per_hour"]
# +               for option in options]

# %% [raw] mutant="choose-option" hint="pay for every GPU"
# -        bill = hours * option["gpus"] * option["dollars_per_hour"]
# +        bill = hours * option["dollars_per_hour"]

# %% tags=["explore"]
for error in (0.0, 0.04, 0.1):
    found = choose_option(options, 150e9, DAYS, BUDGET, error)
    print(f"error {error:4.0%}: best {result(found['best'])}; contenders: {', '.join(found['contenders'])}")

# %% [markdown]
# If the first line names a best option, you can afford 7 billion parameters. If it says `None`, none of your options is
# feasible: go back and add a better one, because some layout meets every limit that is drawn (fewer GPUs lose less to
# communication). Now look at 10%: how many contenders are left, and are they all of one GPU model? The estimates alone
# do not tell you which GPUs to rent, and an option that meets the deadline on paper may miss it. At an error of 4%,
# they have still ruled out the 256 A100s; at 10%, even that depends on the options that you added. To decide between
# the others, rent each cluster for an hour, measure the step time, and read the log as in Exercise 2.
#
# **This is the end of the sitting:** you can count what a model costs, read what a run makes of its GPUs, and say what an
# estimate can decide.

# %% [markdown]
# ## The rest of the bill
#
# **From here on, the lab is optional.** A plan has more lines than GPU-hours. How much energy does a run take, how many GPUs
# does its state need, what do failures cost, and is somebody else's plan right?
#
# Energy is power times time. A GPU's rated power is an upper bound for the GPU itself, which draws less while it waits.
# CPUs, network, and cooling come on top of it. And the model has to fit: before any activations, training in bf16 with
# Adam takes 18 bytes per parameter (2 for the bf16 weight, and 4 each for the fp32 gradient, the master weight, and
# Adam's two moments; see [Mixed precision](05_mixed_precision.ipynb)).

# %% tags=["explore"]
for run in published.RUNS:
    dollars = run.gpu_hours * DOLLARS_PER_HOUR[run.card]
    print(f"{run.name:16}{run.gpu_hours * run.watts / 1e6:8,.0f} MWh at {run.watts} W, {dollars / 1e6:6,.1f} million "
          "dollars on demand")
each = state_bytes("bf16").total
for row in published.TABLE_1[::3]:
    shape = {**DENSE, "groups": row.heads, "layers": row.layers, "hidden": row.hidden, "heads": row.heads,
             "ffn": 4 * row.hidden, "vocabulary": 51200, "sequence": 2048}
    size = count_transformer(shape)["parameters"]
    print(f"{row.name:8}{size * each / 1e12:6.2f} TB of model state, at least {-(-size * each // 80e9):4.0f} GPUs "
          "with 80 GB")

# %% [markdown]
# BLOOM's team published the same 433 MWh, computed in the same way ([Luccioni et al.,
# 2022](https://arxiv.org/abs/2211.02001)). DeepSeek's team puts the cost of pretraining at 5.3 million dollars, because
# it assumes 2 dollars per GPU-hour ([DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437), table 1). A price list is an
# assumption like any other.
#
# One last prediction, from the one number that you remember from this lab. MT-NLG has 530 billion parameters and was
# trained on 270 billion tokens ([Smith et al., 2022](https://arxiv.org/abs/2201.11990)). How many days does that take
# on 280 nodes with eight A100s each?

# %% answer="guess-mt-nlg"
### BEGIN SOLUTION
guess_mt_nlg_days = 43.0
### END SOLUTION

# %% tags=["explore"]
run = published.MT_NLG
iterations = run["tokens"] / (run["batch"] * run["sequence"])
check.compare("days on 280 nodes", guess_mt_nlg_days, iterations * run["seconds"] / 86400)

# %% [markdown]
# The published figure behind this is a step time: 60.1 s for 1,920 sequences of 2,048 tokens (section 2.4), so the days
# include no evaluation, checkpoint, or failure. By $6ND$, they are 30% of the peak. A third would have been 43 days.

# %% [markdown]
# ## A run that stops
#
# The more GPUs, the more often something breaks. One of BLOOM's 384 died every week or so, OPT's team lost [about two
# machines a day](https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/final_update.md) out of
# 124, and with 16,384 GPUs, Meta counted 419 unexpected interruptions of Llama 3's training in 54 days, one every three
# hours ([Grattafiori et al., 2024](https://arxiv.org/abs/2407.21783), section 3.3.4). Each one costs the time of a
# restart, and all steps since the last checkpoint.
#
# ### Exercise 4: how often should it save?
#
# Rare checkpoints lose many steps, and frequent ones cost time themselves. Find the best interval for a run whose failures
# you know. Such a run has these properties:
#
# - It is done when its last step is complete, and the evaluation and the checkpoint after it, if they are due. An
#   evaluation of `evaluate` seconds follows every `evaluate_every`-th step, and a checkpoint of `save` seconds every
#   `save_every`-th one, after the evaluation if both are due.
# - `failures` are the times, in ascending order and in seconds since the start, at which everything stops at once,
#   whatever it was: a step, an evaluation, a checkpoint, or a restart.
# - The run continues `restart` seconds after a failure, as if nothing had happened since its last complete checkpoint.
#   Before the first one, that is the very beginning.
#
# Write `time_to_finish(run)`, and with it `best_interval(run, histories)`: each history is a list of failures that the run
# may meet, all are equally likely, and the result is the `save_every` from 1 to `steps` with the shortest mean time to
# finish.

# %% answer="time-to-finish"
def time_to_finish(run):
    """Return the seconds from the start of a run to the end of its last step, evaluation and checkpoint included.

    Args:
        run: a dictionary with "steps", "step" (seconds of one), "evaluate_every", "evaluate", "save_every", "save",
            "failures", and "restart".
    """
    ### BEGIN SOLUTION
    clock, done, saved = 0.0, 0, 0
    failures = list(run["failures"])
    while done < run["steps"]:
        saves = (done + 1) % run["save_every"] == 0
        end = clock + run["step"] + run["evaluate"] * ((done + 1) % run["evaluate_every"] == 0) + run["save"] * saves
        if failures and failures[0] < end:
            done = saved
            clock = failures.pop(0) + run["restart"]
            while failures and failures[0] < clock:
                clock = failures.pop(0) + run["restart"]
        else:
            clock, done = end, done + 1
            saved = done if saves else saved
    return clock
    ### END SOLUTION


def best_interval(run, histories):
    """Return the number of steps between checkpoints with the shortest mean time to finish.

    Args:
        run: as above; its "save_every" and "failures" do not matter.
        histories: lists of failures, all equally likely.
    """
    ### BEGIN SOLUTION
    def total(every):
        return sum(time_to_finish({**run, "save_every": every, "failures": failures}) for failures in histories)

    return min(range(1, run["steps"] + 1), key=total)
    ### END SOLUTION

# %% check="time-to-finish" points=5
CALM = {"steps": 12, "step": 10.0, "evaluate_every": 6, "evaluate": 7.0, "save_every": 4, "save": 3.0, "failures": [],
        "restart": 20.0}
BOTH = {**CALM, "evaluate_every": 4}
LONG = {"steps": 60, "step": 10.0, "evaluate_every": 20, "evaluate": 40.0, "save_every": 20, "save": 15.0, "failures": [],
        "restart": 60.0}
### BEGIN HIDDEN TESTS
from bisect import bisect_right
from itertools import accumulate


def lasts(run):
    """Return the same from one uptime to the next: the last checkpoint that fits into each."""
    def costs(first):
        return list(accumulate(
            run["step"] + (run["evaluate"] if step % run["evaluate_every"] == 0 else 0)
            + (run["save"] if step % run["save_every"] == 0 else 0) for step in range(first + 1, run["steps"] + 1)))

    begin, saved = 0.0, 0
    for failure in run["failures"]:
        if failure < begin:
            begin = failure + run["restart"]
            continue
        ends = costs(saved)
        if not ends or begin + ends[-1] <= failure:
            break
        reached = saved + bisect_right(ends, failure - begin)
        saved = max(saved, reached - reached % run["save_every"])
        begin = failure + run["restart"]
    return begin + (costs(saved) or [0.0])[-1]


def drawn_run(dice):
    step = dice.uniform(1, 100)
    steps = dice.randint(50, 600)
    return {"steps": steps, "step": step, "evaluate_every": dice.randint(5, 60), "evaluate": dice.uniform(1, 10) * step,
            "save_every": dice.randint(3, 40), "save": dice.uniform(0.2, 4) * step,
            "restart": dice.uniform(1, 60) * step,
            "failures": sorted(dice.uniform(0, 1.5 * steps * step) for _ in range(dice.randint(0, 8)))}


### END HIDDEN TESTS
with check.parts():
    with check.part(3, "simulates a run"):
        check.function(
            time_to_finish, cases=[
                *({"run": {**CALM, "failures": failures}} for failures in (
                    [], [35.0], [59.0], [42.0], [75.0, 80.0], [30.0, 140.0])),
                *({"run": {**BOTH, "failures": failures}} for failures in ([45.0], [145.0]))],
            expected=[143.0, 198.0, 179.0, 205.0, 200.0, 260.0, 215.0, 215.0],
            hints={
                "A run does not continue at the step it had reached: the steps since the last checkpoint are lost.":
                    [143.0, 168.0, 169.0, 175.0, 173.0, 190.0, 185.0, 185.0],
                "It resumes from its last checkpoint, not from the very first step.":
                    [143.0, 198.0, 222.0, 205.0, 243.0, 303.0, 215.0, 315.0],
                "A failure hit the run while it was saving. Resume from a checkpoint that is complete.":
                    [143.0, 198.0, 179.0, 162.0, 200.0, 260.0, 215.0, 215.0],
                "A failure may also hit a restart, which then starts over.":
                    [143.0, 198.0, 179.0, 205.0, 195.0, 260.0, 215.0, 215.0],
                "Restarting takes time as well.":
                    [143.0, 178.0, 159.0, 185.0, 180.0, 190.0, 195.0, 195.0],
                "A failure hit an evaluation, and the checkpoint after it did not exist yet.":
                    [143.0, 198.0, 179.0, 205.0, 200.0, 260.0, 165.0, 165.0],
                "A failure may also hit the evaluation after the last step. Then the run is not done.":
                    [143.0, 198.0, 179.0, 205.0, 200.0, 260.0, 215.0, 150.0],
            })
        ### BEGIN HIDDEN TESTS
        check.function(time_to_finish, cases=check.draw(24, run=drawn_run), expected=lasts)
        ### END HIDDEN TESTS
    with check.part(2, "finds the best interval"):
        check.function(
            best_interval, cases=[{"run": LONG, "histories": histories} for histories in (
                [[200.0]], [[150.0, 420.0], [333.0, 339.0, 600.0], [510.0]],
                [[90.0, 95.0, 100.0, 700.0, 705.0], [250.0, 500.0, 750.0], []])],
            expected=[18, 13, 13],
            hints={
                "That is a rule of thumb for failures at random times. Here you know when they happen.": [13, 9, 8],
                "That is the best interval for the first history only.": [18, 13, 44],
                "That loses the fewest steps, but checkpoints take time, too.": [1, 1, 1],
            })
        ### BEGIN HIDDEN TESTS
        for case in check.draw(4, run=lambda dice: {**drawn_run(dice), "steps": dice.randint(20, 60)}, shares=lambda dice: [
                [dice.uniform(0, 1.5) for _ in range(dice.randint(0, 4))] for _ in range(dice.randint(2, 4))]):
            run = case["run"]
            histories = [sorted(one * run["steps"] * run["step"] for one in shares) for shares in case["shares"]]
            means = {every: sum(lasts({**run, "save_every": every, "failures": failures}) for failures in histories)
                     for every in range(1, run["steps"] + 1)}
            found = check.call(best_interval, run, histories)
            check.that(found in means and means[found] <= min(means.values()) * (1 + 1e-9),
                       f"best_interval returns {found} for {run} and {histories}. Another interval has a shorter mean time. "
                       "Here you know when they happen.")
        ### END HIDDEN TESTS

# %% [raw] mutant="time-to-finish" hint="continue at the step"
# -            done = saved
# -            clock = failures.pop(0) + run["restart"]
# +            clock = failures.pop(0) + run["restart"]

# %% [raw] mutant="time-to-finish" hint="from the very first step"
# -            done = saved
# +            done = 0

# %% [raw] mutant="time-to-finish" hint="that is complete"
# -        if failures and failures[0] < end:
# -            done = saved
# +        if failures and failures[0] < end:
# +            done = done + 1 if saves and failures[0] > end - run["save"] else saved

# %% [raw] mutant="time-to-finish" hint="hit a restart"
# -            while failures and failures[0] < clock:
# -                clock = failures.pop(0) + run["restart"]
# +            failures = [one for one in failures if one > clock]

# %% [raw] mutant="time-to-finish" hint="did not exist yet"
# -        if failures and failures[0] < end:
# -            done = saved
# +        if failures and failures[0] < end:
# +            early = saves and failures[0] >= clock + run["step"] + run["save"]
# +            done = saved = done + 1 if early else saved

# %% [raw] mutant="time-to-finish" hint="Then the run is not done"
# -        if failures and failures[0] < end:
# +        if failures and failures[0] < (end if done + 1 < run["steps"] else clock + run["step"]):

# %% [raw] mutant="time-to-finish" hint="Here you know when they happen"
# -    return min(range(1, run["steps"] + 1), key=total)
# +    between = run["steps"] * run["step"] * len(histories) / max(1, sum(map(len, histories)))
# +    return round((2 * run["save"] * between)**0.5 / run["step"])

# %% [raw] mutant="time-to-finish" hint="the first history only"
# -        return sum(time_to_finish({**run, "save_every": every, "failures": failures}) for failures in histories)
# +        return time_to_finish({**run, "save_every": every, "failures": histories[0]})

# %% [raw] mutant="time-to-finish" hint="checkpoints take time, too"
# -        return sum(time_to_finish({**run, "save_every": every, "failures": failures}) for failures in histories)
# +        return sum(time_to_finish({**run, "save_every": every, "failures": failures, "save": 0.0}) for failures in histories)

# %% [raw] mutant="time-to-finish" hint="Restarting takes time"
# -            clock = failures.pop(0) + run["restart"]
# -            while failures and failures[0] < clock:
# -                clock = failures.pop(0) + run["restart"]
# +            clock = failures.pop(0)

# %% [markdown]
# Does your simulation explain BLOOM's 118 days ([Luccioni et al., 2022](https://arxiv.org/abs/2211.02001), table 1)?
# The chronicle has the figures: evaluations of 12 minutes every 1,000 iterations, checkpoints of 40 seconds every 100,
# and 20 billion tokens in the first week, while the batch size ramped up. It reports that a GPU died "every week or
# so". It does not say how long a restart took, so assume an hour.

# %% tags=["explore"] short={"range(40)": "range(2)"}
day = 86400
steps = round((366e9 - 20e9) / (2048 * 2048))
calm = {"steps": steps, "step": 105.22, **published.BLOOM_PAUSES, "failures": [], "restart": 3600.0}
weekly = {**calm, "failures": [7 * day * week for week in range(1, 20)]}
draws, outages = random.Random(7), [0.0]
while outages[-1] < 1000 * day:  # longer than any of these runs
    outages.append(outages[-1] + draws.expovariate(1 / (3 * 3600)))
often = {**calm, "failures": outages[1:]}
print(f"steps alone {7 + steps * 105.22 / day:6.1f} days")
for name, run in {"evaluations and checkpoints too": calm, "and a failure every week": weekly,
                  "or one every three hours on average, as in Llama 3's training": often,
                  "the same, with a checkpoint every 10 steps": {**often, "save_every": 10},
                  "and restarts of ten minutes": {**often, "save_every": 10, "restart": 600.0}}.items():
    print(f"{name}: {result(f'{7 + time_to_finish(run) / day:.1f} days')}")
print(f"published {published.BLOOM_DAYS} days")
histories = [[one - 5 * day * number for one in outages[1:] if 5 * day * number <= one < 5 * day * (number + 1)]
             for number in range(40)]
print("the best interval for 200 steps, over 40 histories of five days with such failures: "
      + result(f"{best_interval({**often, 'steps': 200}, histories)} steps"))

# %% [markdown]
# A weekly failure explains little. The chronicle names other causes: maintenance, a GPU that slowed all others down by
# 5%, and hangs that took up to 18 hours of training each until they were fixed. OPT's team lost more: 33 days of
# computation [took about two months](https://arxiv.org/abs/2205.01068), with at least 35 manual restarts. Plan for
# that, and for the runs before the final one, which none of these figures includes.
#
# Failures every three hours are another matter. With almost three hours between checkpoints, as in BLOOM's run, they
# would have more than doubled the time. The more GPUs you have, the more often you save. Before a run, its failures are
# not known. Suppose they come at random, with a mean time $M$ between them, and a checkpoint takes $\delta$ seconds.
# One every $\tau$ seconds costs the fraction $\delta/\tau$ of the time, and each failure loses half an interval on
# average, which is the fraction $\tau/2M$. The sum is smallest at $\tau = \sqrt{2 \delta M}$ ([Young,
# 1974](https://doi.org/10.1145/361147.361115); [Daly, 2006](https://doi.org/10.1016/j.future.2004.11.016)), which is 9
# steps here. Your `best_interval` found one close to it by trying: near its minimum, the mean time hardly depends on
# the interval. What remains is mostly the restarts, so make them short. Llama 3's team did, and spent more than 90% of
# the elapsed time on training in spite of its 419 interruptions.

# %% [markdown]
# ## A plan with errors
#
# A colleague sends you the next plan. Its model is the paper's 18.4B, and its step time follows from the paper's 135
# TFLOP/s. Three of its six results are wrong. Find them with your own tools before you go on.

# %% tags=["explore"]
GPT_18B = {**DENSE, "groups": 48, "layers": 40, "hidden": 6144, "heads": 48, "ffn": 24576, "vocabulary": 51200,
           "sequence": 2048}
flops = 96 * 1024 * 1048 * 40 * 6144**2 * (1 + 1048 / (6 * 6144) + 51200 / (16 * 40 * 6144))
PLAN = {"model": GPT_18B, "batch": 1024, "recompute": True, "gpus": 256, "step_seconds": 9.4, "peak": 312.0,
        "tokens": 370e9, "dollars_per_hour": 5.12, "parameters": 18.4e9, "step_flops": flops,
        "teraflops": flops / (256 * 9.4 * 10e12)}
PLAN["days"] = 8 * 370e9 * 18.4e9 / (256 * 312e12) / 86400
PLAN["gpu_hours"] = 24 * 256 * PLAN["days"]
PLAN["dollars"] = 5.12 * PLAN["gpu_hours"]
for name in ("parameters", "step_flops", "teraflops", "days", "gpu_hours", "dollars"):
    print(f"{name:12} {PLAN[name]:.4g}")

# %% [markdown]
# ### Exercise 5: an auditor
#
# Write `audit`, which returns the names of a plan's wrong results. Recompute each result from the plan's inputs
# (`model` to `dollars_per_hour`) and from the results above it, **as the plan states them**: a result that uses a wrong
# figure correctly is not a second error.
#
# | result | what it should be |
# |---|---|
# | `parameters` | parameters of the model |
# | `step_flops` | FLOPs of a step, including recomputation if the plan uses it |
# | `teraflops` | achieved throughput per GPU, in TFLOP/s |
# | `days` | time for all `tokens` by equation 4, at the achieved throughput; 6 instead of 8 without recomputation |
# | `gpu_hours` | GPU-hours of all GPUs |
# | `dollars` | price of these GPU-hours |
#
# Accept errors of up to 10%, because equation 4 itself is an approximation.

# %% answer="audit"
def audit(plan):
    """Return the names of the results that do not follow, in the order of the table."""
    ### BEGIN SOLUTION
    counted = count_transformer(plan["model"], plan["batch"], plan["recompute"])
    work = (8 if plan["recompute"] else 6) * plan["tokens"] * plan["parameters"]
    follows = {
        "parameters": counted["parameters"],
        "step_flops": counted["flops"],
        "teraflops": plan["step_flops"] / plan["step_seconds"] / plan["gpus"] / 1e12,
        "days": work / (plan["gpus"] * plan["teraflops"] * 1e12) / 86400,
        "gpu_hours": 24 * plan["gpus"] * plan["days"],
        "dollars": plan["gpu_hours"] * plan["dollars_per_hour"],
    }
    return [name for name, value in follows.items() if abs(plan[name] / value - 1) > 0.1]
    ### END SOLUTION

# %% tags=["check-setup"]
def made_plan(dice, errors):
    """Return a plan whose results have errors: those named in `errors`. The others are rounded generously."""
    def about(value):
        return value * dice.uniform(0.95, 1.05)

    heads, layers, width = dice.choice([16, 32, 48]), dice.randint(20, 60), dice.choice([96, 128])
    h, s, batch = heads * width, dice.choice([1024, 2048]), dice.choice([256, 512, 1024])
    gpus, recompute, peak = dice.choice([64, 128, 256]), dice.random() < 0.6, dice.choice([312.0, 989.4])
    model = {"layers": layers, "hidden": h, "heads": heads, "groups": heads, "ffn": 4 * h, "gated": False, "experts": 1,
             "chosen": 1, "vocabulary": 51200, "sequence": s, "learned": True, "tied": True, "biases": True}

    def step(length, passes):
        return batch * length * (passes * layers * (24 * h * h + 4 * length * h) + 6 * h * 51200)

    passes = 4 if recompute else 3
    seconds = step(s, passes) / (gpus * peak * 1e12 * dice.uniform(0.3, 0.55))
    made = {"model": model, "batch": batch, "recompute": recompute, "gpus": gpus, "step_seconds": seconds, "peak": peak,
            "tokens": dice.uniform(50, 500) * 1e9, "dollars_per_hour": dice.uniform(1, 12),
            "parameters": about(12 * layers * h * h * (1.25 if "parameters" in errors else 1) + 51200 * h + s * h)}
    wrong = dice.choice([step(s // 2 + 24, passes), step(s, 1)])  # a length that is misread, or no backward pass
    made["step_flops"] = about(wrong if "step_flops" in errors else step(s, passes))
    made["teraflops"] = about(made["step_flops"] / (seconds * gpus * (10e12 if "teraflops" in errors else 1e12)))
    rate = peak if abs(peak / made["teraflops"] - 1) > 0.3 else 3 * peak
    days = 2 * passes * made["tokens"] * made["parameters"] / (gpus * 1e12) / 86400
    made["days"] = about(days / (rate if "days" in errors else made["teraflops"]))
    made["gpu_hours"] = about(24 * made["days"] * (gpus // 8 if "gpu_hours" in errors else gpus))
    made["dollars"] = about(made["gpu_hours"] * made["dollars_per_hour"] * (gpus if "dollars" in errors else 1))
    return made

# %% check="audit" points=4
RESULTS = ("parameters", "step_flops", "teraflops", "days", "gpu_hours", "dollars")
NEXT = {"step_flops": "teraflops", "parameters": "days", "teraflops": "days", "days": "gpu_hours", "gpu_hours": "dollars"}


def require_found(plan, errors):
    """Require exactly the results that do not follow."""
    found = check.call(audit, plan)
    check.that(isinstance(found, list) and found == [name for name in RESULTS if name in found], (
        f"audit returns {found}. Return a list of names, in the order of the table."))
    stated = ", ".join(f"{name} {plan[name]:.4g}" for name in RESULTS)
    said = (f"A plan {'with' if plan['recompute'] else 'without'} recomputation on {plan['gpus']} GPUs that states {stated}: "
            f"audit returns {found}. ")
    extra, missing = ([name for name in RESULTS if name in one and name not in other]
                      for one, other in ((found, errors), (errors, found)))
    check.that(not extra or extra[0] not in ("parameters", "step_flops"), said + (
        f"{' '.join(extra[:1])} is off by less than 10%, which the table accepts. It follows from the model, the batch, and "
        "whether the plan recomputes."))
    check.that(not extra or not any(NEXT.get(name) in extra for name in (*errors, *extra)), said + (
        "Each result follows from those above it as the plan states them. You blame lines that only copied a difference."))
    check.that("days" not in extra + missing, said + (
        "`days` follows from the throughput that the plan states, not from the peak, and takes 8 FLOPs per parameter and token "
        "only if the plan recomputes."))
    check.that(found == errors, said + (
        "Something follows that you name, or does not follow and you do not name it. A result may be too high or too low, "
        "`gpu_hours` are those of all GPUs, and a price is one of a GPU-hour."))


for seed, errors in ((1, []), (4, []), (0, ["step_flops"]), (2, ["teraflops"]), (3, ["days"]), (4, ["gpu_hours", "dollars"]),
                     (5, ["parameters", "teraflops"])):
    require_found(made_plan(random.Random(seed), errors), errors)
### BEGIN HIDDEN TESTS
for case in check.draw(24, errors=lambda dice: [name for name in RESULTS if dice.random() < 0.3], seed=range(10**9)):
    require_found(made_plan(random.Random(case["seed"]), case["errors"]), case["errors"])
### END HIDDEN TESTS

# %% [raw] mutant="audit" hint="as the plan states them"
# -        "teraflops": plan["step_flops"] / plan["step_seconds"] / plan["gpus"] / 1e12,
# -        "days": work / (plan["gpus"] * plan["teraflops"] * 1e12) / 86400,
# -        "gpu_hours": 24 * plan["gpus"] * plan["days"],
# -        "dollars": plan["gpu_hours"] * plan["dollars_per_hour"],
# -    }
# +    }
# +    follows["teraflops"] = counted["flops"] / plan["step_seconds"] / plan["gpus"] / 1e12
# +    work = (8 if plan["recompute"] else 6) * plan["tokens"] * counted["parameters"]
# +    follows["days"] = work / (plan["gpus"] * follows["teraflops"] * 1e12) / 86400
# +    follows["gpu_hours"] = 24 * plan["gpus"] * follows["days"]
# +    follows["dollars"] = follows["gpu_hours"] * plan["dollars_per_hour"]

# %% [raw] mutant="audit" hint="only if the plan recomputes"
# -    work = (8 if plan["recompute"] else 6) * plan["tokens"] * plan["parameters"]
# +    work = 6 * plan["tokens"] * plan["parameters"]

# %% [raw] mutant="audit" hint="only if the plan recomputes"
# -    work = (8 if plan["recompute"] else 6) * plan["tokens"] * plan["parameters"]
# +    work = 8 * plan["tokens"] * plan["parameters"]

# %% [raw] mutant="audit" hint="only copied a difference"
# -        "teraflops": plan["step_flops"] / plan["step_seconds"] / plan["gpus"] / 1e12,
# +        "teraflops": counted["flops"] / plan["step_seconds"] / plan["gpus"] / 1e12,

# %% [raw] mutant="audit" hint="whether the plan recomputes"
# -    counted = count_transformer(plan["model"], plan["batch"], plan["recompute"])
# +    counted = count_transformer(plan["model"], plan["batch"])

# %% [raw] mutant="audit" hint="in the order of the table"
# -    return [name for name, value in follows.items() if abs(plan[name] / value - 1) > 0.1]
# +    return sorted(name for name, value in follows.items() if abs(plan[name] / value - 1) > 0.1)

# %% [raw] mutant="audit" hint="too high or too low"
# -    return [name for name, value in follows.items() if abs(plan[name] / value - 1) > 0.1]
# +    return [name for name, value in follows.items() if plan[name] / value - 1 > 0.1]

# %% [raw] mutant="audit" hint="not from the peak"
# -        "days": work / (plan["gpus"] * plan["teraflops"] * 1e12) / 86400,
# +        "days": work / (plan["gpus"] * plan["peak"] * 1e12) / 86400,

# %% [raw] mutant="audit" hint="which the table accepts"
# -    return [name for name, value in follows.items() if abs(plan[name] / value - 1) > 0.1]
# +    return [name for name, value in follows.items() if abs(plan[name] / value - 1) > 0.01]

# %% tags=["explore"]
print("does not follow:", bad(", ".join(audit(PLAN))))

# %% [markdown]
# All three errors come from an exercise of the classic course that this one follows, and each has a lesson. The
# sequence length of 1,048 is a typo for 2,048 that cuts the FLOPs in half, so look twice at a size that is almost a
# power of two. `10e12` is ten trillion; write `1e12`. And no GPU reaches its peak, so the plan promises 8 days for a
# run that takes 18. You cannot judge whether 1.6e17 FLOPs per step is plausible, so turn it into a quantity that
# you can judge: 6.7 TFLOP/s is 2% of an A100's peak, and no large model should be that slow.

# %% [markdown]
# ## Discuss
#
# 1. **What the bill leaves out.** Your plan states a number of days. Why will the training take longer, and how much
#    longer would you allow for?
# 2. **A larger batch.** With twice the GPUs and twice the global batch, the efficiency stays the same, so the run takes
#    half the days for the same price. What is wrong with this argument?
#
# ## Summary
#
# - Each weight costs six FLOPs per token that passes through it in a training step, and eight with full recomputation.
#   In GPT-2's block, attention adds a fraction of $s/6h$.
# - HFU, MFU, and overall utilization are three different numbers. Say which one you report.
# - By $6ND$ and all their GPU-hours, large runs reach about a third of the 16-bit peak if failures cost little time,
#   and a fifth if they cost a lot.
# - A failure costs a restart and the steps since the last checkpoint. The shorter the time between failures, the more
#   often you save.
# - Check a plan line by line, and a decision by whether the error of its estimates could change it.
#
# ## Read next
#
# - [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473), *Efficient large-scale language model training on GPU
#   clusters using Megatron-LM*: the ten models, with the derivation of both equations in its appendix.
# - [Hoffmann et al., 2022](https://arxiv.org/abs/2203.15556), *Training compute-optimal large language models*: how to
#   divide a budget between parameters and tokens.
# - [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311), *PaLM*: why MFU, and not HFU, compares systems
#   (appendix B).
# - [BLOOM's chronicle](https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md)
#   and [OPT's](https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles): what happens between
#   the steps.
# - [McCandlish et al., 2018](https://arxiv.org/abs/1812.06162), *An empirical model of large-batch training*: the
#   critical batch size.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded.
#
# **Next:** the state of a trillion parameters does not fit on one GPU, and not on two hundred. Divide it among all of
# them in [Sharding](08_sharding.ipynb).
