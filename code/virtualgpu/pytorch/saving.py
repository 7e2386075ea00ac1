"""What a compiled region saves for its backward pass.

AOTAutograd partitions the forward and backward graphs at a minimum cut
(torch/_functorch/partitioners.py, `solve_min_cut`): the backward pass recomputes results of
elementwise operations in its own fused kernels, from what the cut saves. This file applies the
partitioner's rules to each tensor that autograd saves, as the program runs:

- Results of other operations, the region's inputs, random masks, and results that are at least 4
  times smaller than what they were computed from (reductions) are saved.
- A tensor that an operation outside of fused kernels reads is saved, because the backward pass
  would have to write it ("materialized in backward").
- Everything else is recomputed from the saved tensors behind it, its sources, unless saving these
  takes more than twice the memory: the partitioner doubles the weight of tensors that exist only
  inside of fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.operand import moved
from virtualgpu.pytorch.visible import PLAIN_TYPES, bypassed, key_of, real_is_meta

aten = torch.ops.aten
RANDOM = {aten.native_dropout, aten.bernoulli, aten.bernoulli_, aten.rand_like, aten.randn_like,
          aten.uniform_, aten.normal_}
REDUCES = 4  # a result that is smaller than its operands by more than this factor is a reduction
IN_REGISTERS = 2  # weight of a tensor that no kernel would write
Sources = dict[int, tuple[torch.UntypedStorage, int]]  # by key: what keeps it alive, and its bytes


class Saved:
    """A tensor that autograd saved, or how to recompute it.

    Attributes:
        tensor: the tensor; None if it is recomputed.
        sources: the saved storages that it is recomputed from.
        layout: its shape, strides, and dtype.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.sources: Sources = {}
        self.layout = (tensor.shape, tensor.stride(), tensor.dtype)


class Saving:
    """Decides what compiled regions save."""

    def __init__(self, gpu: VirtualGpu,
                 recomputed: Callable[[torch.Tensor, dict[int, int]], None],
                 used: Callable[[Iterable[int]], None]) -> None:
        """Args:
            gpu: the virtual GPU.
            recomputed: called with a tensor that is recomputed, and the bytes read for it.
            used: called with storages that are saved.
        """
        self.gpu, self.recomputed, self.used = gpu, recomputed, used
        self.behind: dict[int, Sources] = {}  # what results of fused kernels are computed from
        self.waiting: list[Saved] = []  # saved since the last operation
        self.kept: set[int] = set()  # storages that this region saves

    @contextmanager
    def region(self) -> Iterator[None]:
        """Decide what is saved in the block. Hooks of the program, such as activation
        checkpointing's, have precedence."""
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        try:
            with nullcontext() if hooked else torch.autograd.graph.saved_tensors_hooks(
                    self.pack, self.unpack):
                yield
        finally:
            self._decide(())
            self.behind.clear()
            self.kept.clear()

    def ran(self, func: torch._ops.OpOverload, operands: Sequence[torch.Tensor],
            produced: Sequence[torch.Tensor], fusible: bool, is_new: bool) -> None:
        """Record an operation of the region's forward pass.

        Args:
            func: the operation.
            operands: the tensors that it reads.
            produced: those that it writes.
            fusible: whether it runs in a fused kernel.
            is_new: whether the latter are new tensors.
        """
        self._decide(() if fusible else set(map(key_of, operands)))
        if not fusible or not is_new or func.overloadpacket in RANDOM:
            for item in produced:
                self.behind.pop(key_of(item), None)
            return
        if not torch.is_grad_enabled():
            return
        sources: Sources = {}
        for item in operands:
            key = key_of(item)
            sources |= self.behind.get(key) or {key: (item.untyped_storage(), moved(item))}
        size = sum(map(moved, operands))
        for item in produced:
            if moved(item) * REDUCES >= size:
                self.behind[key_of(item)] = sources

    def pack(self, tensor: torch.Tensor) -> Saved | torch.Tensor:
        if (type(tensor) not in PLAIN_TYPES or not real_is_meta(tensor)
                or key_of(tensor) in self.gpu.values.twins):
            return tensor
        saved = Saved(tensor)
        self.waiting.append(saved)
        return saved

    def unpack(self, saved: Saved | torch.Tensor) -> torch.Tensor:
        if not isinstance(saved, Saved):
            return saved
        if saved.tensor is not None:
            return saved.tensor
        shape, strides, dtype = saved.layout
        with bypassed:
            tensor = aten.empty_strided.default(shape, strides, dtype=dtype, device="meta")
        self.recomputed(tensor, {key: size for key, (_, size) in saved.sources.items()})
        return tensor

    def _decide(self, read: Sequence[int] | set[int]) -> None:
        """Keep or drop what autograd saved for the operation that runs now.

        Args:
            read: storages that it reads outside of a fused kernel.
        """
        waiting, self.waiting = self.waiting, []
        for saved in waiting:
            key = key_of(saved.tensor)
            sources = None if key in read or key in self.kept else self.behind.get(key)
            more = sum(size for one, (_, size) in (sources or {}).items() if one not in self.kept)
            if sources is None or more > IN_REGISTERS * moved(saved.tensor):
                self.kept.add(key)
                self.used((key,))
            else:
                self.kept.update(sources)
                self.used(sources)
                saved.sources, saved.tensor = sources, None

    def died(self, key: int) -> None:
        """Forget a storage that was freed."""
        self.behind.pop(key, None)
        self.kept.discard(key)
