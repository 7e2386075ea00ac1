"""Run DeepSpeed 0.19.8 on CPUs, without a compiler. Import this before using it.

It changes six things:
1. Collectives go through gloo. `init_distributed` would compile an operator for shared memory
   (20 s, and it needs g++) that a pipeline's sends and receives never use.
2. `seed_layers=True` works. DeepSpeed counts layers with NumPy integers, which Python's
   `random.seed` no longer accepts.
3. `get_global_grad_norm()` returns the gradient norm without ZeRO, too. DeepSpeed computes it for
   clipping, and discards it.
4. `read_config` rejects a configuration that would compile an optimizer.
5. ZeRO does not import torch's compiler, which takes 3 s per process. DeepSpeed imports its
   optimizer Muon to find out whether it is used, and Muon compiles its kernels when imported.
6. Log lines below warnings are not printed, since DeepSpeed writes dozens per rank. Neither are
   torch's warnings that a broadcast has no gradient, which is about the tied weights at the start,
   and that collectives which ZeRO calls have new names.
A program ends with `leave`, which skips the interpreter's cleanup: during it, gloo's threads
occasionally abort a process that has finished.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise, DeepSpeed looks for GPUs

import deepspeed
from deepspeed.runtime import compiler, engine, utils

from labcore.errors import LabError
from lablib import shims
from minimegatron.main import leave

__all__ = ["deepspeed", "leave", "read_config"]

shims.require("deepspeed", "0.19.8")
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", "c10d::broadcast_: an autograd kernel was not registered")
warnings.filterwarnings("ignore", r".*torch.distributed.\w+_tensor` is deprecated", FutureWarning)

# Found in sys.modules, because the attribute `deepspeed.comm.torch` is torch itself.
shims.replace(sys.modules["deepspeed.comm.torch"], "build_shm_op", lambda: None)


def set_random_seed(seed: Any) -> None:
    original_seed(int(seed))


def clip_fp32_gradients(self: engine.DeepSpeedEngine) -> None:
    self._global_grad_norm = utils.clip_grad_norm_(
        parameters=self.module.parameters(), max_norm=self.gradient_clipping(), mpu=self.mpu)


original_compile = shims.replace(compiler, "compile", lambda *_, **__: lambda function: function)
importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
compiler.compile = original_compile

shims.replace(engine.DeepSpeedEngine, "clip_fp32_gradients", clip_fp32_gradients)
original_seed = shims.replace(utils, "set_random_seed", set_random_seed)


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration from a JSON file. Raises LabError if it cannot be used here."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"--config {path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise LabError(f"--config {path} contains a {type(config).__name__}, not an object such as "
                       '{"train_micro_batch_size_per_gpu": 2}')
    optimizer = config.get("optimizer", {})
    kind = str(optimizer.get("type", ""))
    if "adam" in kind.lower() and not optimizer.get("params", {}).get("torch_adam"):
        raise LabError(f'--config {path}: optimizer "{kind}" would compile a C++ extension; '
                       'for the optimizer of torch, add "params": {"torch_adam": true, ...}')
    return config
