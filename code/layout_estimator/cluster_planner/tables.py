"""Tables of profiles: a JSON file of measured layer times, for GPUs that are real.

    {"format": "layer-profiles-1",
     "model": {"layers": 48, "hidden": 1600, "sequence": 1024, "precision": "fp16"},
     "profiles": [{"gpu": "a10", "tensor": 1, "micro_batch": 1, "recompute": "none",
                   "embedding": {...}, "layer": {...}, "head": {...}}, ...]}

Each part has the fields of profiles.PartProfile: seconds, bytes, and numbers of parameters of one
tensor-parallel rank. Rows with "split": true have the passes of schedules that compute weight
gradients separately, and parts that also have weight and held_bytes; without them, the planner
leaves these schedules out. FASOP's `known_cost` tables have the same purpose: a time per layer for
each GPU model and tensor-parallel size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path

from labcore.atomic import write_atomic
from labcore.errors import LabError
from layout_estimator.cluster_planner.profiles import RECOMPUTE, Key, PartProfile, Profile
from layout_estimator.cluster_planner.stages import ModelSpec

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


def write(path: str, model: ModelSpec, profiles: Mapping[Key, Profile | None]) -> None:
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


def read(path: str, model: ModelSpec) -> TableProfiles:
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
    from virtualgpu.core import cards

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
