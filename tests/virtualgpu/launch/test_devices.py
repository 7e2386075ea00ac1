"""A process has one GPU of its node: what programs ask for by index."""

import copy
import pickle
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _device

import virtualgpu
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings

WAYS = {"to": lambda device: torch.ones(2).to(device), "cuda": lambda device: torch.ones(2).cuda(
    device), "factory": lambda device: torch.ones(2, device=device),
    "module": lambda device: nn.Linear(2, 2).to(device),
    "module.cuda": lambda device: nn.Linear(2, 2).cuda(device),
    "set_device": lambda device: torch.cuda.set_device(device) or device,
    "with device": lambda device: torch.cuda.device(device)}


@pytest.mark.parametrize("gpus", [1, 2])
def test_another_gpu_is_refused(gpus):
    def program():
        errors = {}
        for name, way in WAYS.items():
            assert way("cuda:0") is not None and way(0) is not None
            try:
                way("cuda:1")
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
        return errors

    (rank,) = run_ranks(parse(f"h100:{gpus}"), Settings(), program, [0])
    assert rank.error is None and rank.value.keys() == WAYS.keys()
    for error in rank.value.values():
        if gpus == 1:
            assert error.startswith("AcceleratorError: CUDA error: invalid device ordinal")
        else:
            assert "uses cuda:1, but this process has cuda:0 only" in error


@pytest.mark.parametrize("chosen_by", ["set_device", "mesh"])
def test_every_process_begins_on_gpu_0_until_it_or_a_device_mesh_chooses(chosen_by):
    def program():
        dist.init_process_group("nccl")
        begin = torch.cuda.current_device(), torch.cuda.is_initialized()
        with torch.cuda.device(dist.get_rank()):
            inside = torch.cuda.current_device()
        after = torch.cuda.current_device()
        if chosen_by == "set_device":
            torch.cuda.set_device(dist.get_rank())
        else:
            dist.init_device_mesh("cuda", (2,))
        return begin, inside, after, torch.cuda.current_device(), torch.cuda.is_initialized()

    for rank in run_ranks(parse("h100:2"), Settings(), program):
        assert rank.error is None, rank.error
        assert rank.value == ((0, False), rank.rank, 0, rank.rank, True)


def test_a_share_of_the_memory_is_refused_and_utilization_is_modeled():
    def program():
        x = torch.ones(4096, 4096, device="cuda")
        for _ in range(20):
            x @ x
        torch.cuda.synchronize()
        busy = torch.cuda.utilization()
        time.sleep(10 * time.perf_counter())
        torch.cuda.set_per_process_memory_fraction(1.0)
        try:
            torch.cuda.set_per_process_memory_fraction(0.5)
        except virtualgpu.VirtualGpuError as error:
            return busy, torch.cuda.utilization(), str(error)

    (rank,) = run_ranks(parse("h100"), Settings(), program)
    assert rank.error is None, rank.error
    busy, idle, refused = rank.value
    assert busy > 90 and idle == 0 and "memory_fraction(0.5) is not modeled" in refused


def test_memory_statistics_of_both_pools():
    def program():
        kept = torch.ones(2**20, device="cuda"), torch.ones(3, device="cuda")
        del kept
        torch.ones(5, device="cuda")
        return torch.cuda.memory_stats()

    (rank,) = run_ranks(parse("h100"), Settings(), program)
    assert rank.error is None, rank.error
    for pool, figures in {
            "large_pool": (0, 2**22, 2**22, 2**22), "small_pool": (0, 512, 1024, 1024),
            "all": (0, 2**22 + 512, 2**22 + 1024, 2**22 + 1024)}.items():
        assert figures == tuple(rank.value[f"allocated_bytes.{pool}.{what}"]
                                for what in ("current", "peak", "allocated", "freed"))
    assert rank.value["allocation.all.allocated"] == 3
    assert rank.value["requested_bytes.small_pool.peak"] == 20


def test_moves_keep_the_memory_format():
    def program():
        x = torch.rand(2, 3, 4, 5)
        there = x.cuda(memory_format=torch.channels_last)
        back = there.cpu(memory_format=torch.contiguous_format)
        assert torch.equal(back, x)
        return there.stride(), back.stride()

    (rank,) = run_ranks(parse("h100"), Settings(), program)
    assert rank.error is None, rank.error
    like = torch.empty(2, 3, 4, 5)
    assert rank.value == (like.to(memory_format=torch.channels_last).stride(), like.stride())


def test_nodes_may_have_different_gpus():
    """Each rank computes at its own GPU's speed, and the faster one waits in the all-reduce."""
    def program():
        dist.init_process_group("nccl")
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        begin = time.perf_counter()
        a = a @ a
        torch.cuda.synchronize()
        alone = time.perf_counter() - begin
        dist.all_reduce(a)
        torch.cuda.synchronize()
        return torch.cuda.get_device_name(), alone, time.perf_counter() - begin

    (fast, quick, end), (slow, long, other) = [
        rank.value for rank in run_ranks(parse("a100:1,a10:1"), Settings(), program)]
    assert "A100" in fast and slow == "NVIDIA A10" and quick < long / 2 and end == other > long
    two, one = parse("a100:2x2,a10:2"), parse("a100:1x1,a10:1")
    assert (two.world, two.nodes, two.card_of(3).name, two.card_of(4).name) == (
        6, 3, "a100-80gb", "a10")
    assert one.link == parse("a10").link != parse("a100").link  # the slowest
    mirrored = run_ranks(parse("a100:1x2,a10:1x2"), Settings(), program, [0, 2])
    assert [rank.value[0] for rank in mirrored] == [fast, slow]


def arguments_of(name):
    """Return arguments for a function that creates tensors."""
    matrix = ([[1.0]],)
    return {"tensor": matrix, "as_tensor": matrix, "asarray": matrix, "scalar_tensor": (1.0,),
            "full": ((2,), 1.0), "randint": (3, (2,)), "linspace": (0, 1, 2), "logspace": (0, 1, 2),
            "empty_permuted": ((2, 3), (1, 0)), "empty_strided": ((2,), (1,)),
            "tril_indices": (2, 2), "triu_indices": (2, 2)}.get(name, (2,))


# A deprecated function, one of the CPU, a layout of several tensors, and layouts that are refused.
SPARSE = {"sparse_compressed_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor",
          "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor"}
LEFT_OUT = {"range", "empty_quantized", "nested_tensor", *SPARSE}


def test_every_function_that_creates_tensors_takes_every_spelling_of_a_device():
    # Not the function's cache: if another test filled it while Transformers had replaced
    # torch.linspace, the replacement is in it.
    constructors = _device._device_constructors.__wrapped__()
    names = {function.__name__ for function in constructors} - LEFT_OUT

    def program():
        failed = {}

        def tried(name, make):
            try:
                if (device := make().device) != torch.device("cuda:0"):
                    failed[name] = f"is on {device}"
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"

        like = torch.ones(2)
        for device in ("cuda", "cuda:0", 0, torch.device("cuda"), torch.device(0)):
            for name in names:
                module = torch.fft if name.startswith("fft_") else torch
                function = getattr(module, name.removeprefix("fft_"))
                arguments = arguments_of(name)
                tried(f"{name} {device!r}", lambda: function(*arguments, device=device))  # noqa: B023
                if device not in ("cuda:0", 0):
                    with torch.device(device):
                        tried(f"with {name} {device!r}", lambda: function(*arguments))  # noqa: B023
            more = {"empty_like": (), "full_like": (1.0,), "ones_like": (), "rand_like": (),
                    "randint_like": (3,), "randn_like": (), "zeros_like": ()}
            for name, rest in more.items():
                tried(f"{name} {device!r}", lambda: getattr(torch, name)(  # noqa: B023
                    like, *rest, device=device))  # noqa: B023
            more = {"new_empty": (2,), "new_empty_strided": ((2,), (1,)), "new_full": ((2,), 1.0),
                    "new_ones": (2,), "new_tensor": (2.0,), "new_zeros": (2,)}
            for name, rest in more.items():
                tried(f"{name} {device!r}", lambda: getattr(like, name)(  # noqa: B023
                    *rest, device=device))  # noqa: B023
            for name, move in {"to": like.to, "cuda": like.cuda}.items():
                tried(f"{name} {device!r}", lambda: move(device))  # noqa: B023
            tried(f"to_empty {device!r}", lambda: nn.Linear(2, 2).to_empty(
                device=device).weight)  # noqa: B023
            tried(f"Linear {device!r}", lambda: nn.Linear(2, 2, device=device).weight)  # noqa: B023
        torch.set_default_device("cuda")
        for name in names:
            module = torch.fft if name.startswith("fft_") else torch
            tried(f"by default {name}", lambda: getattr(
                module, name.removeprefix("fft_"))(*arguments_of(name)))  # noqa: B023
        return failed

    (rank,) = run_ranks(parse("h100:1"), Settings(), program)
    assert rank.error is None, rank.message[:1500]
    assert rank.value == {}, rank.message


def test_torch_device_is_still_a_type():
    def program():
        device = torch.device("cuda")
        return (isinstance(device, torch.device), type(device) == torch.device,  # noqa: E721
                {type(device): 1}[torch.device], copy.deepcopy(device) == device,
                pickle.loads(pickle.dumps(torch.device(0))) == torch.device("cuda:0"),
                torch.device("cuda", 0) == torch.device(type="cuda", index=0))

    (rank,) = run_ranks(parse("h100:1"), Settings(), program)
    assert rank.error is None, rank.error
    assert rank.value == (True, True, 1, True, True, True)


def test_a_truncated_normal_distribution_is_drawn_once():
    def program():
        weights = [torch.empty(1000, 1000, device=device) for device in ("cuda", "cpu")]
        for weight in weights:
            nn.init.trunc_normal_(weight, std=0.02)
        small = nn.init.trunc_normal_(torch.empty(100), a=-0.5, b=0.5)
        return [str(weight.device) for weight in weights], float(small.abs().max()) <= 0.5

    (rank,) = run_ranks(parse("h100:1"), Settings(), program)
    assert rank.error is None, rank.error
    assert rank.value == (["cuda:0", "cpu"], True)
    assert "values that trunc_normal_ draws fit at once" in str(rank.assumptions)


def test_a_generator_of_the_gpu_has_its_seed_and_state():
    def program():
        generator = torch.cuda.default_generators[0]
        generator.manual_seed(5)
        state = generator.get_state()
        torch.cuda.manual_seed(7)
        generator.set_state(state)
        return torch.cuda.initial_seed(), torch.equal(torch.cuda.random.get_rng_state(), state)

    (rank,) = run_ranks(parse("h100:1"), Settings(), program)
    assert rank.error is None, rank.error
    assert rank.value == (5, True)


@pytest.mark.parametrize(("program", "problem"), [
    (lambda: torch.cuda.current_blas_handle(), "torch._C._cuda_getCurrentBlasHandle is compiled "
     "for CUDA only, and not modeled on virtual GPUs"),
    (lambda: torch.multiprocessing.spawn(print, nprocs=2), "virtualrun starts one process per GPU"),
    (lambda: nn.DataParallel(nn.Linear(2, 2).cuda())(torch.ones(2, 2)),
     "torch.nn.DataParallel uses 2 GPUs in one process"),
    *((lambda name=name: getattr(torch, name)([[0]], [1.0], device="cuda"),
       "sparse tensors are not modeled on virtual GPUs") for name in sorted(SPARSE))])
def test_what_is_compiled_for_cuda_only_is_refused_by_name(program, problem):
    (rank,) = run_ranks(parse("h100:2"), Settings(), program, [0])
    assert problem in rank.error


def test_data_parallel_on_one_gpu():
    def program():
        model = nn.DataParallel(nn.Linear(2, 2).cuda())
        return str(model(torch.ones(2, 2)).device), hasattr(torch._C, "_nccl_unique_id")

    (rank,) = run_ranks(parse("h100:1"), Settings(), program)
    assert rank.error is None, rank.error
    assert rank.value == ("cuda:0", False)


def test_the_mfu_of_tf32_is_a_share_of_its_peak():
    def program():
        torch.set_float32_matmul_precision("high")
        model = nn.Linear(4096, 4096).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.ones(4096, 4096, device="cuda")).sum().backward()
            optimizer.step()

    (rank,) = run_ranks(parse("h100:1"), Settings(), program)
    assert rank.error is None, rank.error
    assert rank.account["flops"]["peak_tflops"] == {"tf32": pytest.approx(494.7)}
    assert 0.3 < rank.account["flops"]["mfu"] < 1
