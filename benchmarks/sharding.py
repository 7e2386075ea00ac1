"""Compare the trainer's estimates of fully sharded data parallelism with published measurements.

    python -m benchmarks.sharding      prints the tables of benchmarks/results/sharding.md

The rows are those of other programs in benchmarks/published that the trainer's flags can express:
Llama under FSDP, without recomputation or with full recomputation. Nothing was fitted to them with
this program. virtual_accuracy.md predicts the same rows by running a program like the one that was
measured. The trainer differs from that one: it reduces gradients in fp32, and has its own kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean

from benchmarks.accuracy.rows import RowSet, card_of, cluster_of, load_sets, published_seconds
from benchmarks.accuracy.trainer import estimator
from minimegatron.arguments import parse_arguments
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.formulas import Gpt, step_flops, teraflops
from virtualgpu.core import stacks

SETS = ("torchtitan_a100", "fms_fsdp_a100", "kempner_h200")
SHARDED = """--attention-dropout 0 --hidden-dropout 0 --bf16 --timing-log-level 0
    --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce
    --overlap-param-gather --lr 1e-4 --train-iters 1 --data-path - --vocab-file - --merge-file -"""
FLAGS = f"""--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights --use-flash-attn {SHARDED}"""
# Zhao et al. 2023, section 5.4: TFLOPS per A100 for GPT-175B (minGPT) on up to 512 of them, by the
# sequences of 2,048 tokens per GPU, with full sharding, prefetching, and recomputation.
PAPER, PAPER_GPUS, PAPER_VOCABULARY = {1: 173, 2: 186}, 512, 50_000
PAPER_FLAGS = f"""--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048
    --max-position-embeddings 2048 --untie-embeddings-and-output-weights
    --recompute-granularity full --recompute-method uniform {SHARDED}"""
SIZES = {"--num-layers": "layers", "--hidden-size": "hidden", "--num-attention-heads": "heads",
         "--ffn-hidden-size": "inner", "--seq-length": "sequence",
         "--max-position-embeddings": "sequence", "--micro-batch-size": "micro_batch"}


def flags_of(row: Mapping, per_node: int) -> list[str]:
    """Return the trainer's flags of a row, on nodes with `per_node` GPUs."""
    batch = row["micro_batch"] * row["gpus"] * row.get("accumulation", 1)
    flags = [*FLAGS.split(), "--global-batch-size", str(batch)]
    flags += [word for name, key in SIZES.items() for word in (name, str(row[key]))]
    if row["groups"] != row["heads"]:
        flags += ["--group-query-attention", "--num-query-groups", str(row["groups"])]
    if row["checkpointing"] == "full":
        flags += ["--recompute-granularity", "full", "--recompute-method", "uniform"]
    if row.get("sharding") == "hybrid":  # within a node
        flags += ["--num-distributed-optimizer-instances", str(row["gpus"] // per_node)]
    return flags


def expressible(rows: RowSet) -> Iterator[Mapping]:
    """Yield the rows that the trainer's flags can express."""
    for row in rows.rows:
        if row["checkpointing"] in ("none", "full") and row.get("fits", True):
            yield row


def seconds(rows: RowSet, row: Mapping, own_stack: bool) -> float:
    """Return the estimated seconds of a row's step.

    Args:
        rows: the row's set.
        row: the row.
        own_stack: whether to take the trainer's software stack instead of the row's.
    """
    card = card_of(rows.facts, row)
    if own_stack:
        card = stacks.card_under(rows.facts["gpu"], stacks.default_megatron(card))
    network = row.get("network") or rows.facts.get("network")
    per_node = cluster_of(row, card).per_node
    environment = {"RANK": "0", "WORLD_SIZE": str(row["gpus"])}
    config = parse_arguments(flags_of(row, per_node), environment)
    model = estimator(card, network, per_node)
    return model.estimate(config, pad_vocab_size(row["vocabulary"], 128, 1)).seconds


def paper_rows() -> Iterator[tuple[int, float, float, float]]:
    """Yield sequences per GPU, the published TFLOPS, and the modeled ones, which count a layer's
    recomputation, or do not."""
    card = stacks.card_under("a100-80gb", "torch-eager-fsdp")
    for sequences, published in PAPER.items():
        flags = [*PAPER_FLAGS.split(), "--micro-batch-size", str(sequences)]
        config = parse_arguments(flags, {"RANK": "0", "WORLD_SIZE": str(PAPER_GPUS)})
        vocabulary = pad_vocab_size(PAPER_VOCABULARY, 128, 1)
        estimate = estimator(card, "infiniband:8x200gbit", 8).estimate(config, vocabulary)
        gpt = Gpt(96, 12288, 96, 2048, vocabulary)
        yield sequences, published, *(
            teraflops(step_flops(gpt, sequences, recompute), estimate.seconds)
            for recompute in ("full", None))


def main() -> None:
    sets = {rows.name: rows for rows in load_sets()}
    errors: dict[str, list[float]] = {"stack of the row": [], "trainer's own": []}
    print("| set | row | recomputation | sharding | published s | " + " | ".join(errors) + " |")
    print("|---|---|---|---|---|---|---|")
    for name in SETS:
        for row in expressible(sets[name]):
            published, cells = published_seconds(row), []
            for own_stack, collected in enumerate(errors.values()):
                found = seconds(sets[name], row, bool(own_stack))
                collected.append(found / published - 1)
                cells.append(f"{found:.2f} s ({collected[-1]:+.1%})")
            print(f"| {name} | {row['name']} on {row['gpus']} | {row['checkpointing']} | "
                  f"{row.get('sharding', 'full')} | {published:.2f} | {' | '.join(cells)} |")
    for stack, collected in errors.items():
        print(f"\n{stack}: mean absolute error {mean(map(abs, collected)):.1%}, "
              f"bias {mean(collected):+.1%}")
    print("\n| GPT-175B, sequences per GPU | published TFLOPS | with recomputation | without |")
    print("|---|---|---|---|")
    for sequences, published, *modeled in paper_rows():
        cells = (f"{found:.0f} ({found / published - 1:+.1%})" for found in modeled)
        print(f"| {sequences} | {published} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
