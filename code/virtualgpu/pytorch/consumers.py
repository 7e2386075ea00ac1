"""Functions that only show or summarize values: they show `?` for those that were not computed.

They belong to packages that the program may import later, so they are replaced after the import.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import ModuleType

import torch

from virtualgpu.pytorch.device import space_of
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.unknown import Unknown, has_unknown, is_object_array

Patch = Callable[[ModuleType], None]
# Methods of TensorBoard's SummaryWriter that draw from tensors; the others show single numbers.
DRAWING = ("add_audio", "add_embedding", "add_histogram", "add_image", "add_image_with_boxes",
           "add_images", "add_mesh", "add_pr_curve", "add_tensor", "add_video")
SUMMARIES = ("fmean", "geometric_mean", "harmonic_mean", "mean", "pstdev", "pvariance", "stdev",
             "variance")
# Classes that turn token IDs into text, by module, with their methods.
DECODERS = {"sentencepiece": ("SentencePieceProcessor", "decode", "Decode", "DecodeIds"),
            "tiktoken.core": ("Encoding", "decode", "decode_batch"),
            "tokenizers": ("Tokenizer", "decode", "decode_batch"),
            "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase", "decode")}


def install(gpu: CudaGpu) -> None:
    """Replace the functions, now or when their modules are imported."""
    patches: dict[str, Patch] = {
        "statistics": summarize, "yaml": write_yaml,
        **{f"{package}.writer": functools.partial(draw, gpu)
           for package in ("torch.utils.tensorboard", "tensorboardX")},
        **{name: decode(*names) for name, names in DECODERS.items()}}
    for name in [name for name in patches if name in sys.modules]:
        patches.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(patches))


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each module of a dictionary after its first import."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self.patches = patches
        self.searched: set[str] = set()  # modules whose specs other finders are looking for

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> object:
        if name not in self.patches or name in self.searched:
            return None
        self.searched.add(name)  # so that the next line does not come here again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searched.discard(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch = self.patches.pop(name, None)
            if patch is not None:
                patch(module)

        spec.loader.exec_module = exec_module
        return spec


def summarize(module: ModuleType) -> None:
    """Let the averages of the module `statistics` be unknown if a number is."""
    def unknown_or(function: Callable) -> Callable:
        @functools.wraps(function)
        def summary(data, *args, **kwargs):
            data = list(data)
            return Unknown() if has_unknown(data) else function(data, *args, **kwargs)
        return summary

    for name in SUMMARIES:
        setattr(module, name, unknown_or(getattr(module, name)))


def write_yaml(module: ModuleType) -> None:
    """Write unknown numbers as the string `?`."""
    for dumper in (module.Dumper, module.SafeDumper):
        dumper.add_representer(Unknown, lambda own, _: own.represent_str("?"))


def draw(gpu: CudaGpu, module: ModuleType) -> None:
    """Let TensorBoard's SummaryWriter leave out what it cannot draw without values."""
    def known_only(name: str, method: Callable) -> Callable:
        @functools.wraps(method)
        def add(self, tag, *args, **kwargs):
            if not any(is_uncomputed(gpu, item) for item in (tag, *args, *kwargs.values())):
                return method(self, tag, *args, **kwargs)
            gpu.assumptions.note_here(f"{name} of values that were not computed logs nothing")
            return None
        return add

    for name in DRAWING:
        method = getattr(module.SummaryWriter, name, None)
        if method is not None:
            setattr(module.SummaryWriter, name, known_only(name, method))


def is_uncomputed(gpu: CudaGpu, value: object) -> bool:
    """Return whether a tensor, an array of objects, or a list has values that were not computed."""
    if isinstance(value, torch.Tensor):
        return space_of(gpu, value) is not None and not gpu.values.known(value)
    if is_object_array(value):
        value = value.tolist()
    return has_unknown(value)


def decode(name: str, *methods: str) -> Patch:
    """Return a function that lets a class of a module decode unknown token IDs as `?`.

    Args:
        name: name of the class.
        methods: its methods that take token IDs first; the first of them decodes one list.
    """
    def shown(method: Callable, decode_list: Callable) -> Callable:
        @functools.wraps(method)
        def decoded(self, *args, **kwargs):
            if args:
                key, ids, rest = None, args[0], args[1:]
            else:
                key, ids = next(iter(kwargs.items()), (None, ()))
                rest = ()
            ids = ids.tolist() if hasattr(ids, "tolist") else ids
            if not has_unknown(ids):
                return method(self, *args, **kwargs)

            def text(part: list) -> str:
                others = {word: value for word, value in kwargs.items() if word != key}
                return decode_list(self, part, *rest, **others)

            return with_marks(ids, text)
        return decoded

    def patch(module: ModuleType) -> None:
        kind = getattr(module, name, None)
        originals = {each: getattr(kind, each) for each in methods if hasattr(kind, each)}
        for each, original in originals.items():
            with suppress(TypeError):  # a class of C++ or Rust that cannot be changed
                setattr(kind, each, shown(original, originals.get(methods[0], original)))
    return patch


def with_marks(ids: object, text: Callable[[list], str]) -> object:
    """Return the text of token IDs, with one `?` for each unknown one.

    Args:
        ids: a token ID, a list of them, or a list of lists, whose texts become a list.
        text: decodes known IDs.
    """
    if type(ids) is Unknown:
        return "?"
    if any(isinstance(part, (list, tuple)) for part in ids):
        return [with_marks(part, text) for part in ids]
    return "".join("?" if part is None else text(part) for part in runs(ids))


def runs(ids: Sequence) -> Iterator[list | None]:
    """Yield the lists of known IDs between unknown ones, and None for each of those."""
    known: list = []
    for one in ids:
        if type(one) is not Unknown:
            known.append(one)
            continue
        if known:
            yield known
        known = []
        yield None
    if known:
        yield known
