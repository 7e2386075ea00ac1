"""Owners of tensors: modules (parameters, buffers), parameters (gradients), optimizers (state).

Hooks of torch that apply to every module and every optimizer tell which objects there are.
Parameters are labeled when modules register them. What modules and optimizers hold is looked up
again at each optimizer step, since programs replace tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import torch
from torch.nn.modules import module
from torch.nn.parameter import is_lazy
from torch.optim import optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from virtualgpu.export.blocks import BUFFERS, GRADIENTS, OPTIMIZER, PARAMETERS

PLAIN = {torch.Tensor, torch.nn.Parameter}
Label = Callable[[int, str], None]  # takes the identity of a storage, and its category


def plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, or those that a DTensor or another wrapper consists of."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):  # a DTensor names its mesh, too
            yield from plain(part)


def storages(tensor: torch.Tensor | None) -> Iterator[int]:
    """Identities of the storages that a tensor lies in."""
    if tensor is not None:
        for part in plain(tensor):
            if part.layout is torch.strided and not is_lazy(part):
                yield part.untyped_storage()._cdata


def inside(value: object) -> Iterator[torch.Tensor]:
    """Tensors in nested lists, tuples, and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from inside(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from inside(item)


class Owners:
    """Finds owned tensors and labels their storages.

    Args:
        label: called with each storage and its category.
        before: called before an optimizer's step, with the optimizer.
        after: called after it.
    """

    def __init__(self, label: Label, before: Callable[[torch.optim.Optimizer], None],
                 after: Callable[[torch.optim.Optimizer], None]) -> None:
        self.label, self.before, self.after = label, before, after
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.hooks: list = []

    def start(self) -> None:
        def seen(one: torch.nn.Module, _name: str, value: object) -> None:
            self.modules.add(one)
            if isinstance(value, torch.nn.Module):
                self.modules.add(value)
            elif isinstance(value, torch.nn.Parameter):  # its module may be gone at the next look
                self._mark(value, PARAMETERS)

        def before(one: torch.optim.Optimizer, *_: object) -> None:
            self.optimizers.add(one)
            self._parameters()  # the state is looked up after the step
            self.before(one)

        def after(one: torch.optim.Optimizer, *_: object) -> None:
            self._states(one)
            self.after(one)

        self.hooks = [module.register_module_parameter_registration_hook(seen),
                      module.register_module_buffer_registration_hook(seen),
                      module.register_module_module_registration_hook(seen),
                      optimizer.register_optimizer_step_pre_hook(before),
                      optimizer.register_optimizer_step_post_hook(after)]

    def stop(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def look(self) -> None:
        """Label what modules and optimizers hold now."""
        self._parameters()
        for one in list(self.optimizers):
            self._states(one)

    def _parameters(self) -> None:
        """Label parameters, their gradients, and buffers."""
        parameters = {}
        for one in list(self.modules):
            for tensor in one._parameters.values():
                parameters[id(tensor)] = tensor
            for tensor in one._buffers.values():
                self._mark(tensor, BUFFERS)
        for one in list(self.optimizers):
            for group in one.param_groups:
                for tensor in group["params"]:
                    parameters[id(tensor)] = tensor
        for parameter in parameters.values():
            if parameter is not None:
                self._mark(parameter, PARAMETERS)
                if parameter.is_leaf:
                    self._mark(parameter.grad, GRADIENTS)
                if hasattr(parameter, "main_grad"):  # as Megatron-LM names it
                    self._mark(parameter.main_grad, GRADIENTS)

    def _states(self, one: torch.optim.Optimizer) -> None:
        for tensor in inside(list(one.state.values())):
            self._mark(tensor, OPTIMIZER)

    def _mark(self, tensor: torch.Tensor | None, category: str) -> None:
        if type(tensor) in PLAIN:  # nearly all, and this is quicker
            self.label(tensor.untyped_storage()._cdata, category)
            return
        for key in storages(tensor):
            self.label(key, category)
