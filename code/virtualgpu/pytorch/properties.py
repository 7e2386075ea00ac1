"""torch.cuda.get_device_properties: what torch reports about a GPU model."""

from __future__ import annotations

from types import SimpleNamespace

from virtualgpu.core.card import Card, generation
from virtualgpu.core.gpu import program_line
from virtualgpu.core.slots import bus
from virtualgpu.pytorch.cuda_builds import CudaOnly

KIB = 2**10
# Shared memory of a multiprocessor by compute capability, and what the driver reserves of it for
# each block, in bytes; the rest is the most that a block can opt into. These and the limits of
# threads and registers are those of libcu++ (NVIDIA/cccl, cuda/__device/arch_traits.h).
SHARED_MEMORY = {(7, 0): (96 * KIB, 0), (7, 5): (64 * KIB, 0), (8, 0): (164 * KIB, KIB),
                 (8, 6): (100 * KIB, KIB), (8, 9): (100 * KIB, KIB), (9, 0): (228 * KIB, KIB),
                 (10, 0): (228 * KIB, KIB)}
# Fields that CUDA has, and that nothing here models.
NOT_MODELED = {"L2_cache_size", "clock_rate", "memory_bus_width", "memory_clock_rate"}


class DeviceProperties(SimpleNamespace):
    """The properties of a virtual GPU; a field that is not modeled is refused by its name."""

    def __getattr__(self, name: str) -> object:
        if name in NOT_MODELED:
            raise CudaOnly(f"{program_line()}: {name} is not modeled on virtual GPUs; run the "
                           "program without what reads it")
        raise AttributeError(f"'torch._C._CudaDeviceProperties' object has no attribute {name!r}")


def properties(card: Card, index: int) -> DeviceProperties:
    """Return torch.cuda.get_device_properties.

    Args:
        card: the GPU model.
        index: the GPU's number on its node, which decides on its bus, as in nvidia-smi.
    """
    major, minor, threads = generation(card)
    shared, reserved = SHARED_MEMORY[major, minor]
    return DeviceProperties(
        name=card.product, total_memory=card.memory, multi_processor_count=card.sms, major=major,
        minor=minor, max_threads_per_multi_processor=threads, max_threads_per_block=1024,
        warp_size=32, is_integrated=0, is_multi_gpu_board=0, regs_per_multiprocessor=65536,
        gcnArchName="", shared_memory_per_block=48 * KIB,
        shared_memory_per_block_optin=shared - reserved, shared_memory_per_multiprocessor=shared,
        pci_bus_id=bus(index), pci_device_id=0, pci_domain_id=0, uuid=f"virtual-{card.name}")
