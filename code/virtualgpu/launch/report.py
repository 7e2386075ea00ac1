"""The report that a run prints at its end, and writes with `--json`.

docs/virtualrun-report.md describes the file; VERSION (export/measures.py) changes with its meaning.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from virtualgpu.core import accuracy, stacks
from virtualgpu.core.memory import amount
from virtualgpu.export.measures import VERSION
from virtualgpu.export.saving import save
from virtualgpu.launch.cluster import Cluster
from virtualgpu.launch.inference_lines import inference, ms
from virtualgpu.launch.result import Rank

SCHEMA = "virtualgpu.report"
UNITS = {"*seconds": "seconds of modeled time", "*bytes": "bytes", "at_peak": "bytes",
         "*_per_step": "FLOPs or tokens of one step of one rank", "peak_tflops": "10^12 FLOP/s",
         "per_second": "tokens per second of one rank", "mfu": "fraction of the peak",
         "hfu": "fraction of the peak", "share_of_kernel_time": "fraction"}


def show(cluster: Cluster, ranks: Sequence[Rank]) -> None:
    """Print the figures of the slowest rank, the memory of the fullest, and every assumption.

    Args:
        cluster: the GPUs.
        ranks: the results.
    """
    say(f"{cluster}: times and memory are modeled, not measured")
    for text in dict.fromkeys(map(stacks.describe, cluster.kinds)):
        say(f"software stack {text}")
    accounts = [rank.account for rank in ranks if rank.account is not None]
    if accounts:
        slow = slowest(accounts)
        full = max(accounts, key=lambda one: one["memory"]["peak_allocated_bytes"])
        title(slow, "the slowest of", len(accounts))
        for line in figures(slow):
            say(f"  {line}")
        if full is not slow and full["memory"] != slow["memory"]:
            title(full, "the highest peak memory of", len(accounts))
        for line in memory(full["memory"]):
            say(f"  {line}")
        for line in without_rule(slow["without_cost_rule"]):
            say(f"  {line}")
    for line in assumed(accounts):
        say(f"  assumed        {line}")
    for line in warnings(ranks):
        say(f"  warning        {line}")


def title(account: dict, what: str, ranks: int) -> None:
    """Print which rank the next lines are about."""
    if ranks > 1:
        say(f"rank {account['rank']}, {what} {ranks}:")


def slowest(accounts: Sequence[dict]) -> dict:
    """Return the rank with the longest step or, without steps, the longest run."""
    return max(accounts, key=lambda one: (one["step"] or one)["seconds"])


def figures(account: dict) -> Iterator[str]:
    """Yield the lines about a rank's time, throughput, and communication."""
    step = account["step"]
    yield f"run            {ms(account['seconds'])} of modeled time"
    if account["inference"] is not None:
        yield from inference(account["inference"], account["gpu"]["name"])
        return
    if step is None:
        if account["error"] is None:
            yield ("step           not found: no torch.optim optimizer ran, and no sequence of "
                   "operations repeats; call virtualgpu.mark_step() at the end of each step")
        return
    yield f"step           {ms(step['seconds'])}, {spread(step)}; found by {step['found_by']}"
    if account["tokens"]:
        yield f"tokens/s       {account['tokens']['per_second']:,.0f} on this rank"
    if account["flops"]:
        yield f"MFU            {utilization(account['flops'])}"
    communication = account["communication"]
    average = " (the average of the run)" if communication["average_over_run"] else ""
    waiting = communication["exposed_seconds"]
    share = f", {waiting / step['seconds']:.1%} of the step" if step["seconds"] else ""
    yield f"exposed comm.  {ms(waiting)} per step{share}{average}"


def spread(step: dict) -> str:
    """Return a phrase with the number of steps that the typical one represents, and their range."""
    if step["count"] == 1:
        return "the only step"
    first = f"excluding the first, {ms(step['first_seconds'])}"
    if step["count"] == 2:
        return f"the second of 2 steps ({first})"
    return (f"the median of {step['count'] - 1} steps ({first}), {ms(step['shortest_seconds'])} to "
            f"{ms(step['longest_seconds'])}")


def utilization(flops: dict) -> str:
    peaks = ", ".join(f"{tflops:g} TFLOP/s {dtype}"
                      for dtype, tflops in flops["peak_tflops"].items())
    again = (f"; HFU (including recomputation) {flops['hfu']:.1%}"
             if flops["recomputed_per_step"] else "")
    return f"{flops['mfu']:.1%} of {peaks}{again}"


def memory(figures: dict) -> Iterator[str]:
    """Yield the lines about peak memory, by category."""
    yield (f"peak memory    {amount(figures['peak_allocated_bytes'])} allocated, "
           f"{amount(figures['peak_reserved_bytes'])} reserved, of "
           f"{amount(figures['capacity_bytes'])}")
    parts = sorted(figures["at_peak"].items(), key=lambda part: -part[1])
    if figures["peak_allocated_bytes"]:
        yield "  at the peak  " + ", ".join(f"{name.replace('_', ' ')} {amount(size)}"
                                            for name, size in parts if size)
    yield (f"  non-PyTorch  CUDA context {amount(figures['context_bytes'])}, "
           f"NCCL {amount(figures['nccl_bytes'])}")


def without_rule(figures: dict) -> Iterator[str]:
    """Yield a line about operations without a cost rule, if there are any."""
    if figures["operations"]:
        names = ", ".join(f"{one['name']} ({one['calls']} calls, {ms(one['seconds'])})"
                          for one in figures["operations"])
        yield (f"no cost rule   {figures['share_of_kernel_time']:.2%} of kernel time, costed "
               f"as elementwise operations: {names}")


def assumed(accounts: Sequence[dict]) -> Iterator[str]:
    """Yield every assumption once, with the largest number of times that a rank made it."""
    counts: Counter[tuple] = Counter()
    for account in accounts:
        for one in account["assumptions"]:
            key = one["text"], one["file"], one["line"]
            counts[key] = max(counts[key], one["times"])
    for (text, file, line), count in counts.items():
        yield ((f"{file}:{line}: " if file else "") + text
               + (f" ({count} times)" if count > 1 else ""))


def warnings(ranks: Sequence[Rank]) -> list[str]:
    """Return warnings about values (--assume) that no rank needed."""
    measured = [rank for rank in ranks if rank.account is not None]
    return [f"--assume {one} had no effect: {one.file}, line {one.line} never needed a value that "
            "was not computed" for one in (measured[0].unused if measured else ())
            if all(one in rank.unused for rank in measured)]


def write(path: str, cluster: Cluster, ranks: Sequence[Rank]) -> None:
    """Write the figures of all ranks atomically.

    Args:
        path: path of the file.
        cluster: the GPUs.
        ranks: the results of the ranks that were processes.
    """
    accounts = [rank.account or {"rank": rank.rank, "error": rank.error} for rank in ranks]
    measured = [rank.account for rank in ranks if rank.account is not None]
    data = {"schema": SCHEMA, "version": VERSION, "modeled": True, "units": UNITS,
            "gpu": ",".join(card.name for card in cluster.kinds),
            "software_stack": cluster.card.stack,
            "expected_error": accuracy.expected_error(cluster.kinds), "world_size": cluster.world,
            "gpus_per_node": cluster.per_node, "nodes": cluster.nodes, "link": cluster.link,
            "slowest_rank": slowest(measured)["rank"] if measured else None,
            "warnings": warnings(ranks), "ranks": accounts}
    save(Path(path), json.dumps(data, indent=1, allow_nan=False))


def say(text: str) -> None:
    print(f"virtualrun: {text}", file=sys.stderr, flush=True)
