"""A model, and what each part of it costs on a GPU model for one micro-batch: its profiles.

`lab plan` measures profiles on virtual GPUs (layout_estimator.layer_profiles). Those of real GPUs
come from a table, a JSON file of measured layer times:

    {"format": "layer-profiles-1",
     "model": {"layers": 48, "hidden": 1600, "sequence": 1024, "precision": "fp16"},
     "profiles": [{"gpu": "a10", "tensor": 1, "micro_batch": 1, "recompute": "none",
                   "embedding": {...}, "layer": {...}, "head": {...}}, ...]}

Each part has the fields of PartProfile: seconds, bytes, and numbers of parameters of one
tensor-parallel rank. Rows with "split": true have the passes of schedules that compute weight
gradients separately, and parts that also have weight and held_bytes; without them, the planner
leaves these schedules out. FASOP's `known_cost` tables have the same purpose: a time per layer for
each GPU model and tensor-parallel size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple, Protocol

from labcore.atomic import write_atomic
from labcore.errors import LabError
from minimegatron.formulas import state_bytes
from virtualgpu.core import cards

MICRO_BATCHES = (1, 2, 4, 8)  # samples per micro-batch that are tried
RECOMPUTE = {"none": [], "selective": ["--recompute-granularity", "selective"],
             "full": ["--recompute-granularity", "full", "--recompute-method", "uniform"]}


@dataclass(frozen=True)
class ModelSpec:
    """Size of the model and the batch.

    Attributes:
        layers: number of transformer layers.
        hidden: hidden size.
        sequence: tokens of a sample.
        vocabulary: its size, in tokens.
        precision: "fp32", "fp16", or "bf16".
        global_batch: samples per step.
        tied: whether the output layer is the word embedding.
        stack: the software stack; None for the Megatron-LM of each GPU's time.
    """

    layers: int
    hidden: int
    sequence: int
    vocabulary: int
    precision: str
    global_batch: int
    tied: bool = True
    stack: str | None = None

    def sent_bytes(self, micro_batch: int) -> int:
        """Return the bytes of a message from one stage to the next."""
        return (self.sequence * micro_batch * self.hidden
                * state_bytes(self.precision).weights)


class Key(NamedTuple):
    """Arguments that select a profile.

    Attributes:
        gpu: name of the GPU model.
        tensor: tensor-parallel size.
        micro_batch: samples per micro-batch.
        recompute: a key of RECOMPUTE, which has its flags.
        split: whether the schedule computes weight gradients in passes of their own, as ZB-H1 does.
    """

    gpu: str
    tensor: int
    micro_batch: int
    recompute: str
    split: bool = False


@dataclass(frozen=True)
class PartProfile:
    """One part of the model on one tensor-parallel rank.

    Attributes:
        forward: seconds of its forward pass.
        backward: seconds of its backward pass, with recomputation; if it is split, without the
            weight gradients.
        parameters: number of its parameters on the rank.
        activation_bytes: bytes that its forward pass saves for the backward pass.
        transient_bytes: bytes that a pass needs besides, at its peak.
        step_seconds: seconds of the optimizer step, without data-parallel communication.
        weight: seconds of its pass of weight gradients, if the backward pass is split.
        held_bytes: bytes that wait for that pass once the backward pass has ended.
    """

    forward: float
    backward: float
    parameters: int
    activation_bytes: float
    transient_bytes: float
    step_seconds: float
    weight: float = 0.0
    held_bytes: float = 0.0

    @property
    def both(self) -> float:
        """Seconds of the forward and the backward pass."""
        return self.forward + self.backward + self.weight


@dataclass(frozen=True)
class Profile:
    """The parts of a model; all its transformer layers cost the same."""

    embedding: PartProfile
    layer: PartProfile
    head: PartProfile


class Profiles(Protocol):
    """A source of profiles."""

    def get(self, key: Key) -> Profile | None:
        """Return a profile, or None if the model cannot be divided this way, or is not known."""


FORMAT = "layer-profiles-1"
PARTS = tuple(field.name for field in fields(Profile))
NUMBERS = tuple(field.name for field in fields(PartProfile))
OPTIONAL = tuple(field.name for field in fields(PartProfile) if field.default is not MISSING)


class TableProfiles:
    """Profiles from a table.

    Attributes:
        known: {key: profile}.
    """

    def __init__(self, known: Mapping[Key, Profile]) -> None:
        self.known = known

    def get(self, key: Key) -> Profile | None:
        return self.known.get(key)


def shape(model: ModelSpec) -> dict[str, object]:
    """Return what a table says about its model."""
    return {"layers": model.layers, "hidden": model.hidden, "sequence": model.sequence,
            "precision": model.precision}


def write_table(path: str, model: ModelSpec, profiles: Mapping[Key, Profile | None]) -> None:
    """Write a table.

    Args:
        path: the file.
        model: what was measured.
        profiles: by key; those that are None are left out.
    """
    rows = [{**key._asdict(), **asdict(profile)} for key, profile in sorted(profiles.items())
            if profile is not None]
    record = {"format": FORMAT, "model": shape(model), "profiles": rows}
    write_atomic(Path(path), (json.dumps(record, indent=1) + "\n").encode())


def read_table(path: str, model: ModelSpec) -> TableProfiles:
    """Read a table. Raises LabError, with the path, if it is not one, or not of this model."""
    try:
        with open(path) as file:
            record = json.load(file)
    except (OSError, ValueError) as error:
        raise LabError(f"--profiles {path}: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise LabError(f'--profiles {path}: not a table of profiles; it has "format": "{FORMAT}"')
    if record.get("model") != shape(model):
        raise LabError(f"--profiles {path}: measured for {record.get('model')}, but the model to "
                       f"plan is {shape(model)}")
    rows = record.get("profiles")
    if not isinstance(rows, list) or not rows:
        raise LabError(f'--profiles {path}: "profiles" has no rows')
    known: dict[Key, Profile] = {}
    for number, row in enumerate(rows):
        try:
            key, profile = _row(row)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise LabError(f"--profiles {path}: row {number}: {reason}") from error
        if key in known:
            raise LabError(f"--profiles {path}: row {number}: a second row of {key.gpu} with "
                           f"tensor {key.tensor}, micro_batch {key.micro_batch}, {key.recompute}"
                           + (", split" if key.split else ""))
        known[key] = profile
    return TableProfiles(known)


def _row(row: Mapping) -> tuple[Key, Profile]:
    """Return a row's key and profile. Raises KeyError, TypeError, or ValueError."""
    if not isinstance(row, dict):
        raise TypeError(f"{row!r} is not an object")
    for name in ("tensor", "micro_batch"):
        if not isinstance(row[name], int) or row[name] < 1:
            raise ValueError(f'"{name}": {row[name]!r} is not an integer of at least 1')
    if row["recompute"] not in RECOMPUTE:
        raise ValueError(f'"recompute": {row["recompute"]!r} is not one of {", ".join(RECOMPUTE)}')
    split = row.get("split", False)
    if not isinstance(split, bool):
        raise ValueError(f'"split": {split!r} is neither true nor false')
    try:
        gpu = cards.find(row["gpu"]).name
    except (AttributeError, ValueError) as error:
        raise ValueError(f'"gpu": {error}') from error
    return (Key(gpu, row["tensor"], row["micro_batch"], row["recompute"], split),
            Profile(**{name: _part(name, row[name]) for name in PARTS}))


def _part(part: str, record: Mapping) -> PartProfile:
    if not isinstance(record, dict):
        raise TypeError(f'"{part}": {record!r} is not an object')
    unknown = sorted(set(record) - set(NUMBERS))
    if unknown:
        raise ValueError(f'"{part}" has no "{unknown[0]}"; it has {", ".join(NUMBERS)}')
    for name in NUMBERS:
        value = record.get(name, 0.0) if name in OPTIONAL else record[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not (
                value >= 0 and math.isfinite(value)):
            raise ValueError(f'"{part}": "{name}": {value!r} is not a number of at least 0')
    if part == "layer" and not record["forward"] + record["backward"]:
        raise ValueError('"layer": its passes take no time')
    return PartProfile(**record)
