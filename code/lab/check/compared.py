"""Define which of the trainer's flags a script check compares, and when two values are equal.

A flag is ignored if neither a job's results nor its time or memory depend on it: reports, output
paths, timeouts. Every other flag is compared by its meaning after all checks between flags, so the
spelling in a script does not matter. Every field of Config is in one of the classes below.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from minimegatron.arguments import Config
from minimegatron.data.split import parse_split
from minimegatron.errors import UserError
from minimegatron.schedules import BUILT_IN
from virtualgpu import cards, network
from virtualgpu.errors import VirtualGpuError

IGNORED = (
    # reports: contents and frequency of logs
    "log_interval", "log_format", "log_throughput", "log_params_norm", "log_num_zeros_in_grad",
    "tensorboard_dir", "tensorboard_log_interval", "tensorboard_queue_size",
    "log_timers_to_tensorboard", "log_batch_size_to_tensorboard",
    "log_validation_ppl_to_tensorboard", "log_memory_to_tensorboard",
    "log_world_size_to_tensorboard", "log_learning_rate_to_tensorboard",
    "log_loss_scale_to_tensorboard", "timeline", "timeline_iteration", "profile_execution",
    "profile_ranks", "profile_name",
    # other output, and how files are opened
    "save", "save_interval", "no_save_optim", "data_cache_path", "data_impl", "num_workers",
    # timeouts, and values that a launcher sets
    "distributed_timeout_minutes", "local_rank",
    # refused by the trainer unless --estimate is given, which is compared
    "gpus_per_node", "vocab_size", "tokens", "price_per_gpu_hour", "json", "plot")
# Fields that several flags set: each field with the other flags that set it.
SPELLINGS = {
    "recompute_granularity": ("recompute_activations", "activations_checkpoint_method"),
    "recompute_method": ("activations_checkpoint_method",),
    "layers_per_chunk": ("num_layers_per_virtual_pipeline_stage", "balance",
                         "pipeline_model_parallel_layout"),
    "train_iters": ("train_samples",),
    "lr_decay_samples": ("lr_decay_iters",),
    "lr_warmup_samples": ("lr_warmup_iters", "lr_warmup_fraction")}
# Derived from the flags and the number of ranks, which are compared.
CONSEQUENCES = ("rank", "world_size", "data_parallel_size")

# Other names that `only` accepts: sbatch and torchrun options for the placement of ranks.
NODES, RANKS, GPUS = "--nodes", "--nproc_per_node", "--gpus-per-node"
PLACES = (NODES, RANKS, GPUS)
WAYS = {NODES: (NODES, "-N", "--nnodes"), RANKS: (RANKS, "--nproc-per-node"),
        GPUS: (GPUS, "--gres", "--gpus")}

FIELDS = {field.name: field for field in dataclasses.fields(Config)}
OTHER_SPELLINGS = frozenset(name for names in SPELLINGS.values() for name in names)
COMPARED = tuple(name for name in FIELDS
                 if name not in {*IGNORED, *CONSEQUENCES, *OTHER_SPELLINGS})
FILES = ("data_path", "vocab_file", "merge_file", "load")


class NoFlag(ValueError):
    """A name in `only` is not a flag, or is a flag that is never compared; the text says which."""


def freed(only: Sequence[str]) -> frozenset[str]:
    """Return the fields that a student may set, given the flags in `only`.

    A flag in `only` also allows every other flag that sets the same field. Raises NoFlag.
    """
    ends: set[str] = set()
    for name in only:
        if name not in PLACES:
            ends |= set(_ends(_field(name)))
    return frozenset(ends | {name for name in OTHER_SPELLINGS if ends.issuperset(_ends(name))})


def _ends(field: str) -> list[str]:
    """Return the compared fields that a field sets."""
    return [end for end, others in SPELLINGS.items() if field in others] or [field]


def _field(name: str) -> str:
    flags = {spelled(field): field for field in FIELDS if field not in CONSEQUENCES}
    for field in FIELDS.values():
        flags |= {other: field.name for other in
                  (*field.metadata.get("names", ()), *field.metadata.get("off", ()))
                  if other.startswith("--")}
    flags.pop(spelled("layers_per_chunk"))
    known = {*flags, *PLACES} - {spelled(field) for field in IGNORED} | {GPUS}
    if name not in known:
        if name in flags:
            raise NoFlag(f"{name} is never compared, since no result, time or memory depends on "
                         "it: leave it out")
        near = get_close_matches(name, sorted(known), n=1)
        raise NoFlag(f"{name} is no flag of the trainer" + (f" (nearest: {near[0]})" if near else
                                                            ", such as --micro-batch-size"))
    return flags[name]


def spelled(field: str) -> str:
    """Return a field as a flag."""
    return "--" + field.replace("_", "-")


def spellings(flag: str) -> tuple[str, ...]:
    """Return all spellings of a flag, including other flags that set the same field."""
    if flag in PLACES:
        return WAYS[flag]
    field = _field(flag)
    names = {field, *_ends(field), *SPELLINGS.get(field, ())} & set(FIELDS)
    return tuple(sorted({spelled(name) for name in names}.union(
        *(FIELDS[name].metadata.get("names", ()) for name in names))))


def words_of(config: Config, names: Sequence[str]) -> list[str]:
    """Return the flags for the fields in `names` that differ from their defaults."""
    words = []
    for name in names:
        value, default = getattr(config, name), FIELDS[name].default
        if value == default:
            continue
        if default is True:
            words.append(FIELDS[name].metadata["off"][0])
        elif value is True:
            words.append(spelled(name))
        else:
            words += [spelled(name), repr(value) if type(value) is float else str(value)]
    return words


def meaning(name: str, value: Any) -> Any:
    """Return a canonical value that is equal for all equivalent values of a field."""
    if not isinstance(value, str):
        return value
    try:
        if name in FILES or (name == "schedule" and value not in BUILT_IN):
            return place(value)
        if name == "split":
            return parse_split(value)
        if name == "virtual_network":
            return network.parse(value)
        if name == "device" and value.startswith("virtual:"):
            return cards.find(value.removeprefix("virtual:")).name
    except (UserError, VirtualGpuError):
        pass
    return value


def place(path: str) -> str:
    """Return a file's normalized path relative to the workspace, where jobs start."""
    if not path.startswith("$LAB_HOME"):
        path = posixpath.join("$LAB_HOME", path)
    return posixpath.normpath(path)
