"""Functions that create tensors, on the virtual GPU or on the program's own meta device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch.utils import _device
from torch.utils._python_dispatch import _disable_current_modes

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.pytorch import pinned
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.unknown import Unknown, has_unknown, is_object_array
from virtualgpu.pytorch.visible import META, asked_for_meta, hidden

# Functions that create a tensor like another one, and methods that do.
LIKE = tuple(f"{name}_like" for name in ("empty", "full", "ones", "rand", "randint", "randn",
                                         "zeros"))
NEW = tuple(f"new_{name}" for name in ("empty", "empty_strided", "full", "ones", "tensor", "zeros"))


def install(gpu: CudaGpu) -> None:
    """Distinguish the two kinds of meta tensors, and send data to the GPU through the mode."""
    torch._C._set_only_lift_cpu_tensors(True)
    _locate_contexts(gpu)
    for function in _device._device_constructors():
        name = function.__name__
        for module, attribute in ((torch, name), (torch.fft, name.removeprefix("fft_"))):
            if getattr(module, attribute, None) is function:
                setattr(module, attribute, _by_argument(gpu, function))
    for name in LIKE:
        setattr(torch, name, _by_argument(gpu, getattr(torch, name)))
    for name in NEW:
        setattr(torch.Tensor, name, _by_argument(gpu, getattr(torch.Tensor, name)))
    Unknown.tensor = functools.partial(_unknown, gpu)
    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, _of_unknown(getattr(torch, name)))
    torch.from_numpy = _from_array(torch.from_numpy)
    torch.device = _device_type(torch.device)
    torch.nn.init._no_grad_trunc_normal_ = _drawn_once(gpu,
                                                       torch.nn.init._no_grad_trunc_normal_)
    generator = torch.Generator

    class Generator(generator):
        """torch.Generator, whose GPU generators are CPU generators."""

        def __new__(cls, device: object = None):
            return generator.__new__(cls, "cpu")

    torch.Generator = Generator
    torch._C._group_tensors_by_device_and_dtype = _grouped(
        torch._C._group_tensors_by_device_and_dtype)


def _grouped(original: Callable) -> Callable:
    """Return the function that groups tensors by the device that the program sees.

    Optimizers call it. C++ sees the tensors of GPUs, and those on the CPU whose values were not
    computed, on meta.
    """
    def group(lists, with_indices=False):
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[list], list[int]]] = {}
        if {item.device.type for some in lists for item in some if item is not None} == {"cpu"}:
            for index, item in enumerate(lists[0]):
                group = groups.setdefault((item.device, item.dtype), ([[] for _ in lists], []))
                for column, some in zip(group[0], lists, strict=True):
                    column += some[index:index + 1]
                group[1].append(index)
            return groups
        for (device, dtype), (columns, indices) in original(lists, with_indices).items():
            group = groups.setdefault((_device_of(columns, device), dtype),
                                      ([[] for _ in columns], []))
            for column, more in zip(group[0], columns, strict=True):
                column += more
            group[1].extend(indices)
        return groups

    return group


def _device_of(lists: Sequence[Sequence], device: torch.device) -> torch.device:
    """Return the device that the program sees of tensors that C++ sees on one."""
    if device.type != "meta":
        return device
    return next((item.device for some in lists for item in some
                 if item is not None and item.device.type != "cpu"), torch.device("cpu"))


def _device_type(original: type) -> type:
    """Return torch.device, for which an integer is a GPU, as on a machine with one.

    Torch asks C++ for the accelerator, and that cannot be replaced. The result creates instances of
    the original, and stands for it wherever a type is compared or looked up.
    """
    class Stands(type):
        def __call__(cls, *args, **kwargs):
            if len(args) == 1 and not kwargs and type(args[0]) is int:
                return original("cuda", args[0])
            return original(*args, **kwargs)

        def __instancecheck__(cls, instance):
            return isinstance(instance, original)

        def __subclasscheck__(cls, other):
            return other is original or type.__subclasscheck__(cls, other)

        def __eq__(cls, other):
            return other is cls or other is original

        def __hash__(cls):
            return hash(original)

    return Stands("device", (), {"__module__": "torch", "__doc__": original.__doc__,
                                 "__slots__": ()})


def _locate_contexts(gpu: CudaGpu) -> None:
    """Support `with torch.device("meta"):`, and give the GPU of other contexts its index."""
    begin, original = _device.DeviceContext.__init__, _device.DeviceContext.__torch_function__

    def initialize(self, device):
        begin(self, device)
        self.device = located(gpu, self.device)

    def function(self, func, types, args=(), kwargs=None):
        if self.device.type != "meta":
            return original(self, func, types, args, kwargs)
        with asked_for_meta:
            return original(self, func, types, args, kwargs)

    _device.DeviceContext.__init__ = initialize
    _device.DeviceContext.__torch_function__ = function


def located(gpu: CudaGpu, device: object) -> torch.device | None:
    """Return a device in any spelling; "cuda" is the process's GPU, and an integer is a GPU."""
    if device is None:
        return None
    device = torch.device(*(("cuda", device) if type(device) is int else (device,)))
    if device.type == "cuda" and device.index is None:
        # For some functions, C++ would ask CUDA for the current GPU.
        return torch.device("cuda", gpu.index if gpu.current is None else gpu.current)
    return device


def _by_argument(gpu: CudaGpu, function):
    """Support every spelling of a device, "meta", and `torch.empty(3, pin_memory=True)`."""
    def make(*args, **kwargs):
        if kwargs.get("pin_memory"):  # which C++ refuses without CUDA
            return pinned.marked(gpu, function(*args, **{**kwargs, "pin_memory": False}))
        device = located(gpu, kwargs.get("device"))
        if device is not None:
            kwargs["device"] = device
            if device.type == "cuda" and function.__name__.startswith("sparse_"):
                raise NoValue(f"{program_line()}: sparse tensors are not modeled on virtual GPUs; "
                              "run the program with dense ones")
        if device is None or device.type != "meta":
            return function(*args, **kwargs)
        with asked_for_meta:
            return function(*args, **kwargs)

    make.__name__, make.__doc__ = function.__name__, function.__doc__
    make.__module__ = "torch"
    return make


def _drawn_once(gpu: CudaGpu, function):
    """Draw a truncated normal distribution once where torch would redraw until all values fit.

    The values were not computed, so no time depends on them; the report lists the assumption.
    """
    def draw(tensor, mean, std, *args, generator=None):
        try:
            return function(tensor, mean, std, *args, generator=generator)
        except NoValue:
            gpu.assumptions.note_here("values that trunc_normal_ draws fit at once")
            with torch.no_grad():
                return tensor.normal_(mean, std, generator=generator)

    return draw


def _of_unknown(function):
    """Make the values of `torch.tensor([loss.item()])` unknown if the loss is."""
    def tensor(data, *args, dtype=None, device=None, **kwargs):
        data = data.tolist() if is_object_array(data) else data
        if not has_unknown(data):
            return function(data, *args, dtype=dtype, device=device, **kwargs)
        like = function(_with_zeros(data), *args, dtype=dtype)
        device = torch.get_default_device() if device is None else device
        return Unknown.tensor(like.shape, like.dtype, torch.device(device)).requires_grad_(
            kwargs.get("requires_grad", False))

    tensor.__name__, tensor.__module__ = function.__name__, "torch"
    return tensor


def _from_array(function):
    """Make the values of a tensor unknown if those of the numpy array are."""
    def from_numpy(array):
        return torch.tensor(array) if is_object_array(array) else function(array)

    return from_numpy


def _with_zeros(data: object) -> object:
    """Return nested lists with zeros of the same type in place of unknown numbers."""
    if isinstance(data, (list, tuple)):
        return list(map(_with_zeros, data))
    return data.__class__(0) if type(data) is Unknown else data


def _unknown(gpu: CudaGpu, shape: Sequence[int], dtype: torch.dtype, device: torch.device
             ) -> torch.Tensor:
    """Return a tensor whose values were not computed.

    Args:
        gpu: this process's GPU.
        shape: its shape.
        device: the CPU or the GPU.
    """
    if device.type == "cuda":
        tensor = torch.empty(shape, dtype=dtype, device=device)
        with hidden:
            gpu.values.forget([tensor])
        return tensor
    with hidden, _disable_current_modes():
        tensor = torch.empty(shape, dtype=dtype, device=META)
    gpu.hold_on_host(tensor)
    return tensor
