"""Read the configuration file of a run: its keys, their types, and their defaults."""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from labcore.errors import LabError
from layout_estimator.requests import SHAPES


class ModelShape(NamedTuple):
    """The shape of a GPT-2 model."""

    layers: int
    hidden_size: int
    attention_heads: int
    sequence_length: int


MODELS = {name: ModelShape(*SHAPES[f"gpt2-{name}"][:4])
          for name in ("small", "medium", "large", "xl")}
HOMOGENEOUS, HETEROGENEOUS, JOINED = "homogeneous", "heterogeneous", "joined"
CHOICES = {"model": tuple(MODELS), "job": (HOMOGENEOUS, HETEROGENEOUS, JOINED),
           "precision": ("fp32", "fp16", "bf16"), "device": ("virtual", "cuda")}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
TIME = re.compile(r"[0-9]+|([0-9]+-)?[0-9]+(:[0-9]{2}){1,2}")  # Slurm's minutes, hours, and days
ARRAYS = {"stages", "flags"}


@dataclass(frozen=True)
class Conf:
    """One run, as its file describes it. A key is a field's name with hyphens.

    Attributes:
        file: the file's path, for messages.
        cluster: the nodes to use, such as a100:4x2,a10:4x4 (KIND:GPUSxNODES).
        stages: the GPU kind of each pipeline stage; empty for the order of `cluster`.
        partition: Transformer layers of each stage, such as 0-11-8-8-8-8-5-0; empty for equal ones.
        network: the network between nodes of virtual GPUs; empty for the cluster's.
        flags: further flags of the trainer.
    """

    file: Path
    model: str
    cluster: str
    global_batch_size: int
    micro_batch_size: int
    name: str = ""
    job: str = ""
    layers: int = 0
    hidden_size: int = 0
    attention_heads: int = 0
    sequence_length: int = 0
    stages: tuple[str, ...] = ()
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 0
    partition: str = ""
    schedule: str = ""
    precision: str = "fp16"
    iterations: int = 50
    network: str = ""
    device: str = "virtual"
    profile: bool = False
    reload_container: bool = False
    time: str = "01:00:00"
    flags: tuple[str, ...] = ()

    @property
    def shape(self) -> ModelShape:
        """The shape of the named model, with the file's changes."""
        named = MODELS[self.model]
        return ModelShape(*(getattr(self, field) or value
                            for field, value in named._asdict().items()))

    def error(self, key: str, why: str, nearest: object) -> LabError:
        """Return an error that names the file, the key with its value, and the nearest value."""
        value = getattr(self, key.replace("-", "_"))
        shown = list(value) if isinstance(value, tuple) else value
        return LabError(f"{self.file}: {key} = {_toml(shown)}: {why}; nearest: {nearest}")


FIELDS = {field.name.replace("_", "-"): field for field in dataclasses.fields(Conf)
          if field.name != "file"}
REQUIRED = [key for key, field in FIELDS.items() if field.default is dataclasses.MISSING]


def read(path: Path) -> Conf:
    """Return the configuration in a file.

    Raises:
        LabError: it cannot be read, a key is unknown or missing, or a value has the wrong type.
    """
    try:
        fields = tomllib.loads(path.read_text())
    except FileNotFoundError:
        near = nearest(path.name, (one.name for one in path.parent.glob("*.toml")))
        raise LabError(f"{path}: no such file"
                       + (f"; nearest: {path.with_name(near)}" if near else "")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise LabError(f'{path}: {error}; strings need quotes, as in model = "xl"') from error
    for key, value in fields.items():
        if key not in FIELDS:
            raise LabError(f"{path}: {key} = {_toml(value)}: no such key; "
                           f"nearest: {nearest(key, FIELDS)}")
    values = {key.replace("-", "_"): _typed(path, key, value) for key, value in fields.items()}
    for key in REQUIRED:
        if key not in fields:
            example = {"model": '"xl"', "cluster": '"a10:4x8"'}.get(key, "64")
            raise LabError(f"{path}: {key} is missing; for example: {key} = {example}")
    return dataclasses.replace(Conf(path, **values), name=_name(path, values.get("name")))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the most similar of the known words, or "" if there is none."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0)), "")


def _typed(path: Path, key: str, value: object) -> object:
    """Return a value if it has its field's type and is valid. Raises LabError."""
    shown = f"{path}: {key} = {_toml(value)}"
    kind = str(FIELDS[key].type)
    if kind == "bool" and not isinstance(value, bool):
        raise LabError(f"{shown}: not true or false; nearest: {str(bool(value)).lower()}")
    if kind == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        near = max(1, round(value)) if isinstance(value, int | float) else _digits(value)
        raise LabError(f"{shown}: not an integer of at least 1; nearest: {near}")
    if key in ARRAYS:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise LabError(f"{shown}: not an array of strings; nearest: {_toml([str(value)])}")
        return tuple(value)
    if kind == "str" and (not isinstance(value, str) or not value.strip() or "\n" in value):
        raise LabError(f"{shown}: not a string of one line; nearest: {_toml(str(value) or 'text')}")
    if key in CHOICES and value not in CHOICES[key]:
        raise LabError(f"{shown}: not one of {', '.join(CHOICES[key])}; nearest: "
                       f"{_toml(nearest(str(value), CHOICES[key]))}")
    if key == "time" and not TIME.fullmatch(str(value)):
        raise LabError(f'{shown}: not Slurm\'s hours:minutes:seconds; nearest: "01:00:00"')
    return value


def _name(path: Path, given: object) -> str:
    """Return the job's name: the given one, or the file's name without its suffix."""
    name = path.stem if given is None else str(given)
    if not NAME.fullmatch(name):
        near = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-")[:80] or "run"
        raise LabError(f"{path}: name = {_toml(name)}: it names files, so it can only have "
                       f'letters, digits, _, and -; nearest: "{near}"')
    return name


def _digits(value: object) -> str:
    digits = re.search(r"[1-9]\d*", str(value))
    return digits[0] if digits else "1"


def _toml(value: object) -> str:
    """Return a value in TOML's spelling."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)
