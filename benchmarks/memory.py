"""Memory that recomputation and the distributed optimizer save, compared with the formulas.

python benchmarks/memory.py

The peak of the resident set, from the trainer's memory line: differences between two runs, since
what torch itself takes is in both.
"""

from __future__ import annotations

import re

from runs import data_flags, pretrain

from minimegatron.formulas import Gpt, layer_activations, parameters, state_bytes

LAYERS, HIDDEN, HEADS, LENGTH, BATCH, VOCABULARY = 8, 512, 8, 512, 8, 320
GPT = Gpt(LAYERS, HIDDEN, HEADS, LENGTH, VOCABULARY)
MODEL = (f"--num-layers {LAYERS} --hidden-size {HIDDEN} --num-attention-heads {HEADS} "
         f"--seq-length {LENGTH} --max-position-embeddings {LENGTH} --eval-iters 0 --lr 1e-4 "
         "--train-iters 2 --log-interval 1 --attention-dropout 0 --hidden-dropout 0 "
         "--make-vocab-size-divisible-by 64 ")
WIDE = 4096  # of the model whose optimizer states count
STATES = Gpt(1, WIDE, HEADS, 16, VOCABULARY)
LARGE = (f"--num-layers 1 --hidden-size {WIDE} --num-attention-heads {HEADS} --seq-length 16 "
         "--max-position-embeddings 16 --eval-iters 0 --lr 1e-4 --train-iters 2 --log-interval 1 "
         "--micro-batch-size 1 --make-vocab-size-divisible-by 64 ")


def peak(ranks: int, flags: str) -> float:
    """Bytes: the largest resident set of rank 0."""
    printed = pretrain(ranks, flags, threads=2 // ranks)
    lines = re.findall(r"\[Rank 0\].*\| max allocated: ([\d.]+)", printed)
    return max(map(float, lines)) * 2**20


def show(what: str, measured: float, formula: float) -> None:
    print(f"{what:34} saves {measured / 2**20:7.0f} MB, by the formulas {formula / 2**20:7.0f} MB "
          f"({measured / formula - 1:+.0%})", flush=True)


def kept(recompute: str | None) -> float:
    return LAYERS * layer_activations(GPT, BATCH, recompute=recompute, bytes_each=4,
                                      attention_dropout=False, hidden_dropout=False)


def main() -> None:
    with data_flags() as data:
        plain = peak(1, f"{MODEL} --micro-batch-size {BATCH} {data}")
        for granularity, flags in (("selective", ""), ("full", "--recompute-method uniform")):
            saved = plain - peak(1, f"{MODEL} --micro-batch-size {BATCH} {data} "
                                    f"--recompute-granularity {granularity} {flags}")
            formula = kept(None) - kept(granularity)
            if granularity == "full":  # one layer's activations are there again in its backward
                formula -= kept(None) / LAYERS
            show(f"--recompute-granularity {granularity}", saved, formula)
        saved = peak(2, LARGE + data) - peak(2, f"{LARGE} --use-distributed-optimizer "
                                             f"--ddp-bucket-size 10000000 {data}")
        each = [state_bytes("fp32", 2, shard).total for shard in (False, True)]
        show("--use-distributed-optimizer, d = 2", saved, (each[0] - each[1]) * parameters(STATES))


if __name__ == "__main__":
    main()
