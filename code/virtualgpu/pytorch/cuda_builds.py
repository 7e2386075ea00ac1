"""Names that only builds of torch for CUDA have: they work on the virtual GPU, or are refused.

cuda.py has the functions of torch.cuda that programs measure with; here is the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import ModuleType
from typing import NoReturn

import torch

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.core.workspaces import sizes
from virtualgpu.pytorch import snapshots, streams
from virtualgpu.pytorch.attention import cudnn_fits, efficient_fits, flash_fits
from virtualgpu.pytorch.mode import CudaGpu

# torch 2.8's build for CUDA 12.8 installs nvidia-cudnn-cu12 9.10.2.21; torch reports it as
# 10,000 x major + 100 x minor + patch.
CUDNN_VERSION = 91_002
CUDNN_BENCHMARK_LIMIT = 10  # torch's default
SNAPSHOT_ONLY = ("the allocator's history is not recorded: snapshots have the blocks of one "
                 "moment; --trace writes memory over time")
NO_SYNC_DEBUG = "torch.cuda.set_sync_debug_mode prints no warnings about synchronization"
LEGACY = {"BFloat16Tensor": torch.bfloat16, "BoolTensor": torch.bool, "ByteTensor": torch.uint8,
          "CharTensor": torch.int8, "DoubleTensor": torch.float64, "FloatTensor": torch.float32,
          "HalfTensor": torch.float16, "IntTensor": torch.int32, "LongTensor": torch.int64,
          "ShortTensor": torch.int16}


class CudaOnly(NoValue, AttributeError):
    """A part of torch that is compiled for CUDA only. To hasattr, it does not exist."""


def install(gpu: CudaGpu) -> None:
    """Add the names to torch.cuda, torch.backends, and torch._C."""
    cuda = torch.cuda
    for name, value in {**_of_c(gpu), "__getattr__": _missing}.items():
        setattr(torch._C, name, value)
    for name in ("GdsFile", "gds_register_buffer", "gds_deregister_buffer"):
        setattr(cuda.gds, name, refused("files of GPUDirect Storage"))
    cuda._cudart = runtime = CudaRuntime(gpu)
    cuda.cudart = lambda: runtime
    for name, what in NOT_MODELED.items():
        setattr(cuda, name, refused_class(name, what) if name[0].isupper() else refused(what))
    cuda.list_gpu_processes = lambda device=None: processes(gpu)
    for name, dtype in LEGACY.items():
        setattr(cuda, name, legacy_type(name, dtype))
        if hasattr(cuda.sparse, name):
            setattr(cuda.sparse, name, refused_class(name, "sparse tensors"))
    cuda.FloatStorage.__base__.__new__ = refused("typed storages of CUDA")
    _by_legacy_type()
    _backends(gpu)
    ranges = torch.autograd.profiler.emit_nvtx  # for a profiler of NVIDIA's, of which there is none
    ranges.__enter__, ranges.__exit__ = lambda self: self, lambda self, *_: None


def propagate(before: dict[str, object]) -> None:
    """Replace what torch.cuda's own modules imported from each other before it was replaced.

    Args:
        before: the attributes of torch.cuda before.
    """
    changed = {name: value for name, value in vars(torch.cuda).items()
               if name in before and value is not before[name]
               and not isinstance(value, ModuleType)}
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch.cuda."):
            for name in changed.keys() & vars(module).keys():
                if vars(module)[name] is before[name]:
                    setattr(module, name, changed[name])


def _missing(name: str) -> object:
    """Refuse a function of torch._C that this build lacks, by its name."""
    if name.startswith("__"):
        raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
    refuse_c(name)


def refuse_c(name: str) -> NoReturn:
    """Raise CudaOnly for a name in torch._C."""
    raise CudaOnly(f"{program_line()}: torch._C.{name} is compiled for CUDA only, and not modeled "
                   "on virtual GPUs; run the program without what calls it")


def refused(what: str) -> Callable:
    """Return a function that raises NoValue, because virtual GPUs do not model what it is for."""
    def refuse(*_: object, **__: object):
        raise NoValue(f"{program_line()}: {what} are not modeled on virtual GPUs; run the program "
                      "without them")
    return refuse


def refused_class(name: str, what: str) -> type:
    return type(name, (), {"__init__": refused(what), "__module__": "torch.cuda"})


GRAPHS, POOLS = "CUDA graphs", "memory pools"
SENSORS = "temperature, power, and clocks"
NOT_MODELED = {
    "CUDAGraph": GRAPHS, "graph": GRAPHS, "graph_pool_handle": GRAPHS,
    "make_graphed_callables": GRAPHS, "MemPool": POOLS, "use_mem_pool": POOLS,
    "CUDAPluggableAllocator": "pluggable allocators",
    "change_current_allocator": "pluggable allocators",
    "ExternalStream": "streams of other libraries",
    "get_stream_from_external": "streams of other libraries",
    "temperature": SENSORS, "power_draw": SENSORS, "clock_rate": SENSORS,
    "memory_usage": "accesses of memory over time"}


def processes(gpu: CudaGpu) -> str:
    """Return torch.cuda.list_gpu_processes: this process and its memory."""
    used = (gpu.memory.non_pytorch + gpu.memory.reserved) / 2**20
    return f"GPU:{gpu.index}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"


class CudaRuntime:
    """torch.cuda.cudart(): the few calls that programs make, and errors that name the others."""

    class cudaError(IntEnum):
        success = 0

    def __init__(self, gpu: CudaGpu) -> None:
        self._gpu = gpu

    def cudaProfilerStart(self) -> int:
        """Start an external profiler, of which there is none. cudaProfilerStop stops it."""
        return self.cudaError.success

    cudaProfilerStop = cudaProfilerStart

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return torch.cuda.mem_get_info(device)

    def cudaGetErrorString(self, code: int) -> str:
        return "no error" if code == self.cudaError.success else f"CUDA error {code}"

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        """Pin memory of the host; copies from all of it run at the same rate here."""
        return self.cudaError.success

    def cudaHostUnregister(self, address: int) -> int:
        return self.cudaError.success

    def __getattr__(self, name: str) -> object:
        raise CudaOnly(f"{program_line()}: cudart().{name} is a call of the CUDA runtime, and not "
                       "modeled on virtual GPUs; run the program without it")


def _of_c(gpu: CudaGpu) -> dict[str, Callable]:
    """Return functions of torch._C that Python code of torch and programs call."""
    note, settings = gpu.assumptions.note, {"sync": 0, "limit": CUDNN_BENCHMARK_LIMIT}

    def set_sync(mode: int) -> None:
        settings["sync"] = mode
        if mode:
            note(NO_SYNC_DEBUG)

    def clear_workspaces() -> None:
        gpu.workspaces.held.clear()

    def no_history(enabled: object = None, *_: object, **__: object) -> None:
        if enabled:
            note(SNAPSHOT_ONLY)

    return {
        "_scatter": _scatter,
        "_cuda_getDevice": lambda: torch.cuda.current_device(),
        "_cuda_setDevice": lambda index: torch.cuda.set_device(index),
        "_cuda_getCurrentRawStream": lambda device=0: list(streams.streams).index(gpu.stream),
        "_cuda_synchronize": lambda: torch.cuda.synchronize(),
        "_cuda_emptyCache": lambda: torch.cuda.empty_cache(),
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_getMemoryFraction": lambda device: 1.0,
        "_cuda_getCublasWorkspaceSize": lambda: sizes(gpu.card, False)[0],
        "_cuda_getCublasLtWorkspaceSize": lambda: sizes(gpu.card, True)[-1],
        "_cuda_clearCublasWorkspaces": clear_workspaces,
        "_cuda_get_sync_debug_mode": lambda: settings["sync"],
        "_cuda_set_sync_debug_mode": set_sync,
        "_cuda_get_cudnn_benchmark_limit": lambda: settings["limit"],
        "_cuda_set_cudnn_benchmark_limit": lambda limit: settings.update(limit=limit),
        "_cuda_memorySnapshot": lambda pool=None: snapshots.snapshot(gpu),
        "_cuda_record_memory_history": no_history,
        "_cuda_record_memory_history_legacy": no_history,
        "_cuda_resetAccumulatedHostMemoryStats": lambda: None,  # pinned memory is not counted
        "_cuda_resetPeakHostMemoryStats": lambda: None,
        "_cuda_tunableop_is_enabled": lambda: False,  # its GEMMs would be other kernels
        "_cuda_tunableop_tuning_is_enabled": lambda: False,
        "_cuda_record_untuned_is_enabled": lambda: False}


def _scatter(tensor: torch.Tensor, devices: Sequence[int], *_: object) -> tuple[torch.Tensor]:
    """Implement torch._C._scatter, which nn.DataParallel calls, for one GPU."""
    if len(devices) > 1:
        raise NoValue(f"{program_line()}: torch.nn.DataParallel uses {len(devices)} GPUs in one "
                      "process, which virtual GPUs do not model; use DistributedDataParallel, or "
                      "run on one GPU, such as --gpus h100:1")
    return (tensor.to(torch.device("cuda", devices[0])),)


def _backends(gpu: CudaGpu) -> None:
    """Answer what torch.backends knows of CUDA's libraries."""
    cudnn, backends = torch.backends.cudnn, torch.backends.cuda
    cudnn.is_available, cudnn.version = lambda: True, lambda: CUDNN_VERSION
    backends.is_built = backends.is_flash_attention_available = lambda: True
    backends.cuFFTPlanCache.__init__ = refused("plan caches of cuFFT")

    def fits(rule: Callable) -> Callable:
        return lambda params, debug=False: rule(
            gpu, params.query, params.key, params.value, params.attn_mask, params.enable_gqa)

    backends.can_use_flash_attention = fits(flash_fits)
    backends.can_use_cudnn_attention = fits(cudnn_fits)
    backends.can_use_efficient_attention = fits(lambda _, query, key, value, *__: efficient_fits(
        query, key, value))


def legacy_type(name: str, dtype: torch.dtype) -> type:
    """Return torch.cuda.FloatTensor or another of the types that older programs use.

    Args:
        dtype: dtype of its tensors.
    """
    class Legacy(type):
        def __call__(cls, *data: object) -> torch.Tensor:
            """Return an uninitialized tensor of these sizes, or a tensor of the data."""
            if not data or isinstance(data[0], torch.Size) or all(type(n) is int for n in data):
                sizes = data[0] if data and isinstance(data[0], torch.Size) else data or (0,)
                return torch.empty(sizes, dtype=dtype, device="cuda")
            return torch.as_tensor(data[0], dtype=dtype, device="cuda")

        def __instancecheck__(cls, instance: object) -> bool:
            return (isinstance(instance, torch.Tensor) and instance.is_cuda
                    and instance.dtype is dtype)

    return Legacy(name, (), {"__module__": "torch.cuda", "dtype": dtype, "is_cuda": True})


def _by_legacy_type() -> None:
    """Let Tensor.type and torch.set_default_tensor_type take these types, and their names."""
    move, set_default = torch.Tensor.type, torch.set_default_tensor_type

    def legacy(kind: object) -> torch.dtype | None:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        if getattr(kind, "__module__", "") == "torch.cuda" or name.startswith("torch.cuda."):
            return LEGACY.get(name.rpartition(".")[2])
        return None

    def type_(self: torch.Tensor, dtype: object = None, non_blocking: bool = False, **options):
        target = legacy(dtype)
        if target is None:
            return move(self, dtype, non_blocking, **options)
        return self.to("cuda", target, non_blocking=non_blocking)

    def set_default_tensor_type(kind: object) -> None:
        target = legacy(kind)
        if target is None:
            set_default(kind)
        else:
            torch.set_default_dtype(target)
            torch.set_default_device("cuda")

    torch.Tensor.type, torch.set_default_tensor_type = type_, set_default_tensor_type
