"""Build cases for lab 14: a model on several kinds of GPUs, timed on virtual GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster_planner.profiles import Profile
    from pipeline_schedules import Drawing
    from virtualgpu.core.card import Card
    from virtualgpu.net.cluster_spec import NodeGroup
    from virtualgpu.net.network import Link


def case(cluster: str, model: str, global_batch: int, *, micro_batch: int = 1,
         replicas: Sequence[int] = (1, 2, 4), sequence: int = 0) -> dict[str, Any]:
    """Return a case (cluster_planner.case_model.CASE), with times in fp16 on virtual GPUs.

    Args:
        cluster: KIND:GPUSxNODES for each kind of node, as in "a100:4x2,a10:4x4".
        model: such as "gpt2-xl".
        global_batch: micro-batches per step, over all replicas.
        micro_batch: samples per micro-batch.
        replicas: the numbers of replicas that a plan may use.
        sequence: tokens per sample; 0 for the model's own number.

    Raises:
        VirtualGpuError: the text describes no cluster.
        LabError: there is no such model.
    """
    from cluster_planner.placement import slowest_network
    from cluster_planner.profiles import Key
    from layout_estimator.layer_profiles import VirtualProfiles
    from layout_estimator.requests import SHAPES, model_flags
    from minimegatron.formulas import state_bytes
    from virtualgpu.net.cluster_spec import parse_cluster
    from virtualgpu.net.network import parse

    groups, flags = parse_cluster(cluster), model_flags(model)
    layers, hidden, _, default_sequence, _ = SHAPES[model]
    sequence = sequence or default_sequence
    flags += ["--fp16", "--timing-log-level", "0", "--seq-length", str(sequence),
              "--max-position-embeddings", str(sequence)]
    slowest = parse(slowest_network(groups))
    profiles = VirtualProfiles(flags, {group.card.name: group.per_node for group in groups})
    parts = [profiles.get(Key(group.card.name, 1, micro_batch, "none")) for group in groups]
    layer, state = parts[0].layer, state_bytes("fp16")
    gradients = state.gradients * layer.parameters / 1e9
    kinds = {text.partition(":")[0].strip(): _kind(group, part, slowest, gradients)
             for group, part, text in zip(groups, parts, cluster.split(","), strict=True)}
    return {"layers": layers, "replicas": list(replicas), "global_batch": global_batch,
            "link": round(1000 * (slowest.latency + 2 * micro_batch * sequence * hidden
                                  / slowest.effective), 3),
            "state": round(state.resident * layer.parameters / 2**30, 3),
            "activation": round(layer.activation_bytes / 2**30, 3),
            "gradients": round(gradients, 4), "kinds": kinds}


def _kind(group: NodeGroup, profile: Profile, network: Link, gradients: float) -> dict[str, Any]:
    """Return the part of a case that describes one kind of GPU.

    Args:
        group: its nodes.
        profile: the times of the model's parts on it.
        network: the network between nodes.
        gradients: GB of a layer's gradients.
    """
    from labkit.contest.contests.plans import RESERVED

    card = group.card
    times = {name: [round(1000 * one.forward, 3), round(1000 * one.backward, 3)]
             for name, one in vars(profile).items()}
    return {"gpus": group.gpus, "per_node": group.per_node, **times,
            "memory": round(card.memory / 2**30 - RESERVED, 1),
            "inside": _ring(card, network, gradients, ["0"] * group.per_node),
            "network": _ring(card, network, gradients, ["0", "1"])}


def _ring(card: Card, link: Link, gigabytes: float, nodes: list[str]) -> float:
    """Return the GB/s that each GPU of a ring sends, in an all-reduce of a layer's gradients.

    Args:
        card: the GPU model.
        link: the network between nodes.
        gigabytes: the size of the gradients, in GB.
        nodes: the node of each GPU.
    """
    from virtualgpu.net import collectives
    from virtualgpu.net.topology import Topology

    path = Topology(tuple(nodes), (card,) * len(nodes), link).path(range(len(nodes)))
    sent = 2 * (len(nodes) - 1) / len(nodes) * gigabytes
    return round(sent / collectives.all_reduce(path, int(gigabytes * 1e9)), 1)


def show(case: dict[str, Any]) -> None:
    """Print a case: the model, the expected error of its times, and a line per kind of GPU."""
    from virtualgpu.core import accuracy, cards, stacks

    gpus = [stacks.under_megatron(cards.find(kind), None) for kind in case["kinds"]]
    print(f"{case['layers']} layers, {case['global_batch']} micro-batches per step (modeled, "
          f"{accuracy.margin(accuracy.expected_error(gpus))})")
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
    """Return the dollars for some steps of a plan, at the on-demand prices of its GPUs.

    Args:
        milliseconds: the step time.
    """
    from layout_estimator.prices import DOLLARS_PER_HOUR
    from virtualgpu.core import cards

    hourly = sum(plan["replicas"] * DOLLARS_PER_HOUR[cards.find(kind).name]
                 for kind, _ in plan["stages"])
    return hourly * steps * milliseconds / 3.6e6


def front(offers: Sequence[tuple[str, float, float]]) -> Drawing:
    """Plot plans, as (name, milliseconds, dollars); connect and label those on the Pareto front."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    best = [name for name, time, cost in sorted(offers, key=lambda offer: offer[1])
            if not any(other <= time and dollars <= cost and (other, dollars) != (time, cost)
                       for _, other, dollars in offers)]
    figure = Figure(figsize=(7.5, 4))
    axes = figure.subplots()
    points = {name: (time, cost) for name, time, cost in offers}
    rest = [point for name, point in points.items() if name not in best]
    if rest:
        axes.plot(*zip(*rest, strict=True), linestyle="", marker="x", color="C7", label="beaten")
    axes.plot(*zip(*(points[name] for name in best), strict=True), marker="o", color="C0",
              label="the front")
    for name in best:
        axes.annotate(name, points[name], xytext=(6, 6), textcoords="offset points", fontsize=9,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85})
    axes.set(xlabel="ms per step", ylabel="dollars per 1,000 steps",
             title="Time against dollars (modeled)")
    axes.margins(x=0.15, y=0.15)
    axes.grid(alpha=0.3)
    axes.legend()
    described = "; ".join(f"{name}: {points[name][0]:.0f} ms and ${points[name][1]:.2f}"
                          for name in best)
    return Drawing(figure, f"Dollars per 1,000 steps over ms per step of {len(points)} plans. "
                           f"On the front: {described}.")
