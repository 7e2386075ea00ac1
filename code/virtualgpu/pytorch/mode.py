"""The dispatch mode of a process in which a virtual GPU looks like CUDA.

It receives every operation, with meta tensors, and runs it on the modeled GPU, on the host, or as a
copy between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from virtualgpu.core.card import Card
from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.core.operand import tensors
from virtualgpu.core.plan import (
    HOST,
    OperationKind,
    OperationPlan,
    kind_of,
    nested,
    to_meta,
)
from virtualgpu.core.rules.results import needs_values
from virtualgpu.core.rules.work import KernelWork
from virtualgpu.core.workspaces import Workspaces
from virtualgpu.export.blocks import OTHER
from virtualgpu.export.files import TraceFiles
from virtualgpu.net.operations import in_object_collective
from virtualgpu.pytorch import downloads, host_memory
from virtualgpu.pytorch.assumptions import WITHOUT_READING, Decisions
from virtualgpu.pytorch.device import CudaDevice, device_of, remember, space_of
from virtualgpu.pytorch.fusing import Fuser
from virtualgpu.pytorch.values import EMPTY, LIMIT
from virtualgpu.pytorch.visible import (
    CPU,
    META,
    PLAIN_TYPES,
    Space,
    asked_for_meta,
    bypassed,
    hidden,
    key_of,
)

aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}
FAKE = torch._C._TorchDispatchModeKey.FAKE
ITEM = aten._local_scalar_dense.default
Handler = Callable[["CudaGpu", torch._ops.OpOverload, Sequence, dict], object]


class CudaGpu(CudaDevice):
    """A virtual GPU that programs use as cuda:INDEX."""

    supports_higher_order_operators = True

    def __init__(self, card: Card, index: int = 0, count: int = 1, limit: int = LIMIT,
                 assumptions: Decisions | None = None, typical: float | None = None) -> None:
        super().__init__(card, index, count, limit, assumptions, typical)
        self.tf32: bool | None = None  # while an operation is costed: whether it may use TF32
        self.fuses = False  # whether compiled regions are fused
        self.has_cudnn_attention = True  # whether torch may choose cuDNN's kernel (attention.py)
        self.fuser: Fuser | None = None  # from the first compiled region on (fusing.py)
        self.trace_files: TraceFiles | None = None  # --trace writes them at the end
        self.workspaces = Workspaces(card)
        self.handlers: dict[str, Handler] = {}  # by namespace of the operation
        # Operations that CUDA runs as several (decomposed.py), and composite operations that CUDA
        # runs as one and inference mode does not decompose.
        self.replacements: dict[torch._ops.OpOverload, Callable] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if bypassed.depth or torch._C._get_dispatch_mode(FAKE) is not None:  # torch infers shapes
            return func(*args, **kwargs)
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self._higher_order(func, args, kwargs)
        for kind in types:
            if kind not in PLAIN_TYPES:  # DTensor and similar classes handle operations first
                return func(*args, **kwargs) if kind.__name__ == "FakeTensor" else NotImplemented
        with torch._C.DisableTorchFunction(), hidden:
            return self.dispatch(func, args, kwargs)

    def _higher_order(self, func: torch._ops.HigherOrderOperator, args: Sequence, kwargs: dict):
        if func.name() == "run_dtensor_rng_op":
            with self:
                return args[2](*args[3:], **kwargs)
        raise NoValue(f"{program_line()}: {func.name()} is not modeled on virtual GPUs"
                      + (INSTEAD.get(func.name()) or ""))

    def dispatch(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict):
        """Run an operation on the device of its tensors."""
        handler = self.handlers.get(func.namespace)
        if handler is not None:
            return handler(self, func, args, kwargs)
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = kind_of(func)
        if func in self.replacements and self._space(args[0]) is Space.GPU:
            return self.replacements[func](*args, **kwargs)
        if kind is not OperationKind.COSTED:
            return self.execute(func, args, kwargs)[0]
        target = kwargs.get("device")
        if target is not None and target.type == "cuda":
            self.own_device(target)
        if target is not None and target.type == "meta" and asked_for_meta.depth:
            return self._own(func, args, kwargs)
        spaces = {self._space(item) for item in tensors((*args, *kwargs.values()))}
        if target is None or target.type == "cpu":
            if spaces <= {None}:
                return self._real(func, args, kwargs)
            if Space.GPU not in spaces:
                if Space.HOST in spaces:
                    return host_memory.operate(self, func, args, kwargs)
                return self._own(func, args, kwargs)
        if func is ITEM:
            return self._by_value(func, args, kwargs)
        if func in COPIES:
            return self._copy(func, args, kwargs)
        if target is not None and target.type == "cpu":  # empty_like(x, device="cpu")
            like = [torch.empty_strided(item.shape, item.stride(), dtype=item.dtype)
                    if isinstance(item, torch.Tensor) else item for item in args]
            return self._real(func, like, kwargs)
        return self.run_on_gpu(func, args, kwargs, spaces)

    def _space(self, tensor: torch.Tensor) -> Space | None:
        """Return where an operand is stored, and account for it if PyTorch created it unseen."""
        space = space_of(self, tensor)
        if space is Space.GPU:
            self.hold(tensor)
        return space

    def _own(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict):
        """Run an operation on the program's own meta tensors, which need no memory."""
        out = func(*args, **kwargs)
        for result in nested(out):
            remember(result, self.own)
        return out

    def run_on_gpu(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict, spaces: set):
        if needs_values(func, tensors(args)):
            return self._by_value(func, args, kwargs)
        # TF32 is a setting of the process; tensors on the host cross the bus.
        setting = (self._allows_tf32(func), Space.HOST in spaces, Space.OWN in spaces)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": META}
        out, plan = self.execute(func, args, kwargs, setting)
        if plan is not None and plan is not HOST:
            self.values.follow(func, args, kwargs, out)
        return out

    def _real(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict):
        """Run an operation of the host on real tensors.

        A large empty tensor, such as a weight before its initialization, becomes a meta tensor,
        because its values will not be computed. Those of one element do not, because
        torch.ByteTensor(storage) begins with one; nor do the bytes of objects on their way.
        """
        out = func(*args, **kwargs)
        if (func in EMPTY and out.nbytes > self.values.limit and out.numel() > 1
                and not host_memory.worker() and not in_object_collective()):
            out = func(*to_meta(args), **{**kwargs, "device": META})
            self.hold_on_host(out)
        return out

    def _copy(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict):
        """Copy a tensor between the GPU and the host, or within one of them."""
        if func is aten.copy_.default:
            source, to_host = args[1], space_of(self, args[0]) is not Space.GPU
        else:
            target = kwargs.get("device")
            source, to_host = args[0], target is not None and target.type == "cpu"
        space = space_of(self, source)
        if to_host and space is Space.GPU:
            return downloads.copy(self, func, args, kwargs)
        if space is Space.OWN:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        return self.run_on_gpu(func, args, kwargs, {space})

    def _by_value(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict):
        """Run an operation whose result, or its shape, depends on values."""
        if not self.values.all_known(tensors((*args, *kwargs.values()))):
            positions = self._positions(func, args)
            if positions is not None:
                return self.run_on_gpu(aten.index.Tensor, (args[0], positions), {}, {Space.GPU})
            what = f"{program_line()} needs a tensor's values, but "
            if not self.assumptions.command_line:
                raise NoValue(what + WITHOUT_READING)
            raise NoValue(what + "virtual GPUs compute those of small tensors only (--values): "
                          "run a tiny model with --values all")
        self.wait_for_stream()
        real = [self.values.value(item) if isinstance(item, torch.Tensor) and item.is_meta else
                [self.values.value(one) if one is not None and one.is_meta else one
                 for one in item] if isinstance(item, (list, tuple)) and tensors([item]) else item
                for item in args]
        out = func(*real, **{k: CPU if k == "device" else v for k, v in kwargs.items()})
        if not isinstance(out, (torch.Tensor, tuple, list)):
            return out
        return tuple(map(self.upload, out)) if isinstance(out, (tuple, list)) else self.upload(out)

    def _positions(self, func: torch._ops.OpOverload, args: Sequence
                   ) -> list[torch.Tensor | None] | None:
        """Return a known mask's positions, for `x[mask]` with unknown x; None for anything else.

        As on CUDA, the host waits for the number of positions.
        """
        if func is aten.masked_select.default and args[0].shape == args[1].shape:
            masks: Sequence = [args[1]]
        elif func is aten.index.Tensor:
            masks = args[1]
        else:
            return None
        if not self.values.all_known(tensors(masks)):
            return None
        self.wait_for_stream()
        found: list[torch.Tensor | None] = []
        for mask in masks:
            if mask is None or mask.dtype not in (torch.bool, torch.uint8):
                found.append(mask)
                continue
            value = self.values.value(mask) if mask.is_meta else mask
            found += map(self.upload, value.nonzero().unbind(1))
        return found

    def upload(self, value: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor on the GPU, with its values."""
        tensor = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
        self.hold(tensor)
        self.values.put(tensor, value)
        return tensor

    def start(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict, plan: OperationPlan,
              out: object) -> bool:
        """Launch the kernels of an operation, or defer them for fusion and return True."""
        for workspace in self.workspaces.allocate(plan, self.stream):
            self.hold(workspace)
            if self.ledger is not None:
                self.ledger.label(key_of(workspace), OTHER)
        if self.fuser is not None:
            if self.fuser.take(func, args, kwargs, plan, out):
                return True
            plan = self.fuser.alone(args, plan)
        self.launch(plan.name, plan.seconds, plan.kernels)
        return False

    def hold_results(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
                     plan: OperationPlan, out: object) -> None:
        """Allocate an operation's results, unless its fused kernel does when it is launched."""
        if self.fuser is None or not self.fuser.defer(func, args, kwargs, plan, out):
            super().hold_results(func, args, kwargs, plan, out)

    def hold(self, tensor: torch.Tensor) -> None:
        if self.fuser is None or key_of(tensor) not in self.fuser.unwritten:
            super().hold(tensor)

    def release(self, key: int) -> None:
        super().release(key)
        if self.fuser is not None:
            self.fuser.died(key)

    def cost(self, func: torch._ops.OpOverload, args: Sequence, produced: Sequence[torch.Tensor],
             crossing: int) -> tuple[float, KernelWork]:
        """Return the duration of an operation's kernels, in seconds, and the work they do."""
        self.tf32 = self._allows_tf32(func)
        try:
            seconds, work = super().cost(func, args, produced, crossing)
            return seconds, self.in_tf32(work)
        finally:
            self.tf32 = None

    def seconds(self, work: KernelWork) -> float:
        """Return the time of kernels, in seconds."""
        return super().seconds(self.in_tf32(work))

    def _allows_tf32(self, func: torch._ops.OpOverload | None = None) -> bool:
        """Return whether an operation may use TF32: PyTorch's default for convolutions only."""
        return (torch._C._get_cudnn_allow_tf32() if func in CONVOLUTIONS else
                torch._C._get_cublas_allow_tf32())

    def in_tf32(self, work: KernelWork) -> KernelWork:
        """Return work whose fp32 GEMM is one in TF32, if the program allows that."""
        gemm = work.gemm
        allowed = self._allows_tf32() if self.tf32 is None else self.tf32
        if gemm is None or gemm.dtype != "fp32" or not allowed or (
                "tf32" not in self.card.tflops):
            return work
        return work._replace(gemm=gemm._replace(dtype="tf32"))

    def holds(self, tensor: torch.Tensor) -> bool:
        if not tensor.is_meta:
            return False
        key = key_of(tensor)
        return key in self.blocks or (self.fuser is not None and key in self.fuser.unwritten)

    def truth(self) -> AbstractContextManager:
        return hidden

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        return device_of(self, tensor)


# Alternatives to operations that are not modeled.
INSTEAD = {"flex_attention": "; scaled_dot_product_attention is",
           "flex_attention_backward": "; scaled_dot_product_attention is"}
