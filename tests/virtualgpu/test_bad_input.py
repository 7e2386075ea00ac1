"""What users get wrong with virtual cards: one clear line, the flag or the variable named."""

import os
import shlex

import pytest
import torch

from minimegatron.arguments import parse_arguments
from minimegatron.device import Device, VirtualDevice, choose_device
from minimegatron.errors import UserError
from virtualgpu.cards import CARDS
from virtualgpu.errors import NoValue, UnknownCost
from virtualgpu.gpu import VirtualGpu

from ..minimegatron.conftest import MODEL

NEEDED = MODEL.replace("--device cpu", "") + (
    "--train-iters 10 --data-path x --vocab-file x --merge-file x ")
A100 = CARDS["a100-80gb"]


def choose(flags, monkeypatch, **environment):
    """The device for the flags, on a node that declares this."""
    for name in ("VIRTUAL_GPU", "VIRTUAL_NETWORK", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    device, _ = choose_device(parse_arguments(shlex.split(NEEDED + flags), {}), 0)
    if isinstance(device, VirtualDevice):
        device.gpu.__exit__(None, None, None)
    return device


@pytest.mark.parametrize(("flags", "environment", "message"), [
    ("--device virtual:v100-8gb", {}, "--device virtual:v100-8gb: no virtual card .*v100"),
    ("--device virtual", {}, "this node declares no virtual card; nearest: --device virtual:v100"),
    ("--device virtual", {"VIRTUAL_GPU": "a1000"}, "^VIRTUAL_GPU=a1000: no virtual card .* a100"),
    ("--device virtual:t4 --bf16", {}, "--bf16 on a virtual t4: .*, fp16; nearest: --fp16"),
    ("--device virtual --bf16", {"VIRTUAL_GPU": "v100"}, "--bf16 on a virtual v100-sxm2-16gb"),
    ("--distributed-backend nccl", {"VIRTUAL_GPU": "h1"}, "^VIRTUAL_GPU=h1: no virtual card"),
    ("--device virtual:v100 --virtual-network 25", {}, "^--virtual-network: network '25': .*bit"),
    ("--device virtual:v100", {"VIRTUAL_NETWORK": "x"}, "^VIRTUAL_NETWORK: network 'x': .*25gbit"),
])
def test_refused(monkeypatch, flags, environment, message):
    with pytest.raises(UserError, match=message):
        choose(flags, monkeypatch, **environment)


@pytest.mark.parametrize(("flags", "environment", "label"), [
    ("--device virtual:a100", {}, "virtual a100-80gb"),
    ("--device virtual", {"VIRTUAL_GPU": "T4"}, "virtual t4"),
    ("--device virtual:a10", {"VIRTUAL_GPU": "t4"}, "virtual a10"),
    ("--distributed-backend nccl", {"VIRTUAL_GPU": "l4"}, "virtual l4"),
    ("", {"VIRTUAL_GPU": "l4", "SLURM_GPUS_ON_NODE": "2"}, "virtual l4"),
    ("", {"VIRTUAL_GPU": "l4"}, ""), ("", {"SLURM_GPUS_ON_NODE": "2"}, ""),
    ("--device cpu", {"VIRTUAL_GPU": "l4", "SLURM_GPUS_ON_NODE": "2"}, ""),
])
def test_which_card_is_meant(monkeypatch, flags, environment, label):
    if torch.cuda.is_available():  # then `auto` is that
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = choose(flags, monkeypatch, **environment)
    assert device.label == label and isinstance(device, Device)


def test_a_card_s_own_network_and_the_others(monkeypatch):
    assert choose("--device virtual:v100", monkeypatch).link == "infiniband:4x100gbit"
    declared = {"VIRTUAL_NETWORK": "ethernet:10gbit"}
    assert choose("--device virtual:v100", monkeypatch, **declared).link == "ethernet:10gbit"
    assert choose("--device virtual:v100 --virtual-network 25gbit", monkeypatch,
                  **declared).link == "25gbit"


def test_a_program_that_reads_a_value_is_told_its_line(tmp_path):
    program = tmp_path / "train.py"
    program.write_text("import torch\n\ndef step(x):\n    loss = (x * x).sum()\n"
                       "    return loss.item()\n")
    scope = {}
    exec(compile(program.read_text(), str(program), "exec"), scope)
    with pytest.raises(NoValue) as error, VirtualGpu(A100):
        scope["step"](torch.ones(3, device="meta"))
    assert str(error.value).startswith(f"{program}, line 5 (return loss.item()) reads a value")


def test_a_dtype_that_a_card_lacks():
    half = {"device": "meta", "dtype": torch.bfloat16}
    with pytest.raises(NoValue, match="v100-sxm2-16gb has no bf16 arithmetic; it has fp32, fp16"), \
            VirtualGpu(CARDS["v100-sxm2-16gb"]):
        torch.ones(4, 4, **half) @ torch.ones(4, 4, **half)


def test_operations_without_a_rule_are_counted_and_their_share_shown():
    with VirtualGpu(A100) as gpu:
        big = torch.ones(4096, 4096, device="meta")
        for _ in range(3):
            torch.empty(8, device="meta").cumsum(0)
        for _ in range(4):
            big @ big
    line = gpu.unknown_costs()
    busy = gpu.busy
    share = busy["aten.cumsum"] / sum(busy.values())
    assert 0 < share < 0.02
    assert line == ("virtual a100-80gb: operations without a cost rule, taken for elementwise "
                    f"ones: aten.cumsum (3 calls); {share:.2%} of the kernels' time")


def test_too_much_unknown_time_is_an_error():
    with VirtualGpu(A100) as gpu:
        big = torch.ones(4096, 4096, device="meta")
        big @ big
        for _ in range(5):
            big.cumsum(0)
    with pytest.raises(UnknownCost, match=r"aten.cumsum \(5 calls\); .*%.*more than 2%: the times "
                       "cannot be believed"):
        gpu.unknown_costs()


def test_all_known_says_nothing():
    with VirtualGpu(A100) as gpu:
        assert gpu.unknown_costs() is None
        torch.ones(4, device="meta").exp().sum()
    assert gpu.unknown_costs() is None


BIG = ("--num-layers 4 --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 "
       "--max-position-embeddings 1024 --lr 1e-3 --split 900,50,50 --train-iters 3 "
       "--log-interval 1 --eval-iters 0 ")


def test_a_batch_too_big_ends_the_job_with_the_classic_line(pretrain, dataset):
    """The rank that it does not fit says so, and all end."""
    run = pretrain("--device virtual --micro-batch-size 24 --pipeline-model-parallel-size 2 "
                   "--balance 1-3", ranks=2, code=None, base=BIG + dataset.flags,
                   env={"VIRTUAL_GPU": "v100"})
    assert run.code != 0 and " iteration " not in run.out
    said = [line for line in run.err.splitlines() if "RuntimeError: CUDA out of memory" in line]
    assert said and all(
        line.startswith(("[rank 0] RuntimeError", "[rank 1] RuntimeError")) for line in said)
    assert "(GPU 0; 15.78 GiB total capacity; " in said[0]
    assert said[0].endswith("reserved in total by PyTorch) [virtual v100-sxm2-16gb]")
    left = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if str(dataset.folder).encode() in file.read():
                    left.append(pid)
        except OSError:
            continue
    assert not left
