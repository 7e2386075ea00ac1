"""Cases for lab 14: a model on a cluster with several kinds of GPUs, as virtual GPUs measure it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline_schedules import Drawing
    from virtualgpu.core.card import Card
    from virtualgpu.net.network import Link


def case(cluster: str, model: str, global_batch: int, *, micro_batch: int = 1,
         replicas: Sequence[int] = (1, 2, 4), sequence: int = 0) -> dict[str, Any]:
    """Return a case (labkit.contest.mixed_clusters.CASE), with times in fp16 on virtual GPUs.

    Args:
        cluster: KIND:GPUSxNODES for each kind of node, as in "a100:4x2,a10:4x4".
        model: such as "gpt2-xl".
        global_batch: micro-batches per step, over all replicas.
        micro_batch: samples per micro-batch.
        replicas: the numbers of replicas that a plan may use.
        sequence: tokens per sample; 0 means the model's own.

    Raises:
        VirtualGpuError: the text describes no cluster.
        LabError: there is no such model.
    """
    from labkit.contest.contests.plans import RESERVED
    from layout_estimator.cluster_planner.models import SHAPES, model_flags
    from layout_estimator.cluster_planner.profiles import Key
    from layout_estimator.cluster_planner.virtual import VirtualProfiles
    from minimegatron.formulas import state_bytes
    from virtualgpu.net.cluster_spec import parse_cluster
    from virtualgpu.net.network import parse

    nodes, flags = parse_cluster(cluster), model_flags(model)
    layers, hidden, _, usual, _ = SHAPES[model]
    sequence = sequence or usual
    flags += ["--fp16", "--timing-log-level", "0", "--seq-length", str(sequence),
              "--max-position-embeddings", str(sequence)]
    slowest = min((parse(group.card.network) for group in nodes), key=lambda link: link.effective)
    profiles = VirtualProfiles(flags, {group.card.name: group.per_node for group in nodes})
    parts = [profiles.get(Key(group.card.name, 1, micro_batch, "none")) for group in nodes]
    layer, each = parts[0].layer, state_bytes("fp16")
    gradients = each.gradients * layer.parameters / 1e9
    kinds = {}
    for group, profile, part in zip(nodes, parts, cluster.split(","), strict=True):
        card = group.card
        times = {name: [round(1000 * one.forward, 3), round(1000 * one.backward, 3)]
                 for name, one in vars(profile).items()}
        kinds[part.partition(":")[0].strip()] = {
            "gpus": group.gpus, "per_node": group.per_node, **times,
            "memory": round(card.memory / 2**30 - RESERVED, 1),
            "inside": _ring(card, slowest, gradients, ["0"] * group.per_node),
            "network": _ring(card, slowest, gradients, ["0", "1"])}
    return {"layers": layers, "replicas": list(replicas), "global_batch": global_batch,
            "link": round(1000 * (slowest.latency + 2 * micro_batch * sequence * hidden
                                  / slowest.effective), 3),
            "state": round(each.resident * layer.parameters / 2**30, 3),
            "activation": round(layer.activation_bytes / 2**30, 3),
            "gradients": round(gradients, 4), "kinds": kinds}


def _ring(card: Card, link: Link, gigabytes: float, nodes: list[str]) -> float:
    """Return the GB/s that each GPU of a ring sends, in an all-reduce of a layer's gradients.

    Args:
        card: the GPU model.
        link: the network between nodes.
        gigabytes: of the gradients.
        nodes: the node of each GPU.
    """
    from virtualgpu.net import collectives
    from virtualgpu.net.topology import Topology

    path = Topology(tuple(nodes), (card,) * len(nodes), link).path(range(len(nodes)))
    sent = 2 * (len(nodes) - 1) / len(nodes) * gigabytes
    return round(sent / collectives.all_reduce(path, int(gigabytes * 1e9)), 1)


def show(case: dict[str, Any]) -> None:
    """Print a case: the model, and a line for each kind of GPU."""
    print(f"{case['layers']} layers, {case['global_batch']} micro-batches per step (modeled)")
    print(f"  per layer: {case['state']:.2f} GiB of state, {case['activation']:.2f} GiB per "
          f"micro-batch in flight, {case['gradients']:.3f} GB of gradients")
    print(f"  between stages: {case['link']:.2f} ms")
    print(f"{'':6}{'GPUs':>6}{'embedding':>16}{'layer':>16}{'head':>16}{'memory':>10}"
          f"{'in a node':>12}{'network':>11}")
    for kind, spec in case["kinds"].items():
        times = "".join(f"{'{:.2f} + {:.2f} ms'.format(*spec[part]):>16}"
                        for part in ("embedding", "layer", "head"))
        print(f"{kind:6}{spec['gpus']:6}{times}{spec['memory']:6.1f} GiB"
              f"{spec['inside']:7.1f} GB/s{spec['network']:6.1f} GB/s")


def dollars(plan: dict[str, Any], milliseconds: float, steps: int) -> float:
    """Return what some steps of a plan cost, at the on-demand prices of its GPUs.

    Args:
        plan: the plan.
        milliseconds: of a step.
        steps: how many.
    """
    from layout_estimator.prices import DOLLARS_PER_HOUR
    from virtualgpu.core import cards

    hourly = sum(plan["replicas"] * DOLLARS_PER_HOUR[cards.find(kind).name]
                 for kind, _ in plan["stages"])
    return hourly * steps * milliseconds / 3.6e6


def front(offers: Sequence[tuple[str, float, float]], best: Sequence[str]) -> Drawing:
    """Plot plans, as (name, milliseconds, dollars); connect and label those named in `best`."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(7.5, 4))
    axes = figure.subplots()
    found = {name: (time, cost) for name, time, cost in offers}
    rest = [point for name, point in found.items() if name not in best]
    if rest:
        axes.plot(*zip(*rest, strict=True), linestyle="", marker="x", color="C7", label="beaten")
    if best:
        axes.plot(*zip(*(found[name] for name in best), strict=True), marker="o", color="C0",
                  label="the front")
    for name in best:
        axes.annotate(name, found[name], xytext=(6, 6), textcoords="offset points", fontsize=9,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85})
    axes.set(xlabel="ms per step", ylabel="dollars per 1,000 steps",
             title="Time against dollars (modeled)")
    axes.margins(x=0.15, y=0.15)
    axes.grid(alpha=0.3)
    axes.legend()
    said = "; ".join(f"{name}: {found[name][0]:.0f} ms and ${found[name][1]:.2f}" for name in best)
    return Drawing(figure, f"Dollars per 1,000 steps over ms per step of {len(found)} plans. "
                           f"On the front: {said}.")
