"""Methods of tensors that return their device or move them; reading.py has those that read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch import Tensor
from torch._C import TensorBase
from torch.overrides import handle_torch_function, has_torch_function_unary

from virtualgpu.pytorch import host_memory, reading
from virtualgpu.pytorch.device import device_of, space_of
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.reading import wrapped
from virtualgpu.pytorch.visible import (
    PLAIN_TYPES,
    Attribute,
    Space,
    asked_for_meta,
    hidden,
    real_device,
    real_is_cpu,
    real_is_cuda,
    real_is_meta,
)


def install(gpu: CudaGpu) -> None:
    """Replace attributes and methods of torch.Tensor for tensors of this GPU."""
    _properties(gpu)
    _moves(gpu)
    reading.install(gpu)
    _storages(gpu)
    _copies(gpu)
    # A swap rejects tensors with weak references, which `param.data = moved` does not check.
    torch.utils.weakref = SimpleNamespace(getweakrefs=lambda tensor: [])
    torch.nn.Module._apply = _swapping(torch.nn.Module._apply)


def _swapping(apply: Callable) -> Callable:
    """Wrap Module._apply so that a module that is moved or converted swaps its parameters.

    On CUDA, `param.data = moved` keeps the parameter's identity, which tied weights and optimizers
    rely on; C++ rejects that between the CPU and meta. Nothing else may swap: load_state_dict fails
    once DistributedDataParallel or an autograd graph refers to the parameters.
    """
    future = torch.__future__

    def call(self: torch.nn.Module, *args, **kwargs):
        before = future.get_swap_module_params_on_conversion()
        future.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, *args, **kwargs)
        except RuntimeError as error:
            if "Couldn't swap" not in str(error):
                raise
        finally:
            future.set_swap_module_params_on_conversion(before)
        return with_new_parameters(self, *args, **kwargs)

    def with_new_parameters(self: torch.nn.Module, *args, **kwargs):
        """Move parameters that something else refers to, as after DistributedDataParallel."""
        before = future.get_overwrite_module_params_on_conversion()
        future.set_overwrite_module_params_on_conversion(True)
        try:
            return apply(self, *args, **kwargs)
        finally:
            future.set_overwrite_module_params_on_conversion(before)
    return call


def _properties(gpu: CudaGpu) -> None:
    def seen(self: Tensor) -> Space | None:
        return None if hidden.depth else space_of(gpu, self)

    def device(self: Tensor) -> torch.device:
        return real_device(self) if hidden.depth else device_of(gpu, self)

    for name, get in (
            ("device", device),
            ("is_cuda", lambda self: real_is_cuda(self) or seen(self) is Space.GPU),
            ("is_cpu", lambda self: real_is_cpu(self) or seen(self) is Space.HOST),
            ("is_meta", lambda self: real_is_meta(self) and seen(self) in (None, Space.OWN))):
        setattr(Tensor, name, Attribute(overridable(name, get)))
    Tensor.get_device = lambda self: gpu.index if self.is_cuda else -1
    Tensor.record_stream = lambda self, stream: None
    Tensor.data_ptr = wrapped(Tensor.data_ptr, lambda self: address(self) if (
        real_is_meta(self)) else NotImplemented)
    Tensor.data = Attribute(TensorBase.data.__get__, _set_data)
    host_memory.install(gpu)
    type_of = Tensor.type

    def kind(self: Tensor, dtype=None, **options):
        """Return a name, as `x.type()` does, or convert, as `x.type("torch.cuda.HalfTensor")`."""
        if dtype is None and seen(self) is Space.GPU:
            with hidden:
                name = type_of(self.new_empty(0, device="cpu"))
            return name.replace("torch.", "torch.cuda.")
        return type_of(self, dtype, **options)

    Tensor.type = kind


def overridable(name: str, get: Callable) -> Callable:
    """Return a getter that asks a class's __torch_function__ first, as for ShardedTensor.

    Args:
        name: the attribute of torch.Tensor.
        get: its getter.
    """
    original = getattr(TensorBase, name).__get__

    def read(self: Tensor):
        if type(self) in PLAIN_TYPES or not has_torch_function_unary(self):
            return get(self)
        module = sys.modules.get("torch.distributed._shard.sharded_tensor.api")
        known = getattr(module, "_SHARDED_OPS", ())  # filled before or after the replacement
        replaced = vars(Tensor)[name].__get__
        return handle_torch_function(original if original in known else replaced, (self,), self)
    return read


def address(tensor: Tensor) -> int:
    """Return an invented address, or 0 for a tensor without memory."""
    storage = tensor.untyped_storage()
    return 0 if not storage.nbytes() else (
        storage._cdata * 64 + tensor.storage_offset() * tensor.element_size())


def _set_data(self: Tensor, value: Tensor) -> None:
    """Assign Tensor.data; between devices, as in `p.data = p.data.cuda()`, by swapping tensors."""
    if real_is_meta(self) == real_is_meta(value):
        TensorBase.data.__set__(self, value)
        return
    new = value.detach()
    if isinstance(self, torch.nn.Parameter):
        new = torch.nn.Parameter(new, self.requires_grad)
    torch.utils.swap_tensors(self, new)


def _moves(gpu: CudaGpu) -> None:
    to = Tensor.to

    def exact(device: object) -> torch.device | None:
        """Return a device with its index; raise an error for a GPU that this process lacks."""
        if device is None:
            return None
        target = torch.device("cuda", device) if type(device) is int else torch.device(device)
        return gpu.own_device(target) if target.type == "cuda" else target

    def move(self: Tensor, *args, **kwargs):
        if hidden.depth or not (args or kwargs):
            return to(self, *args, **kwargs)
        target, options = destination(*args, **kwargs)
        target = exact(target)
        if target is None or target == self.device:  # C++ would see a move from meta to cuda
            return to(self, **options) if options else self
        if torch.is_grad_enabled() and self.requires_grad and (
                space_of(gpu, self), target.type) in ((Space.HOST, "cuda"), (Space.GPU, "cpu")):
            return host_memory.DeviceCopy.apply(self, target, options)
        with asked_for_meta if target.type == "meta" else nullcontext():
            return to(self, device=target, **options)

    def parse(*args, **kwargs):
        if args and type(args[0]) is int:  # C++ would look for an accelerator
            args = torch.device("cuda", args[0]), *args[1:]
        device, *rest = parse_to(*args, **kwargs)
        return exact(device), *rest

    parse_to = torch._C._nn._parse_to
    torch._C._nn._parse_to = parse
    Tensor.to = move
    Tensor.cuda = lambda self, device=None, non_blocking=False, memory_format=None: move(
        self, gpu.device if device is None else device, non_blocking=non_blocking,
        **({} if memory_format is None else {"memory_format": memory_format}))
    Tensor.cpu = lambda self, **options: move(self, "cpu", **options)
    torch.nn.Module.cuda = lambda self, device=None: self.to(
        gpu.device if device is None else exact(device))


def destination(*args, **kwargs) -> tuple[object, dict]:
    """Return the device that Tensor.to is called with, and its other options by name.

    Tensor.to takes (device, dtype, non_blocking, copy), (dtype, non_blocking, copy), or (tensor,
    non_blocking, copy), each by position or name.
    """
    names = ["device", "dtype", "non_blocking", "copy"]
    if args and isinstance(args[0], torch.dtype):
        names = names[1:]
    elif args and isinstance(args[0], Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    options = {**dict(zip(names, args, strict=False)), **kwargs}
    if isinstance(other := options.pop("other", None), Tensor):
        options |= {"device": other.device, "dtype": other.dtype}
    if options.get("dtype", 0) is None:
        del options["dtype"]
    return options.pop("device", None), options


def _storages(gpu: CudaGpu) -> None:
    """Support storages that are resized in place, as FSDP does, and wrapper subclasses."""
    storage = torch.UntypedStorage
    resize = storage.resize_

    def resized(self, size: int):
        if self._cdata in gpu.blocks:
            gpu.resize(self._cdata, size)
            gpu.values.twins.pop(self._cdata, None)
        return resize(self, size)

    storage.resize_ = resized
    pointer = storage.data_ptr
    storage.data_ptr = lambda self: pointer(self) if self.device.type != "meta" else (
        self._cdata * 64 if self.nbytes() else 0)
    wrapper = Tensor._make_wrapper_subclass

    def make_wrapper(*args, device=None, **kwargs):
        if device is not None and torch.device(device).type == "cuda":
            device = torch.device("meta")
        return wrapper(*args, **({} if device is None else {"device": device}), **kwargs)

    Tensor._make_wrapper_subclass = staticmethod(make_wrapper)


def _copies(gpu: CudaGpu) -> None:
    """Support copy.deepcopy of tensors and parameters."""
    original = Tensor.__deepcopy__

    def deepcopy(self: Tensor, memo: dict):
        if hidden.depth or not (real_is_meta(self) or space_of(gpu, self)):
            return original(self, memo)
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            return original(self, memo)  # raises an error
        with torch.no_grad():
            clone = self.clone()
        if isinstance(self, torch.nn.Parameter):
            clone = torch.nn.Parameter(clone, self.requires_grad)
        else:
            clone.requires_grad_(self.requires_grad)
        if self.grad is not None:
            clone.grad = deepcopy(self.grad, memo)
        clone.__dict__.update(self.__dict__)
        memo[id(self)] = clone
        return clone

    Tensor.__deepcopy__ = deepcopy
