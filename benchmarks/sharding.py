"""Compare the trainer's estimates of fully sharded data parallelism with published measurements.

    python -m benchmarks.sharding      prints the table of benchmarks/results/sharding.md

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
from virtualgpu.core import stacks

SETS = ("torchtitan_a100", "fms_fsdp_a100", "kempner_h200")
FLAGS = """--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights --use-flash-attn --attention-dropout 0 --hidden-dropout 0
    --bf16 --timing-log-level 0 --use-megatron-fsdp --data-parallel-sharding-strategy
    optim_grads_params --overlap-grad-reduce --overlap-param-gather --lr 1e-4 --train-iters 1
    --data-path - --vocab-file - --merge-file -"""
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


if __name__ == "__main__":
    main()
