"""Carry a model between a checkpoint of the trainer and Hugging Face's format.

A checkpoint may have any tensor- and pipeline-parallel layout. A folder of Hugging Face's holds
config.json of a GPT-2, Llama, or Qwen3, and its weights: model.safetensors, alone or in parts, or
the older pytorch_model.bin; and perhaps tokenizer.json. Weights keep their bits. The checkpoint
that is written loads in any layout.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from checkpoint_tools.families import FAMILIES, Family, Weight, family_of
from checkpoint_tools.tokenizers_of import copy_tokenizer, tokenizer_in
from minimegatron.arguments import Config
from minimegatron.arguments.flag import STATE, names_affecting, table_of
from minimegatron.checkpoint.checksums import sha256, write_sums
from minimegatron.checkpoint.files import SavedFiles, shard_path
from minimegatron.checkpoint.reshard import VOCABULARY, partition
from minimegatron.checkpoint.save import (
    TRACKER,
    VERSION,
    folder_of,
    publish,
    unfinished,
    write_synced,
)
from minimegatron.checkpoint.saved_model import (
    WORDS,
    SavedModel,
    ShapesOnly,
    empty_stage,
    intact_files,
    model_config,
    whole_model,
)
from minimegatron.context import Context
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.errors import UserError
from minimegatron.grid import GROUPS, Grid, Group
from minimegatron.model.parameters import ParamSpec, named_param_specs

ONE = Group((0,), 0, None)
SHARD = shard_path(0, 0, 1)
HEAD = "lm_head.weight"
FILE, INDEX, OLD_FILE = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
PRECISIONS = {torch.float32: "", torch.float16: "--fp16 ", torch.bfloat16: "--bf16 "}
UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, OSError, TypeError, KeyError,
              ValueError, SafetensorError)
Weights = dict[str, torch.Tensor]


def specs_of(flags: Mapping[str, Any], rows: int) -> dict[str, ParamSpec]:
    """Return the specs of all parameters of a model, unpartitioned.

    Args:
        flags: the trainer's that affect the saved parameters.
        rows: of the vocabulary.
    """
    ctx = Context(model_config(flags), Grid(0, 1, **dict.fromkeys(GROUPS, ONE)), ShapesOnly())
    return named_param_specs(empty_stage(ctx, rows))


# To Hugging Face.


def to_hf(checkpoint: Path, out: Path, vocab_size: int | None, shard_bytes: float) -> str | None:
    """Write config.json, the weights, and the tokenizer into the new folder `out`.

    Returns None, or why there is no tokenizer. Raises UserError.

    Args:
        checkpoint: what --save named, or an iter_ folder.
        out: the folder.
        vocab_size: keep only these rows of the padded vocabulary.
        shard_bytes: the most bytes of a file of weights, unless one tensor is larger.
    """
    if out.exists():
        raise UserError(f"{out} exists already: name a new folder")
    files = intact_files(checkpoint)
    args, rows = files.first["args"], files.layout.rows
    family = family_of(args)
    config = family.write(args, files.first_path)
    if vocab_size is not None and not 0 < vocab_size <= rows:
        raise UserError(f"--vocab-size {vocab_size}: {files.first_path} has {rows} rows; nearest: "
                        f"{max(1, min(vocab_size, rows))}")
    config["vocab_size"] = vocab_size or rows
    flags = family.read(config, files.first_path)
    with new_folder(out) as folder:
        weights = theirs(family, flags, files, vocab_size or rows)
        config["dtype"] = write_weights(folder, weights, shard_bytes)
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        return copy_tokenizer(args, folder)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `out`, unless an error is raised.

    Raises UserError, with the path, for an OSError.
    """
    temporary = out.with_name(f".{out.name}.unfinished")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(out)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{out} cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def theirs(family: Family, flags: Mapping[str, Any], files: SavedFiles, rows: int
           ) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield Hugging Face's names and tensors, one parameter of a checkpoint at a time.

    Args:
        family: of the model.
        flags: the trainer's.
        files: of the checkpoint.
        rows: of the vocabulary that are kept.
    """
    weights = family.weights(flags, rows)
    for name, spec in specs_of(flags, files.layout.rows).items():
        whole = partition(files, ONE, name, spec)
        if name in VOCABULARY:
            whole = whole[:rows]
        for other, part in zip(weights[name].shapes, weights[name].split(whole), strict=True):
            yield other, part.contiguous()


def write_weights(folder: Path, weights: Iterator[tuple[str, torch.Tensor]], shard_bytes: float
                  ) -> str:
    """Write safetensors files, with an index if there are several, and return the dtype's name."""
    shards: list[list[str]] = []
    held: Weights = {}
    dtype, total = "float32", 0

    def flush() -> None:
        if held:
            save_file({name: part.clone() for name, part in held.items()},
                      folder / f"{len(shards)}", metadata={"format": "pt"})
            shards.append(list(held))
            held.clear()

    for name, part in weights:
        if held and sum(each.nbytes for each in held.values()) + part.nbytes > shard_bytes:
            flush()
        held[name], total = part, total + part.nbytes
        dtype = str(part.dtype).removeprefix("torch.")
    flush()
    count, places = len(shards), {}
    for number, names in enumerate(shards):
        file = FILE if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        (folder / f"{number}").rename(folder / file)
        places |= dict.fromkeys(names, file)
    if count > 1:
        (folder / INDEX).write_text(json.dumps(
            {"metadata": {"total_size": total}, "weight_map": places}, indent=1))
    return dtype


# From Hugging Face.


def from_hf(folder: Path, save: Path, divisor: int) -> str:
    """Write iteration 0 into `save`, and return the flags to train it with. Raises UserError.

    Args:
        folder: has config.json and the weights.
        save: the folder of checkpoints.
        divisor: the vocabulary is padded to a multiple of it.
    """
    if (save / TRACKER).exists() or folder_of(save, 0).exists():
        raise UserError(f"{save} holds checkpoints already: name a new folder")
    flags, model = read_model(folder)
    vocabulary = len(model[WORDS])
    rows = pad_vocab_size(vocabulary, divisor, 1)
    for name in VOCABULARY:
        if name in model:
            # A row of zeros would be no padding: GPT-2's logits are far below 0. The mean row's is
            # the mean logit, so (Jensen) n rows take at most n / V of the others' probability.
            padding = model[name].float().mean(0).to(model[name].dtype)
            model[name] = torch.cat([model[name], padding.expand(rows - vocabulary, -1)])
    defaults = {name: getattr(Config(), name) for name in names_affecting(STATE, Config)}
    args = {**defaults, **flags, "layers_per_chunk": (flags["num_layers"],),
            "padded_vocab_size": rows, "make_vocab_size_divisible_by": divisor,
            "consumed_train_samples": 0, "consumed_valid_samples": 0}
    for name in ("hidden_dropout", "attention_dropout"):
        args.setdefault(name, getattr(Config(), name))
    state = {"args": args, "checkpoint_version": VERSION, "iteration": 0, "model": model}
    final = folder_of(save, 0)
    try:
        write_synced(unfinished(final) / SHARD, state)
        write_sums(unfinished(final), {str(SHARD): sha256(unfinished(final) / SHARD)})
        publish(final, 0)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise UserError(f"{save} cannot be written: {error}") from error
    return (f"--load {save} --finetune --make-vocab-size-divisible-by {divisor} "
            f"{PRECISIONS[model[WORDS].dtype]}{written(flags)}")


def read_model(folder: Path) -> tuple[dict[str, Any], Weights]:
    """Return the flags of the model in a folder, and its parameters without padding.

    Raises UserError.
    """
    flags, model = mapped_model(folder)
    return flags, dict(model)


def mapped_model(folder: Path) -> tuple[dict[str, Any], Parameters]:
    """Return the flags of the model in a folder, and its parameters, memory-mapped.

    Raises UserError.
    """
    family, flags = read_config(folder / "config.json")
    model = ours(family, flags, flags.pop("vocabulary"), *read_weights(folder, family))
    return {**flags, **tokenizer_in(folder)}, model


def open_hugging_face(folder: Path) -> SavedModel:
    """Return the model in a folder of Hugging Face's. Raises UserError.

    No rank holds more than its part, and one whole parameter while it takes its part of that.
    """
    return whole_model(folder, *mapped_model(folder))


class Parameters(Mapping[str, torch.Tensor]):
    """The trainer's parameters, each of which is made of mapped tensors when it is asked for."""

    def __init__(self, weights: Mapping[str, Weight], found: Weights) -> None:
        self.weights, self.found = weights, found

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self.weights[name]
        return weight.join([self.found[one] for one in weight.shapes]).contiguous()

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def written(flags: Mapping[str, Any]) -> str:
    """Return flags as on the command line, those that differ from their defaults."""
    table, words = table_of(Config), []
    for name, value in flags.items():
        flag = table[name]
        if value == flag.default or (name == "kv_channels" and value * flags[
                "num_attention_heads"] == flags["hidden_size"]):
            continue
        words.append(flag.off[0] if flag.default is True else flag.spelling)
        if not isinstance(value, bool):
            words.append(str(value))
    return " ".join(words)


def read_config(path: Path) -> tuple[Family, dict[str, Any]]:
    """Return the family, and the flags, of config.json.

    Raises UserError for a model of another family, or that the trainer does not compute.
    """
    try:
        found = json.loads(path.read_text())
        kind = found["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is not the config.json of a model ({error!r})") from error
    if kind not in FAMILIES:
        raise UserError(f"{path}: model_type {kind!r} is not possible; nearest: "
                        f"{' or '.join(map(repr, FAMILIES))}")
    return FAMILIES[kind], FAMILIES[kind].read(found, path)


def read_weights(folder: Path, family: Family) -> tuple[Weights, Path]:
    """Return the tensors by today's names, memory-mapped, and the file to name in errors.

    Raises UserError.
    """
    if (folder / INDEX).exists():
        source = folder / INDEX
        try:
            names = sorted(set(json.loads(source.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{source} is not an index of weights ({error!r})") from error
        paths = [folder / Path(name).name for name in names]
    else:
        source = next((folder / name for name in (FILE, OLD_FILE) if (folder / name).exists()),
                      None)
        if source is None:
            raise UserError(f"{folder} has neither {FILE} nor {INDEX} nor {OLD_FILE}")
        paths = [source]
    found: Weights = {}
    for path in paths:
        try:
            found |= read_file(path)
        except UNREADABLE as error:
            raise UserError(f"{path} is not a file of weights: {error}") from error
    head = found.pop(HEAD, None)
    named = {today: weight for name, weight in found.items()
             if (today := family.canonical(name)) is not None}
    if head is not None:
        named[HEAD] = head
    return named, source


def read_file(path: Path) -> Weights:
    """Return the tensors of one file, as data and never as code."""
    if path.suffix == ".bin":
        return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def ours(family: Family, flags: Mapping[str, Any], rows: int, found: Weights, source: Path
         ) -> Parameters:
    """Return the trainer's parameters, without padding.

    Raises UserError unless `found` has the family's names and shapes, and one dtype.
    """
    weights = family.weights(flags, rows)
    expected = {name: shape for weight in weights.values() for name, shape in weight.shapes.items()}
    head = None if HEAD in expected else found.pop(HEAD, None)
    for name in sorted(expected.keys() ^ found.keys()):
        word = "lacks" if name in expected else "has an unknown"
        raise UserError(f"{source} {word} {name}")
    dtypes = {weight.dtype for weight in found.values()}
    if len(dtypes) > 1 or not dtypes <= PRECISIONS.keys():
        raise UserError(f"{source} should have weights of one dtype of fp32, fp16, bf16, but has "
                        f"{', '.join(sorted(map(str, dtypes)))}")
    for name, shape in expected.items():
        if found[name].shape != shape:
            raise UserError(f"{source}: {name} has the shape {tuple(found[name].shape)}, and "
                            f"should have {tuple(shape)}")
    (words,) = weights[WORDS].shapes
    if head is not None and not torch.equal(head, found[words]):
        raise UserError(f"{source}: {HEAD} is not the word embedding, but config.json ties them")
    return Parameters(weights, found)
