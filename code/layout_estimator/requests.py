"""Turn the trainer's flags into an estimate: all callers come through here, and catch one error.

Models have names, too, which stand for flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from labcore.errors import LabError
from minimegatron.arguments.presets import PRESETS

if TYPE_CHECKING:
    from layout_estimator.estimate import Estimate, Estimator
    from layout_estimator.mixed import MixedEstimator
    from layout_estimator.planner import RunPlan
    from minimegatron.arguments.table import EstimateConfig


def preset_shape(name: str, heads: int | None = None) -> tuple[int, ...]:
    """Return the shape of a preset, perhaps with another number of heads."""
    given = dict(pairwise(PRESETS[name].flags.split()))
    layers, hidden, own_heads, sequence = (int(given[flag]) for flag in SHAPE_FLAGS[:-1])
    return layers, hidden, heads or own_heads, sequence, PRESETS[name].vocabulary


SHAPE_FLAGS = ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length",
               "--vocab-size")
# (layers, hidden size, heads, sequence, vocabulary). GPT-2 XL has 25 heads, and here 16, so that 2
# and 4 tensor-parallel ranks can share them. The others: Narayanan et al. 2021, table 1.
SHAPES = {
    **{name: preset_shape(name) for name in ("gpt2-small", "gpt2-medium", "gpt2-large")},
    "gpt2-xl": preset_shape("gpt2-xl", heads=16),
    "gpt-1.7b": (24, 2304, 24, 2048, 51200),
    "gpt-3.6b": (30, 3072, 32, 2048, 51200),
    "gpt-7.5b": (36, 4096, 32, 2048, 51200),
    "gpt-18.4b": (40, 6144, 48, 2048, 51200),
    "gpt-39.1b": (48, 8192, 64, 2048, 51200),
}
CLUSTER_FLAGS = ("--cluster", "--device", "--world-size", "--gpus-per-node")


class EstimateError(LabError):
    """Raised if the trainer rejects the flags or cannot estimate them; carries its explanation."""


class EstimateResult(NamedTuple):
    """The flags of a run, its estimate by stage, and its plan."""

    config: EstimateConfig
    estimate: Estimate
    plan: RunPlan


def read_flags(flags: Sequence[str]) -> EstimateConfig:
    """Parse the flags of `pretrain_gpt.py --estimate`.

    Raises:
        EstimateError: the trainer does not accept the flags.
    """
    from minimegatron.arguments.parse import parse_estimate
    from minimegatron.errors import UserError

    try:
        return parse_estimate(["--estimate", *with_cluster(flags)])
    except UserError as error:
        raise EstimateError(str(error)) from None


def with_cluster(flags: Sequence[str]) -> list[str]:
    """Return the flags with the number of ranks and the first kind of GPU of their --cluster.

    Raises:
        EstimateError: --cluster describes no cluster, or another flag contradicts it.
    """
    from virtualgpu.core.errors import VirtualGpuError
    from virtualgpu.net.cluster_spec import parse_nodes

    given = dict(flag.split("=", 1) for flag in flags if flag.startswith("--") and "=" in flag)
    given |= {name: value for name, value in pairwise(flags) if name.startswith("--")
              and name in CLUSTER_FLAGS}
    text = given.get("--cluster")
    if text is None:
        return [*flags]
    try:
        groups = parse_nodes(text)
    except VirtualGpuError as error:
        raise EstimateError(f"--cluster: {error}") from None
    world = sum(group.gpus for group in groups)
    for name in CLUSTER_FLAGS[1:]:
        if name in given and (name, given[name]) != ("--world-size", str(world)):
            raise EstimateError(f"{name} {given[name]}: --cluster {text} describes the GPUs, "
                                f"{world} in all; nearest: leave out {name}")
    return [*flags, "--device", f"virtual:{groups[0].card.name}", "--world-size", str(world)]


def estimate(flags: Sequence[str] | EstimateConfig,
             measured: dict[tuple, Estimator | MixedEstimator] | None = None,
             with_reserved: bool = False) -> EstimateResult:
    """Estimate what a run with these flags would cost, on the virtual cluster that they describe.

    Args:
        flags: the trainer's flags, or the configuration that read_flags made of them.
        measured: estimators by cluster, filled in by this call. Estimates that share this
            dictionary measure equal stages only once.
        with_reserved: whether to estimate RunPlan.reserved, too, which takes longer.

    Raises:
        EstimateError: the trainer does not accept the flags, or cannot estimate them.
    """
    config = read_flags(flags) if isinstance(flags, Sequence) else flags
    # torch is slow to import, so only after the command line is known to be right.
    from layout_estimator.planner import make_estimator, make_plan, padded_vocabulary
    from minimegatron.arguments.virtual_device import virtual_link
    from minimegatron.errors import UserError
    from virtualgpu.core.errors import VirtualGpuError

    measured = {} if measured is None else measured
    try:
        cluster = (config.cluster, config.device, config.precision, config.software_stack,
                   virtual_link(config), config.gpus_per_node)
        if cluster not in measured:
            measured[cluster] = make_estimator(config)
        result = measured[cluster].estimate(config, padded_vocabulary(config))
        return EstimateResult(config, result, make_plan(
            config, measured[cluster], result, with_reserved))
    except (UserError, VirtualGpuError) as error:
        raise EstimateError(str(error)) from None


def model_flags(name: str) -> list[str]:
    """Return the trainer's flags of a model. Raises LabError if no model has this name."""
    from virtualgpu.core.cards import nearest

    if name not in SHAPES:
        near = " or ".join(nearest(name, SHAPES))
        raise LabError(f"--model {name}: no such model; nearest: {near}. All: {', '.join(SHAPES)}; "
                       "or describe it with --flags")
    shape = SHAPES[name]
    words = [word for flag, value in zip(SHAPE_FLAGS, shape, strict=True)
             for word in (flag, str(value))]
    return [*words, "--max-position-embeddings", str(shape[3])]
