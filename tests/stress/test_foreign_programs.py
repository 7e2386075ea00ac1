"""Programs that other people wrote, from packages on PyPI, run unmodified or stop by name.

The wheels are fetched once per run, with the hashes of foreign/packages.txt, beside this
environment's packages. Programs that need data get synthetic data.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from array import array
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

HERE = Path(__file__).resolve().parent / "foreign"
pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Run(NamedTuple):
    """The results of virtualrun: exit status, both streams, and modeled milliseconds."""

    code: int
    out: str
    err: str
    modeled: float


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """A folder with the packages, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("packages")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes",
         "--only-binary=:all:", "--target", folder, "-r", HERE / "packages.txt"],
        text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def virtualrun(packages, tmp_path):
    """Run a program on virtual GPUs, in an empty folder."""
    def run(*arguments: object, folder: Path = tmp_path, gpus: str = "h100") -> Run:
        environment = {name: value for name, value in os.environ.items()
                       if name not in LAUNCHERS and not name.startswith("SLURM_")}
        done = subprocess.run(
            [sys.executable, "-m", "virtualgpu.run", "--gpus", gpus, *map(str, arguments)],
            cwd=folder, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=500,
            env=environment | {"PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"})
        match = re.search(r"virtualrun: .*?(\S+) ms of modeled time", done.stderr)
        print(done.stdout, done.stderr[-2000:], sep="\n")
        return Run(done.returncode, done.stdout, done.stderr, float(match[1]) if match else 0.0)
    return run


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", text)]


def tokens(path: Path, count: int) -> None:
    draw = Random(count)
    path.write_bytes(array("H", [draw.randrange(50257) for _ in range(count)]).tobytes())


def test_nanogpt_trains_gpt2_on_eight_gpus(packages, virtualrun, tmp_path):
    folder = shutil.copytree(packages / "nanogpt", tmp_path / "nanogpt")
    data = folder / "data" / "openwebtext"
    tokens(data / "train.bin", 200_000)
    tokens(data / "val.bin", 20_000)
    step = {}
    for gpus in ("a100", "h100"):
        arguments = ["--solo", "train.py", "--max_iters=3", "--eval_iters=1"]
        stopped = virtualrun(*arguments, folder=folder, gpus=f"{gpus}:8")
        assert stopped.code != 0 and "step 0: train loss ?, val loss ?" in stopped.out
        line = re.search(r"(train.py, line \d+): `if losses\['val'\] < best_val_loss.*branches",
                         stopped.err)[1].replace(", line ", ":")
        run = virtualrun("--assume", f"{line}=True", *arguments, folder=folder, gpus=f"{gpus}:8")
        assert run.code == 0, run.err
        assert "number of parameters: 123.59M" in run.out
        times = [float(time) for time in re.findall(r"loss \?, time (\S+)ms", run.out)]
        assert len(times) == 4 and run.modeled >= sum(times)
        step[gpus] = times[-1]
        assert "torch.compile is modeled as eager mode" in run.err
    assert 1.5 < step["a100"] / step["h100"] < 4


def test_mingpt_s_trainer_learns(virtualrun):
    run = virtualrun(HERE / "mingpt_trainer.py", gpus="a100")
    assert run.code == 0, run.err
    result = losses(run.out)
    assert len(result) == 20 and result[0] > 2.2 and result[-1] < result[0] - 0.1
    assert run.out.count("cuda iter") == 20 and run.modeled > 0


def test_lightning_s_trainer_and_demonstration(virtualrun, tmp_path):
    text = tmp_path / "data" / "wikitext-2.txt"
    text.parent.mkdir()
    draw = Random(1)
    text.write_text("\n".join(" ".join(f"word{draw.randrange(99)}" for _ in range(35))
                              for _ in range(40)))
    run = virtualrun(HERE / "lightning_transformer.py", "ddp", gpus="h100:2")
    assert run.code == 0, run.err
    assert {*run.out.splitlines()} >= {"rank 0 of 2: 4 steps", "rank 1 of 2: 4 steps"}
    assert run.modeled > 0


def test_accelerate_s_communication_hooks(packages, virtualrun):
    run = virtualrun(packages / "accelerate/test_utils/scripts/test_ddp_comm_hook.py",
                     gpus="h100:2")
    assert run.code == 0, run.err
    for hook in ("fp16", "bf16", "power_sgd", "batched_power_sgd"):
        assert run.out.count(f"Test DDP comm hook: {hook},") >= 2
    assert run.modeled > 0


def test_accelerate_s_gradients_agree_between_ranks(packages, virtualrun):
    """Its own assertions compare the gradients of ranks and steps, by their values."""
    run = virtualrun(packages / "accelerate/test_utils/scripts/test_sync.py", gpus="h100:2")
    assert run.code == 0, run.err
    assert "**Test Distributed `no_sync` context manager**" in run.out
    assert run.out.count("**Test `accumulate` gradient accumulation with optimizer") >= 4
    assert run.modeled > 0


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_hugging_face_s_trainer(virtualrun, model):
    """With autocast and activation checkpointing, on two GPUs with DistributedDataParallel."""
    run = virtualrun(HERE / "hugging_face_trainer.py", model, gpus="h100:2")
    assert run.code == 0, run.err
    assert {*run.out.splitlines()} >= {"rank 0 of 2: 3 steps", "rank 1 of 2: 3 steps"}
    assert "found by optimizer steps (AdamW)" in run.err and "exposed comm." in run.err


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_torchao_s_float8(virtualrun, recipe):
    run = virtualrun(HERE / "torchao_float8.py", recipe)
    assert run.code == 0, run.err
    assert re.findall(r"step (\d): loss \?", run.out) == ["0", "1", "2"]
    assert re.search(r"MFU .* of 1978\.9 TFLOP/s fp8", run.err)
    assert "no cost rule" not in run.err


def test_deepspeed_s_zero(virtualrun):
    """It decides by the norm of the gradients whether a step overflowed."""
    program = HERE / "deepspeed_zero.py"
    stopped = virtualrun(program, 1, gpus="h100:2")
    assert stopped.code != 0
    line = re.search(r"--assume \S+/deepspeed/(\S+:\d+)=True", stopped.err)[1]
    for stage in (1, 2, 3):
        run = virtualrun("--assume", f"{line}=False", program, stage, gpus="h100:2")
        assert run.code == 0, run.err
        assert len(re.findall(r"rank \d, step \d: \d+ MiB", run.out)) == 6
        assert "found by optimizer steps (AdamW)" in run.err and "exposed comm." in run.err


def test_torchtitan_needs_triton(packages, virtualrun):
    run = virtualrun("--solo", packages / "torchtitan/train.py", "--module", "llama3",
                     "--config", "llama3_debugmodel", gpus="h100:8")
    assert run.code != 0
    assert "the program imports 'triton', which is not installed in this Python" in run.err
