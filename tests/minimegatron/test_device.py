"""Which device a rank gets: by the flag, by what the node declares, by what the job asked for."""

import subprocess
import sys

import pytest
import torch

from minimegatron.arguments import parse_arguments
from minimegatron.device.device import CpuDevice
from minimegatron.device.virtual import VirtualDevice
from minimegatron.errors import UserError
from minimegatron.initialize import choose_device
from virtualgpu.core.slots import INSTEAD_OF_CPU

MODEL = ("--num-layers 1 --hidden-size 8 --num-attention-heads 2 --seq-length 8 "
         "--max-position-embeddings 8 --micro-batch-size 1 --lr 1e-3 --train-iters 1 "
         "--data-path d --vocab-file v --merge-file m ")
DECLARED, ASKED = {"VIRTUAL_GPU": "a10"}, {"SLURM_GPUS_ON_NODE": "2"}
NCCL = "--distributed-backend nccl"


@pytest.fixture
def choose(monkeypatch):
    for name in ("VIRTUAL_GPU", "VIRTUAL_NETWORK", "SLURM_GPUS_ON_NODE", INSTEAD_OF_CPU):
        monkeypatch.delenv(name, raising=False)
    chosen = []

    def choose(flags="", environment=(), local_rank=0):
        for name, value in dict(environment).items():
            monkeypatch.setenv(name, value)
        device, notes = choose_device(parse_arguments((MODEL + flags).split(), {}), local_rank)
        chosen.append(device)
        return device, notes
    yield choose
    for device in chosen:
        if isinstance(device, VirtualDevice):
            device.gpu.__exit__(None, None, None)


@pytest.mark.parametrize("flags, environment", [
    ("", DECLARED | ASKED), (NCCL, DECLARED), ("--device virtual", DECLARED),
    ("--device virtual:a10", {}), ("--device virtual:a10", {"VIRTUAL_GPU": "t4"}),
])
def test_a_virtual_card(choose, flags, environment):
    device, _ = choose(flags, environment)
    assert (device.label, device.kind, device.has_values) == ("virtual a10", "a virtual GPU", False)


@pytest.mark.parametrize("flags, environment, notes", [
    ("", {}, 0), ("", DECLARED, 0), ("", ASKED, 0), ("--device cpu", DECLARED | ASKED, 0),
    (NCCL, {}, 1), (f"--device cpu {NCCL}", DECLARED, 1),
])
def test_the_cpu(choose, flags, environment, notes):
    device, told = choose(flags, environment)
    assert type(device) is CpuDevice and len(told) == notes
    assert all("needs GPUs: on the CPU gloo is used" in note for note in told)


@pytest.fixture
def two_gpus(monkeypatch):
    """Imitate a node with two GPUs for code that only asks; nothing is computed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")


def test_a_site_s_scripts_for_the_cpu_use_its_gpus(choose, two_gpus):
    device, told = choose("--device cpu", {INSTEAD_OF_CPU: "cuda"}, 1)
    assert (str(device.torch_device), device.backend) == ("cuda:1", "nccl")
    assert told == [f"--device cpu: CUDA is used instead, since {INSTEAD_OF_CPU}=cuda"]
    assert choose("--device virtual:a10")[0].label == "virtual a10"
    with pytest.raises(UserError, match="local rank 2 has no GPU: this node shows 2"):
        choose("--device cpu", (), 2)


def test_a_pipeline_over_gloo_is_refused_on_gpus(monkeypatch, two_gpus):
    gloo = "--distributed-backend gloo"
    stages = f"{MODEL} --pipeline-model-parallel-size 2 --num-layers 2 {gloo}".split()
    config = parse_arguments(stages, {"WORLD_SIZE": "2"})
    with pytest.raises(UserError, match="gloo sends and receives only CPU tensors; nearest: "
                                        "--distributed-backend nccl"):
        choose_device(config, 0)
    one_stage = parse_arguments(f"{MODEL} {gloo}".split(), {"WORLD_SIZE": "2"})
    assert choose_device(one_stage, 0)[0].backend == "gloo"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert type(choose_device(config, 0)[0]) is CpuDevice


def test_a_gpu_that_is_not_asked_for_is_not_used(choose, two_gpus):
    assert type(choose("--device cpu")[0]) is CpuDevice


def test_the_network_is_the_flags_then_the_clusters_then_the_cards(choose):
    network = {"VIRTUAL_NETWORK": "ethernet:10gbit"}
    assert choose("--device virtual:a10")[0].link != "ethernet:10gbit"
    assert choose("--device virtual:a10", network)[0].link == "ethernet:10gbit"
    flags = "--device virtual:a10 --virtual-network infiniband:2x100gbit"
    assert choose(flags, network)[0].link == "infiniband:2x100gbit"


@pytest.mark.parametrize("flags, environment, local_rank, why", [
    ("--device virtual", {}, 0, "this node declares no virtual GPU; nearest: --device virtual:"),
    ("--device virtual", DECLARED | ASKED, 2, "local rank 2 has no GPU: this job has 2 on this "
     "node; nearest: --nproc_per_node 2"),
    ("--device virtual --bf16", {"VIRTUAL_GPU": "t4"}, 0, "--bf16 on a virtual t4: this GPU has "
     "no bf16 arithmetic, only fp32, fp16; nearest: --fp16"),
    ("--device cpu", {INSTEAD_OF_CPU: "cuda"}, 0, "this cluster's jobs use CUDA instead"),
    ("--device cpu", {INSTEAD_OF_CPU: "gpu"}, 0, f"nearest: {INSTEAD_OF_CPU}=cuda"),
    ("--device cuda", {}, 0, "torch finds no CUDA device here; nearest: --device cpu"),
])
def test_what_is_not_there_is_refused(choose, flags, environment, local_rank, why):
    with pytest.raises(UserError) as error:
        choose(flags, environment, local_rank)
    assert why in str(error.value)


@pytest.mark.parametrize("flags, why", [
    ("--device virtual:v10", "no virtual GPU model is called 'v10'; nearest: v100"),
    ("--device virtaul:v100", "--device virtaul:v100: one of auto, cpu, cuda, virtual"),
    ("--device gpu", "nearest: --device "), ("--device cpu:0", "nearest: --device "),
    ("--device virtual:v100 --bf16", "no bf16 arithmetic"),
])
def test_a_device_that_cannot_be_is_refused_before_anything_starts(flags, why):
    with pytest.raises(UserError) as error:
        parse_arguments((MODEL + flags).split(), {})
    assert why in str(error.value)


@pytest.mark.parametrize("link", ["25", "fast:25gbit", "ethernet:0gbit", "ethernet:25gbit:2"])
def test_a_network_that_cannot_be_is_refused(choose, link):
    with pytest.raises(UserError, match=f"--virtual-network: network '{link}': a kind"):
        parse_arguments(f"{MODEL} --device virtual:v100 --virtual-network {link}".split(), {})
    with pytest.raises(UserError, match=f"VIRTUAL_NETWORK: network '{link}': a kind"):
        choose("--device virtual:v100", {"VIRTUAL_NETWORK": link})


@pytest.mark.parametrize("device", ["cpu", "virtual:a100"])
def test_a_software_stack_that_does_not_exist_is_refused(device):
    with pytest.raises(UserError, match=r"--software-stack: .* nearest: megatron-2021"):
        parse_arguments(f"{MODEL} --device {device} --software-stack megatron-202".split(), {})


@pytest.mark.slow
def test_a_run_on_the_cpu_imports_no_other_device():
    """All it imports of virtualgpu is the name of a variable, and `main` the errors."""
    program = ("import sys\nimport minimegatron.training\n"
               "from minimegatron.arguments import parse_arguments\n"
               "from minimegatron.initialize import choose_device\n"
               "config = parse_arguments(sys.argv[1:], {})\n"
               "print(choose_device(config, 0)[0].kind)\n"
               "print(*sorted(name for name in sys.modules if name.startswith("
               "('virtualgpu', 'minimegatron.device.'))))\n")
    done = subprocess.run([sys.executable, "-c", program, *MODEL.split(), "--device", "cpu"],
                          capture_output=True, text=True, timeout=120)
    kind, modules = done.stdout.splitlines()
    assert kind == "the CPU"
    assert modules.split() == ["minimegatron.device.device", "virtualgpu", "virtualgpu.core",
                               "virtualgpu.core.slots"]
