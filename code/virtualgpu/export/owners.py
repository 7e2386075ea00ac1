"""Owners of tensors: modules (parameters, buffers), parameters (gradients), optimizers (state).

Torch's global hooks reveal every module and every optimizer. Parameters are labeled when modules
register them. Modules and optimizers are scanned again at each optimizer step, since programs
replace tensors.
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

PLAIN_TYPES = {torch.Tensor, torch.nn.Parameter}
Label = Callable[[int, str], None]  # takes a storage's identity and its category


def unwrapped(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensor, or the tensors inside a DTensor or another wrapper."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):  # a DTensor names its mesh, too
            yield from unwrapped(part)


def storages(tensor: torch.Tensor | None) -> Iterator[int]:
    """Yield the identities of a tensor's storages."""
    if tensor is not None:
        for part in unwrapped(tensor):
            if part.layout is torch.strided and not is_lazy(part):
                yield part.untyped_storage()._cdata


def nested_tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples, and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from nested_tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nested_tensors(item)


class Owners:
    """Finds owned tensors and labels their storages.

    Args:
        label: called with each storage and its category.
        before: called before an optimizer's step, with the optimizer.
        after: called after an optimizer's step, with the optimizer.
    """

    def __init__(self, label: Label, before: Callable[[torch.optim.Optimizer], None],
                 after: Callable[[torch.optim.Optimizer], None]) -> None:
        self.label, self.before, self.after = label, before, after
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.hooks: list = []

    def start(self) -> None:
        def registered(owner: torch.nn.Module, _name: str, value: object) -> None:
            self.modules.add(owner)
            if isinstance(value, torch.nn.Module):
                self.modules.add(value)
            elif isinstance(value,
                            torch.nn.Parameter):  # its module may not live until the next scan
                self._mark(value, PARAMETERS)

        def before(one: torch.optim.Optimizer, *_: object) -> None:
            self.optimizers.add(one)
            self._parameters()  # the state is looked up after the step
            self.before(one)

        def after(one: torch.optim.Optimizer, *_: object) -> None:
            self._states(one)
            self.after(one)

        self.hooks = [module.register_module_parameter_registration_hook(registered),
                      module.register_module_buffer_registration_hook(registered),
                      module.register_module_module_registration_hook(registered),
                      optimizer.register_optimizer_step_pre_hook(before),
                      optimizer.register_optimizer_step_post_hook(after)]

    def stop(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def scan(self) -> None:
        """Label the tensors that modules and optimizers hold now."""
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
        for tensor in nested_tensors(list(one.state.values())):
            self._mark(tensor, OPTIMIZER)

    def _mark(self, tensor: torch.Tensor | None, category: str) -> None:
        if type(tensor) in PLAIN_TYPES:  # nearly all tensors, and this is faster
            self.label(tensor.untyped_storage()._cdata, category)
            return
        for key in storages(tensor):
            self.label(key, category)
