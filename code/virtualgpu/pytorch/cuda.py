"""The functions of torch.cuda, implemented on the virtual GPU."""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from collections.abc import Callable

import torch

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.core.memory import Allocator
from virtualgpu.net.nccl_backend import VERSION
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.properties import properties

CUDA_VERSION = "12.8"  # as torch.version.cuda reports it
# Names in torch.cuda.memory_stats, in the order of Pool.levels, and names that are not modeled.
COUNTED = (("allocated_bytes", "active_bytes"), ("reserved_bytes",), ("requested_bytes",),
           ("allocation", "active"), ("segment",))
NOT_COUNTED = ("inactive_split_bytes", "inactive_split")
FIGURES = ("current", "peak", "allocated", "freed")


def statistics(gpu: CudaGpu) -> OrderedDict[str, int]:
    """Return torch.cuda.memory_stats. Inactive splits are not counted, so they are zero."""
    memory, stats = gpu.memory, OrderedDict()
    pools = {"large_pool": memory.large, "small_pool": memory.small}
    peaks = (memory.peak, memory.peak_reserved, memory.peak_requested, memory.peak_count,
             memory.peak_segments)
    for index, names in enumerate(COUNTED):
        rows = {name: (pool.levels[index], pool.peaks[index], pool.totals[index],
                       pool.freed(index))
                for name, pool in pools.items()}
        current, _, added, freed = map(sum, zip(*rows.values(), strict=True))
        for pool, row in {"all": (current, peaks[index], added, freed), **rows}.items():
            stats |= {f"{name}.{pool}.{what}": number for name in names
                      for what, number in zip(FIGURES, row, strict=True)}
    for name in (*(f"{name}.{pool}" for name in NOT_COUNTED for pool in ("all", *pools)),
                 "oversize_allocations", "oversize_segments"):
        stats |= {f"{name}.{what}": 0 for what in FIGURES}
    stats |= {"num_alloc_retries": memory.retries, "num_ooms": memory.ooms,
              "num_sync_all_streams": 0, "num_device_alloc": memory.segment_allocations,
              "num_device_free": memory.segment_allocations - memory.segments, "max_split_size": -1}
    return stats


def install(gpu: CudaGpu) -> None:
    """Replace the functions of torch.cuda and torch.accelerator."""
    cuda = torch.cuda
    replaced = {**_devices(gpu), **_memory(gpu), **_random(gpu)}
    for name, value in replaced.items():
        setattr(cuda, name, value)
    torch.multiprocessing.spawn = _not_started
    cuda.nccl.version = lambda: VERSION
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, lambda *_, **__: 0)
    torch.version.cuda = CUDA_VERSION
    _accelerator(gpu)
    modules = torch.get_device_module

    def device_module(device: object = None):
        kind = "cuda" if device is None else torch.device(device).type
        return cuda if kind == "cuda" else modules(device)

    torch.get_device_module = functools.wraps(modules)(device_module)


def _devices(gpu: CudaGpu) -> dict[str, object]:
    props = properties(gpu.card, gpu.index)

    def set_device(device: object) -> None:
        """Make the process's GPU the current one. Torch ignores a negative index.

        Raises:
            torch.AcceleratorError: the node has no such GPU, as on CUDA.
            NoValue: the GPU is another rank's.
        """
        if type(device) is not int or device >= 0:
            target = torch.device("cuda", device) if type(device) is int else torch.device(device)
            if target.type == "cuda":
                gpu.own_device(target)
                if target.index is not None:
                    gpu.current = target.index

    class DeviceContext:
        """torch.cuda.device: set_device for a block."""

        def __init__(self, device: object = None) -> None:
            self.device, self.idx, self.before = device, gpu.index, gpu.current
            if device is not None:
                set_device(device)
                gpu.current = self.before

        def __enter__(self) -> None:
            self.before = gpu.current
            if self.device is not None:
                set_device(self.device)

        def __exit__(self, *error: object) -> None:
            gpu.current = self.before

    return dict(
        is_available=lambda: True, _is_compiled=lambda: True, init=lambda: None,
        is_initialized=lambda: gpu.current is not None,  # DeviceMesh chooses for a process without
        _lazy_init=lambda: None, _is_in_bad_fork=lambda: False,
        device_count=lambda: gpu.count, current_device=lambda: gpu.current or 0,
        set_device=set_device,
        get_device_name=lambda device=None: props.name,
        get_device_properties=lambda device=None: props,
        get_device_capability=lambda device=None: (props.major, props.minor),
        get_arch_list=lambda: [f"sm_{props.major}{props.minor}"],
        can_device_access_peer=lambda device, peer: bool(gpu.card.nvlink or gpu.card.peer),
        synchronize=lambda device=None: gpu.now() and None, ipc_collect=lambda: None,
        is_bf16_supported=lambda including_emulation=True: props.major >= 8 or including_emulation,
        is_tf32_supported=lambda: props.major >= 8, device=DeviceContext,
        device_of=lambda tensor: DeviceContext(), _DeviceGuard=DeviceContext,
        _exchange_device=lambda device: gpu.index, _maybe_exchange_device=lambda device: gpu.index,
        is_current_stream_capturing=lambda: False, utilization=lambda device=None: utilization(gpu))


def utilization(gpu: CudaGpu) -> int:
    """Return the percentage of the run in which kernels ran; CUDA reports the last second."""
    return round(100 * busy_share(gpu))


def busy_share(gpu: CudaGpu) -> float:
    """Return the share of the run in which kernels ran."""
    seconds = gpu.clock.reached()
    return min(1.0, gpu.computing / seconds) if seconds else 0.0


def _memory(gpu: CudaGpu) -> dict[str, object]:
    memory = gpu.memory

    def settled() -> Allocator:
        """Return the memory after all kernels that were deferred for fusion have allocated."""
        if gpu.fuser is not None:
            gpu.fuser.flush()
        return memory

    def reset(device: object = None) -> None:
        settled().reset_peaks()

    def reset_totals(device: object = None) -> None:
        for pool in (memory.small, memory.large):
            pool.reset_totals()

    def limit(fraction: float, device: object = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        if fraction < 1:
            raise NoValue(
                f"{program_line()}: torch.cuda.set_per_process_memory_fraction({fraction}) is "
                          "not modeled on virtual GPUs; run with a smaller GPU model (--gpus)")

    return dict(
        mem_get_info=lambda device=None: (memory.free, memory.capacity),
        memory_allocated=lambda device=None: settled().live,
        max_memory_allocated=lambda device=None: settled().peak,
        memory_reserved=lambda device=None: settled().reserved,
        max_memory_reserved=lambda device=None: settled().peak_reserved,
        reset_peak_memory_stats=reset, reset_max_memory_allocated=reset,
        reset_accumulated_memory_stats=reset_totals,
        memory_stats=lambda device=None: statistics(gpu),
        empty_cache=gpu.empty_cache,
        set_per_process_memory_fraction=limit,
        device_memory_used=lambda device=None: memory.non_pytorch + memory.reserved)


def _random(gpu: CudaGpu) -> dict[str, object]:
    """Return torch.cuda's random functions. The generator is a seed and an offset, as on CUDA."""
    values = gpu.values

    def seed(value: int) -> None:
        values.seed, values.offset = int(value) % 2**38, 0

    def fresh() -> None:
        seed(int.from_bytes(os.urandom(4), "little"))

    def state(device: object = None) -> torch.Tensor:
        return torch.tensor([values.seed, values.offset], dtype=torch.int64).view(torch.uint8)

    def set_state(saved: torch.Tensor, device: object = None) -> None:
        values.seed, values.offset = saved.cpu().view(torch.int64).tolist()

    generator = GpuGenerator(seed, fresh, state, set_state, lambda: values.seed)
    return dict(
        default_generators=(generator,) * gpu.count, manual_seed=seed, manual_seed_all=seed,
        seed=fresh, seed_all=fresh, initial_seed=lambda: values.seed, get_rng_state=state,
        set_rng_state=set_state, get_rng_state_all=lambda: [state()],
        set_rng_state_all=lambda states: set_state(next(iter(states))))


class GpuGenerator:
    """A GPU's default random number generator; a process has one, whatever its index."""

    def __init__(self, seed: Callable, fresh: Callable, state: Callable, set_state: Callable,
                 initial: Callable) -> None:
        """Args:
            seed: sets the seed.
            fresh: chooses one.
            state: returns the state.
            set_state: restores it.
            initial: returns the seed.
        """
        self.device, self._seed, self._fresh = torch.device("cuda", 0), seed, fresh
        self.get_state = self.graphsafe_get_state = state
        self.set_state = self.graphsafe_set_state = set_state
        self.initial_seed = initial

    def manual_seed(self, value: int) -> GpuGenerator:
        self._seed(value)
        return self

    def seed(self) -> int:
        self._fresh()
        return self.initial_seed()


def _not_started(*_: object, **__: object) -> None:
    """Refuse torch.multiprocessing.spawn."""
    raise NoValue(f"{program_line()}: processes that torch.multiprocessing.spawn starts have no "
                  "virtual GPU; virtualrun starts one process per GPU itself, as torchrun does: "
                  'call the function with int(os.environ["RANK"])')


def _accelerator(gpu: CudaGpu) -> None:
    def exchange(index: int) -> int:
        before = torch.cuda.current_device()
        torch.cuda.set_device(index)
        return before

    torch._C._get_accelerator = lambda check=None: torch.device("cuda")
    torch._C._accelerator_exchangeDevice = exchange
    torch._C._accelerator_maybeExchangeDevice = exchange
    accelerator = torch.accelerator
    accelerator.is_available = lambda: True
    accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    accelerator.device_count = lambda: gpu.count
    accelerator.current_device_index = accelerator.current_device_idx = torch.cuda.current_device
    accelerator.set_device_index = accelerator.set_device_idx = torch.cuda.set_device
    accelerator.synchronize = torch.cuda.synchronize
    memory = torch.accelerator.memory
    for name in ("empty_cache", "memory_stats", "memory_allocated", "max_memory_allocated",
                 "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats"):
        for where in (accelerator, memory):
            setattr(where, name, getattr(torch.cuda, name))
