"""ProcessGroupNCCL, the class that builds of torch for CUDA have, for programs that ask for it."""

from __future__ import annotations

from typing import NoReturn

from torch._C._distributed_c10d import Backend

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line

VERSION = 2, 27, 3  # as torch.cuda.nccl.version reports it
UNDEFINED = -2**31  # NCCL_CONFIG_UNDEF_INT in nccl.h: NCCL chooses
NAME = "nccl"
NO_EFFECT = "NCCL's options of a process group have no effect on its modeled communication"


class NCCLConfig:
    """ncclConfig_t: the fields that torch exposes, as NCCL initializes them."""

    def __init__(self) -> None:
        self.blocking = self.cga_cluster_size = self.min_ctas = self.max_ctas = UNDEFINED
        self.split_share = self.collnet_enable = self.cta_policy = UNDEFINED
        self.shrink_share = self.nvls_ctas = self.traffic_class = UNDEFINED
        self.net_name = self.comm_name = None


class Options(Backend.Options):
    """ProcessGroupNCCL.Options, which new_group accepts as `pg_options`."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__(NAME)
        self.is_high_priority_stream, self.config = is_high_priority_stream, NCCLConfig()
        self.split_from, self.split_color = None, UNDEFINED


class ProcessGroupNCCL:
    """What a virtual group gives as its backend for tensors on the GPU.

    torch's Backend has no constructor, so this is not one for C++, which never calls it.
    """

    Options, NCCLConfig = Options, NCCLConfig

    def __init__(self, *arguments: object, group_rank: int | None = None, size: int = 0) -> None:
        """Only virtual groups create one.

        Args:
            arguments: those of a program, which are refused.
            group_rank: index of this rank in its group.
            size: number of the group's ranks.

        Raises:
            NoValue: a program calls it.
        """
        if group_rank is None:
            raise NoValue(f"{program_line()}: ProcessGroupNCCL(store, rank, size, options) is not "
                          "modeled on virtual GPUs; create the group with "
                          "torch.distributed.new_group")
        self._rank, self._size = group_rank, size
        self.options, self.uid = Options(), 0
        self.supports_splitting = self.supports_coalescing = True
        self.supports_time_estimate = False

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return NAME

    def _is_initialized(self) -> bool:
        return True

    def _nothing(self, *_: object) -> None:
        """Do nothing, as there is neither a communicator nor a watchdog."""

    abort = shutdown = _group_start = _group_end = _set_default_timeout = _nothing
    _add_ephemeral_timeout = set_timeout = eager_connect_single_device = _nothing
    perform_nocolor_split = _set_sequence_number_for_group = _nothing
    _start_time_estimate = _nothing

    def supports_tensor_alloc(self, device: object) -> bool:
        """FSDP2 then allocates as usual, and not in memory registered with NCCL."""
        return False

    def comm_split_count(self) -> int:
        return 0

    def _get_sequence_number_for_group(self) -> int:
        return 0

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        return VERSION

    get_runtime_nccl_version = get_build_nccl_version

    def _refuse(self, *_: object) -> NoReturn:
        raise NoValue(f"{program_line()}: memory pools and time estimates of NCCL are not modeled "
                      "on virtual GPUs; run the program without them")

    register_mem_pool = deregister_mem_pool = _end_time_estimate = allocate_tensor = _refuse
    mem_allocator = property(_refuse)
