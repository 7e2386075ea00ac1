"""Turn a student's parsed command line into our own command line for a cost estimate.

None of the student's strings are passed on: numbers, switches, and choices are regenerated from the
trainer's Config, and every other flag is replaced, left out, or refused. The trainer's table of
flags declares what each flag affects, which decides what happens to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labcore.errors import LabError
from minimegatron.arguments import Config
from minimegatron.arguments.flag import COST, HARDWARE, Flag, table_of
from minimegatron.arguments.stages import split_flags, write_layout
from minimegatron.arguments.table import ESTIMATE
from pipeline_schedules import BUILT_IN

# Larger runs take minutes to estimate: no exercise needs them.
MOST_RANKS = 4096
MOST_CLUSTER_RANKS = 512  # of a cluster, whose data-parallel replicas may differ
MOST_LAYERS = 1000
MOST_PASSES = 40_000  # of one iteration: stages x chunks x micro-batches (x a cluster's replicas)


@dataclass(frozen=True)
class EstimateHardware:
    """The hardware for an estimate.

    Attributes:
        device: virtual:GPU.
        network: between nodes, a value of --virtual-network; None for the GPU's usual one.
        cluster: nodes in the order of the ranks, a value of --cluster, instead of the device and
            its number per node.
    """

    device: str
    gpus_per_node: int
    network: str | None = None
    cluster: str | None = None


def use(flag: Flag) -> Literal["passed", "replaced", "left out", "refused"]:
    """Return what happens to a flag when a job's cost is estimated.

    Time and memory depend on those that are passed and on those that are replaced, by a value that
    the check gives or by the flag that they set. A run with one that is refused trains nothing.
    """
    planning = flag.needs is ESTIMATE or flag.name == "estimate"
    if not flag.affects & COST:
        return "refused" if planning else "left out"
    replaced = planning or flag.sets or flag.derived or flag.affects & HARDWARE
    return "replaced" if replaced else "passed"


def flags_for_estimate(config: Config, hardware: EstimateHardware, vocab_size: int) -> list[str]:
    """Return the trainer's flags that estimate `config` on this hardware.

    Raises LabError for a run that cannot be estimated.
    """
    table = table_of(type(config))
    for flag in table.values():
        if use(flag) == "refused" and getattr(config, flag.name) != flag.default:
            raise LabError(f"{flag.spelling}: with this flag the trainer does not train; leave it "
                           "out")
    _require_size(config, hardware.cluster is not None)
    words = ["--estimate", "--json", "--vocab-size", str(vocab_size)]
    if hardware.cluster is not None:
        words += ["--cluster", hardware.cluster]
    else:
        words += ["--device", hardware.device, "--world-size", str(config.world_size),
                  "--gpus-per-node", str(hardware.gpus_per_node)]
    if hardware.network is not None:
        words += ["--virtual-network", hardware.network]
    words.append("--use-megatron-fsdp")  # for the sharding strategy, which is passed
    for flag in table.values():
        if use(flag) == "passed":
            words += _words(flag, getattr(config, flag.name))
    if split_flags(vars(config)):
        words += ["--pipeline-model-parallel-layout", write_layout(config.layers_per_chunk)]
    return words


def _words(flag: Flag, value: object) -> list[str]:
    """Return a flag with its value. Raises LabError for a string that is none of its choices."""
    if type(value) is bool and flag.off:  # a switch that turns off a default
        return [] if value else [flag.off[0]]
    if value is None or value is False:
        return []
    if value is True:
        return [flag.spelling]
    choices = BUILT_IN if flag.name == "schedule" else flag.choices
    if type(value) not in (int, float) and value not in choices:
        raise LabError(f"{flag.spelling} {value}: only {', '.join(map(str, choices))} can "
                       "be estimated here")
    return [flag.spelling, repr(value) if type(value) is float else str(value)]


def _require_size(config: Config, cluster: bool) -> None:
    """Raise LabError if an estimate would take long.

    Args:
        config: the run's flags.
        cluster: whether each replica is simulated on GPUs of its own.
    """
    passes = config.pipeline_model_parallel_size * config.chunks * config.num_micro_batches
    counted = "stages x micro-batches"
    if cluster:
        passes *= config.data_parallel_size
        counted += " x data-parallel replicas"
    for what, number, most in (
            ("ranks", config.world_size, MOST_CLUSTER_RANKS if cluster else MOST_RANKS),
            ("layers", config.num_layers, MOST_LAYERS),
            (f"passes in each step ({counted})", passes, MOST_PASSES)):
        if number > most:
            raise LabError(f"{number:,} {what}: too large to estimate here; at most {most:,}")
