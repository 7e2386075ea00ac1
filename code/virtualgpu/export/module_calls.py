"""Watch the calls of modules: an outermost one without gradients is a forward pass of inference."""

from __future__ import annotations

import functools
import threading

import torch

from virtualgpu.core.eager import EagerHost
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export.passes import Passes


class ModuleCalls:
    """Tells a virtual GPU whether its program runs inference, and records its forward passes."""

    def __init__(self, gpu: VirtualGpu, passes: Passes) -> None:
        self.gpu, self.passes = gpu, passes
        self.depth = 0  # of the module that is being called
        self.original = None

    def start(self) -> None:
        self.original = torch.nn.Module.__call__
        torch.nn.Module.__call__ = self._watched(self.original)

    def stop(self) -> None:
        if self.original is not None:
            torch.nn.Module.__call__, self.original = self.original, None

    def _watched(self, original):
        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: object, **kwargs: object):
            if threading.current_thread() is not threading.main_thread():
                return original(module, *args, **kwargs)
            if self.depth:
                return self._nested(original, module, args, kwargs)
            return self._outermost(original, module, args, kwargs)
        return call

    def _nested(self, original, module: torch.nn.Module, args: tuple, kwargs: dict):
        if isinstance(self.gpu.eager, EagerHost):
            self.gpu.eager.module_call()
        self.depth += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            self.depth -= 1

    def _outermost(self, original, module: torch.nn.Module, args: tuple, kwargs: dict):
        self.gpu.inferring = not torch.is_grad_enabled()
        if not self.gpu.inferring or torch._C._current_graph_task_id() != -1:
            self.gpu.inferring = False
            return self._counted(original, module, args, kwargs)
        self.passes.begin(module, args, kwargs)
        try:
            return self._nested(original, module, args, kwargs)
        finally:
            self.passes.end()

    def _counted(self, original, module: torch.nn.Module, args: tuple, kwargs: dict):
        self.depth += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            self.depth -= 1
