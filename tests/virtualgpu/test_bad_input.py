"""Users' mistakes with virtual GPUs: each gets one clear line that names the flag or variable."""

import shlex

import pytest
import torch

from minimegatron.arguments import parse_arguments
from minimegatron.errors import UserError
from minimegatron.initialize import choose_device
from virtualgpu.core.cards import CARDS
from virtualgpu.core.errors import NoValue, UnknownCost
from virtualgpu.core.gpu import VirtualGpu

from ..minimegatron.conftest import MODEL

NEEDED = MODEL.replace("--device cpu", "") + (
    "--train-iters 10 --data-path x --vocab-file x --merge-file x ")
A100 = CARDS["a100-80gb"]


@pytest.mark.parametrize("flags", ["--device virtual", "--distributed-backend nccl"])
def test_a_wrong_declaration_is_named(monkeypatch, flags):
    monkeypatch.setenv("VIRTUAL_GPU", "a1000")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # then `auto` would be that
    with pytest.raises(UserError, match=r"^VIRTUAL_GPU=a1000: no virtual GPU .*nearest: a100"):
        choose_device(parse_arguments(shlex.split(NEEDED + flags), {}), 0)


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
            torch.empty(8, device="meta").cumprod(0)
        for _ in range(4):
            big @ big
    line = gpu.unknown_costs()
    busy = gpu.busy
    share = busy["aten.cumprod"] / sum(busy.values())
    assert 0 < share < 0.02
    assert line == ("virtual a100-80gb: operations without a cost rule, costed as elementwise "
                    f"ones: aten.cumprod (3 calls); {share:.2%} of the kernels' time")


def test_too_much_unknown_time_is_an_error():
    with VirtualGpu(A100) as gpu:
        big = torch.ones(4096, 4096, device="meta")
        big @ big
        for _ in range(5):
            big.cumprod(0)
    with pytest.raises(UnknownCost, match=r"aten.cumprod \(5 calls\); .*%.*more than 2%: the times "
                       "are not reliable"):
        gpu.unknown_costs()


def test_all_known_says_nothing():
    with VirtualGpu(A100) as gpu:
        assert gpu.unknown_costs() is None
        torch.ones(4, device="meta").exp().sum()
    assert gpu.unknown_costs() is None


BIG = ("--num-layers 4 --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 "
       "--max-position-embeddings 1024 --lr 1e-3 --split 900,50,50 --train-iters 3 "
       "--log-interval 1 --eval-iters 0 ")


@pytest.mark.slow
def test_a_batch_too_big_ends_the_job_with_the_classic_line(train, dataset):
    """The rank that it does not fit says so, and all end."""
    run = train("--device virtual --micro-batch-size 24 --pipeline-model-parallel-size 2 "
                "--balance 1-3", ranks=2, code=None, base=BIG + dataset.flags,
                env={"VIRTUAL_GPU": "v100"})
    assert run.code != 0 and " iteration " not in run.out
    (said,) = (line for line in run.err.splitlines() if "RuntimeError: CUDA out of memory" in line)
    # Rank 1 has three of four layers; the scores are 24 x 16 x 1,024 x 1,024 numbers of 4 bytes.
    assert said.startswith("[rank 1] RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB"
                           " (GPU 0; 15.78 GiB total capacity; ")
    assert said.endswith("reserved in total by PyTorch) [virtual v100-sxm2-16gb]")
