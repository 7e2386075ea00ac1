"""Names that builds of torch for CUDA have: each works, or is refused by name in one line."""

import importlib
import inspect
import pickle
import pkgutil
from datetime import timedelta
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch import nn

import virtualgpu
from virtualgpu.core.card import generation
from virtualgpu.core.cards import CARDS
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings
from virtualgpu.net.nccl_backend import NO_EFFECT
from virtualgpu.pytorch.properties import SHARED_MEMORY

MODULES = ("torch.cuda", "torch.backends.cuda", "torch.backends.cudnn",
           *(f"torch.cuda.{module.name}" for module in pkgutil.iter_modules(torch.cuda.__path__)
             if not module.name.startswith("_")))
NEEDS_TUNING = {"tune_gemm_in_file"}  # an assertion of torch's, as on any GPU without tuning
REFUSED = 90  # at most so many of the names


def value(program, gpus="h100:2", present=(0,)):
    """What a program returns on the first of two GPUs; it must not fail."""
    rank = run_ranks(parse(gpus), Settings(), program, present and list(present))[0]
    assert rank.error is None, rank.message
    return rank.value


def arguments(name):
    """Return arguments for a function, or None if it needs none."""
    x, state = torch.ones(2, device="cuda"), torch.cuda.get_rng_state()
    shared = torch.ones(1, 2, 16, 64, device="cuda", dtype=torch.bfloat16)
    params = () if name == "SDPAParams" else (torch.backends.cuda.SDPAParams(
        shared, shared, shared, None, 0.0, False, False),)
    device = torch.device("cuda")
    return {
        "SDPAParams": (shared, shared, shared, None, 0.0, False, False), "SDPBackend": (1,),
        "CudaError": (0,), "check_error": (0,), "manual_seed": (1,), "manual_seed_all": (1,),
        "set_rng_state": (state,), "set_rng_state_all": ([state],), "device": (0,),
        "device_of": (x,), "set_device": (0,), "can_device_access_peer": (0, 0),
        "set_per_process_memory_fraction": (1.0,), "caching_allocator_alloc": (512,),
        "caching_allocator_delete": (0,), "set_stream": (torch.cuda.current_stream(),),
        "stream": (torch.cuda.current_stream(),), "StreamContext": (None,),
        "broadcast": (x, [0, 0]), "broadcast_coalesced": ([x], [0, 0]), "gather": ([x],),
        "reduce_add": ([x, x],), "reduce_add_coalesced": ([[x], [x]],), "scatter": (x, [0]),
        "all_gather": ([x], [x]), "all_reduce": ([x],), "reduce": ([x],),
        "reduce_scatter": ([x], [x]), "init_rank": (1, "", 0), "is_available": (),
        "create_jit_fn": ("template <typename T> T f(T x) { return x; }",),
        "mgpu_tune_gemm_in_file": ("*.csv", 1), "tune_gemm_in_file": ("untuned.csv",),
        "is_acceptable": (x,), "set_sync_debug_mode": ("warn",), "sdp_kernel": (),
        "get_stream_from_external": (0,), "use_mem_pool": (None,), "set_filename": ("f.csv",),
        "cuFFTPlanCacheAttrContextProp": (None, None), "cuFFTPlanCache": (0,),
        "can_use_flash_attention": params, "can_use_efficient_attention": params,
        "can_use_cudnn_attention": params, "custom_bwd": (print,), "range": ("name",),
        "mark": ("name",), "range_push": ("name",), "range_start": ("name",), "range_end": (0,),
        "device_count": (), "autocast": (), "Tensor": (), "get_device_name": (device,),
        "ContextProp": (None, None), "GreenContext": (),
        "set_max_tuning_duration": (1,), "set_max_tuning_iterations": (1,)}.get(name)


def tried(function, name):
    """Call a function; return None, or the error."""
    given = arguments(name)
    if given is None:
        try:
            needed = [one for one in inspect.signature(function).parameters.values()
                      if one.default is one.empty and one.kind in (0, 1)]
        except ValueError:
            needed = []
        given = tuple(True if one.name == "enabled" else 0 for one in needed)
    if function.__module__ == "torch.cuda.nccl" and name in ("is_available", "broadcast"):
        given = ([torch.ones(2, device="cuda")],)
    try:
        function(*given)
    except Exception as error:
        return error
    return None


def every_name():
    """Call every public name of the modules; return those that failed, and those refused."""
    failed, refused, count = {}, {}, 0
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in dir(module):
            member = getattr(module, name)
            home = str(getattr(member, "__module__", ""))
            if (name.startswith("_") or name in NEEDS_TUNING or isinstance(member, ModuleType)
                    or not callable(member) or not home.startswith(("torch", "virtualgpu"))):
                continue
            count += 1
            error, where = tried(member, name), f"{module_name}.{name}"
            if isinstance(error, virtualgpu.VirtualGpuError):
                refused[where] = str(error)
            elif error is not None:
                failed[where] = f"{type(error).__name__}: {error}"
            torch.set_default_device(None)
    return failed, refused, count


def test_every_public_name_works_or_is_refused_by_name():
    failed, refused, count = value(every_name)
    assert failed == {} and count > 250, count
    for where, text in refused.items():
        assert "not modeled on virtual GPUs" in text and "\n" not in text, (where, text)
    assert len(refused) < REFUSED, len(refused)


def test_a_property_of_every_gpu_model_is_known_or_refused():
    def program():
        properties = torch.cuda.get_device_properties(0)
        with pytest.raises(AttributeError, match="clock_rate is not modeled on virtual GPUs"):
            _ = properties.clock_rate
        assert not hasattr(properties, "L2_cache_size") and not hasattr(properties, "speed")
        return (properties.shared_memory_per_block_optin, properties.max_threads_per_block,
                properties.pci_bus_id, str(torch.cuda.get_device_properties("cuda")))

    optin, threads, address, text = value(program, "a100:2")
    assert (optin, threads, address) == (163 * 2**10, 1024, 0x1B) and "NVIDIA A100" in text
    assert {generation(card)[:2] for card in CARDS.values()} <= {
        *SHARED_MEMORY}


def test_older_tensor_types_are_types_of_the_gpu_s_tensors():
    def program():
        kinds = torch.cuda
        x = kinds.FloatTensor([[1, 2]])
        assert isinstance(x, kinds.FloatTensor) and not isinstance(x.cpu(), kinds.FloatTensor)
        assert not isinstance(x, kinds.HalfTensor) and kinds.LongTensor(2, 3).shape == (2, 3)
        assert kinds.ByteTensor(torch.Size([2])).dtype is torch.uint8
        moved = torch.ones(2).type(kinds.HalfTensor)
        assert moved.type() == "torch.cuda.HalfTensor" and moved.is_cuda
        assert torch.ones(2).type("torch.cuda.LongTensor").dtype is torch.int64
        assert torch.ones(2).type(torch.float64).dtype is torch.float64
        torch.set_default_tensor_type("torch.cuda.HalfTensor")
        made = torch.ones(2)
        return str(made.device), made.dtype, x.tolist()

    assert value(program) == ("cuda:0", torch.float16, [[1.0, 2.0]])


def test_a_snapshot_has_every_block_of_the_allocator(tmp_path):
    def program():
        torch.cuda.memory._record_memory_history(max_entries=100)
        kept = [torch.ones(size, device="cuda") for size in (3, 2**10, 2**22)]
        gap = torch.ones(5, device="cuda")
        kept.append(torch.ones(7, device="cuda"))
        del gap
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(torch.ones(9, device="cuda"))
        torch.cuda.memory._dump_snapshot(tmp_path / "snapshot.pickle")
        segments = torch.cuda.memory_snapshot()
        blocks = [block for segment in segments for block in segment["blocks"]]
        used = [block for block in blocks if block["state"] == "active_allocated"]
        assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved()
        assert sum(block["size"] for block in used) == torch.cuda.memory_allocated()
        assert sum(block["requested_size"] for block in used) == sum(
            tensor.nbytes for tensor in kept)
        return len(used), len(segments), {segment["stream"] for segment in segments}

    assert value(program) == (5, 3, {0, 1})
    saved = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert len(saved["segments"]) == 3


def groups():
    dist.init_process_group("nccl", timeout=timedelta(seconds=77))
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas = 4
    group = dist.new_group([0, 1], pg_options=options)
    backends = [one._get_backend(torch.device("cuda")) for one in (dist.group.WORLD, group)]
    assert all(isinstance(one, dist.ProcessGroupNCCL) for one in backends)
    assert backends[0].options._timeout == timedelta(seconds=77)
    assert backends[1].options is options and backends[1].size() == 2
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=5))
    control = dist.new_group(backend="gloo")
    assert not isinstance(control._get_backend(torch.device("cpu")), dist.ProcessGroupNCCL)
    dist.monitored_barrier(control)
    with pytest.raises(ValueError, match="only implemented for GLOO"):
        dist.monitored_barrier()
    with pytest.raises(ValueError, match="create the group with torch"):
        dist.ProcessGroupNCCL(None, 0, 2, options)
    c10d = torch._C._distributed_c10d
    with pytest.raises(AttributeError, match="_dump_nccl_trace is compiled for CUDA only"):
        c10d._dump_nccl_trace()
    assert not hasattr(c10d, "_dump_nccl_trace") and not hasattr(c10d, "ProcessGroupMPI")
    x = torch.ones(2, device="cuda")
    dist.all_reduce(x, group=group)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2).cuda())
    model(x).sum().backward()
    return x.tolist()


@pytest.mark.parametrize("present", [[0], None])
def test_nccl_s_process_groups_have_options_and_backends(present):
    for rank in run_ranks(parse("h100:2"), Settings(), groups, present):
        assert rank.error is None, rank.message
        assert rank.value == [2.0, 2.0]
        assert NO_EFFECT in {one.text for one in rank.assumptions}


def test_the_cuda_runtime_s_profiler_is_started_and_other_calls_are_named():
    def program():
        torch.cuda.profiler.start()
        torch.cuda.profiler.stop()
        with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range("step"):
            torch.ones(2, device="cuda")
        assert torch.cuda.cudart().cudaMemGetInfo(0) == torch.cuda.mem_get_info()
        assert torch.backends.cudnn.version() > 90_000 and torch.backends.cudnn.is_available()
        torch.cuda.cudart().cudaStreamCreate(0)

    (rank,) = run_ranks(parse("h100"), Settings(), program)
    assert "cudart().cudaStreamCreate is a call of the CUDA runtime, and not modeled" in rank.error
