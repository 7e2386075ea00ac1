"""The program as its users start it: what it prints, writes and refuses."""

import json
import math
import re
import socket
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .conftest import MODEL, PRETRAIN

pytestmark = pytest.mark.slow

STEPS = "--global-batch-size 8 --train-iters 20 --log-interval 5 --eval-interval 10 --eval-iters 1 "


@pytest.fixture(scope="module")
def alone(request):
    """Column texts of one run of one process, shared by the parity tests."""
    return {}


def test_start_up_lines_stand_in_megatron_s_order(train):
    out = train(STEPS).out
    expected = [
        "using world size: 1, data-parallel-size: 1, tensor-model-parallel size: 1, "
        "pipeline-model-parallel size: 1 \n",
        "------------------------ arguments ------------------------\n",
        "  adam_beta1 ...................................... 0.9\n",
        "  world_size ...................................... 1\n",
        "-------------------- end of arguments ---------------------\n",
        "setting number of micro-batches to constant 4\n",
        "> building GPT2BPETokenizer tokenizer ...\n",
        " > padded vocab (size: 512) with 0 dummy tokens (new size: 512)\n",
        "> initializing torch distributed ...\n",
        "> initializing tensor model parallel with size 1\n",
        "> initializing pipeline model parallel with size 1\n",
        "> setting random seeds to 1234 ...\n",
        "time to initialize megatron (seconds): ",
        "[after megatron is initialized] datetime: ",
        " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 42880\n",
        "> learning rate decay style: linear\n",
        "[after model, optimizer, and learning rate scheduler are built] datetime: ",
        "> building train, validation, and test datasets ...\n",
        "    train:      160\n    validation: 24\n    test:       8\n",
        "> finished creating GPT datasets ...\n",
        "[after dataloaders are built] datetime: ",
        "done with setup ...\n",
        "time (ms) | model-and-optimizer-setup: ",
        "training ...\n",
        "[before the start of training step] datetime: ",
        " iteration        5/      20 | consumed samples:           40 |",
        "[Rank 0] (after 5 iterations) memory (MB) | allocated: ",
        "time (ms) | forward-compute: ",
        " validation loss at iteration 10 | lm loss value: ",
        "[after training is done] datetime: ",
        " validation loss at the end of training for val data | lm loss value: ",
        " validation loss at the end of training for test data | lm loss value: ",
    ]
    at = 0
    for text in expected:
        result = out.find(text, at)
        assert result >= 0, f"{text!r} is missing or out of order"
        at = result + len(text)
    for absent in ("Compilation time", "fused softmax"):  # Megatron-LM compiles kernels, we do not
        assert absent not in out


def test_the_loss_falls_on_real_text(train):
    loss = train("--micro-batch-size 8 --train-iters 60 --log-interval 20 --eval-iters 0 "
                 "--lr 1e-2").column("lm loss")
    untrained = math.log(512)
    assert untrained > loss[0] > loss[1] > loss[2]
    assert loss[2] < untrained - 0.7


PARITY = {
    "2 replicas under torchrun": (2, "torch.distributed.run", ""),
    "2 replicas under the old launcher": (2, "torch.distributed.launch", ""),
    "2 stages of 2 tensor-parallel ranks, a schedule of one's own": (
        4, None, "--tensor-model-parallel-size 2 --sequence-parallel "
        "--pipeline-model-parallel-size "
        f"2 --schedule {Path(__file__).with_name('own_schedule.py')} "),
}


@pytest.mark.parametrize("device", ["cpu", "virtual:v100"])
def test_a_cold_start_does_not_import_the_compiler(pretrain, device):
    run = pretrain(f"--device {device} --train-iters 1 --eval-iters 0",
                   env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rpartition("|")[2].strip() for line in run.err.splitlines()}
    assert "minimegatron.training" in imported and "torch._dynamo" not in imported


# The old launcher starts the classic course's job, too: tests/jobs/test_jobs.py.
@pytest.mark.parametrize("how", [
    pytest.param(how, marks=pytest.mark.stress) if "old launcher" in how else how
    for how in PARITY])
def test_many_ranks_equal_one_process(pretrain, train, alone, how):
    """Loss, gradient norm, and validation loss over 6 steps, dropout on. The launchers start cold
    ranks; without one the ranks are warm. More layouts: test_layouts.py."""
    steps = ("--global-batch-size 8 --train-iters 6 --log-interval 1 --eval-interval 3 "
             "--eval-iters 1 ")
    if not alone:
        alone["run"] = train(steps)
    ranks, launcher, flags = PARITY[how]
    flags += "--distributed-backend nccl"
    tee = {"PET_TEE": "3"} if launcher == "torch.distributed.run" else {}  # says whose line it is
    run = (pretrain(steps + flags, ranks, launcher, env=tee) if launcher else
           train(steps + flags, ranks))
    if tee:
        printing = re.findall(r"^\[default(\d)\]: (?:iteration|validation)", run.out, re.M)
        assert set(printing) == {str(ranks - 1)}  # the last rank knows the loss in every layout
        run = replace(run, out=re.sub(r"^\[default\d\]:", "", run.out, flags=re.M))
    tp, pp = (2 if axis in flags else 1 for axis in ("--tensor-", "--pipeline-"))
    assert (f"data-parallel-size: {ranks // tp // pp}, tensor-model-parallel size: {tp}, "
            f"pipeline-model-parallel size: {pp} ") in run.out
    for rank in product(range(tp), range(pp)):
        assert run.out.count(f"parameters on (tensor, pipeline) model parallel rank {rank}") == 1
    got, expected = (re.findall(r"lm loss value: (\S+)", r.out) for r in (run, alone["run"]))
    assert len(got) == 4
    assert list(map(float, got)) == pytest.approx(list(map(float, expected)), rel=1e-5)
    for name in ("lm loss", "grad norm"):
        got, expected = run.column(name), alone["run"].column(name)
        assert len(got) == len(expected) == 6
        # The log shows three decimals of the norm.
        tolerance = {"rel": 1e-5, "abs": 0.001 if name == "grad norm" else 2e-6}
        assert got == pytest.approx(expected, **tolerance)
    assert run.out.count("on the CPU gloo is used instead") == 1
    assert run.out.count(" iteration        1/       6") == 1


def test_threads_are_capped_at_the_machine(train):
    run = train("--train-iters 1 --eval-iters 0 --global-batch-size 8", 4,
                env={"OMP_NUM_THREADS": "32"})
    assert re.search(r"^using \d+ thread\(s\) per rank instead of 32: 4 rank\(s\) share this "
                     r"machine's \d+ cores$", run.out, re.M)


def test_tensorboard_has_megatron_s_tags(train, tmp_path):
    run = train(STEPS + f"--tensorboard-dir {tmp_path} --log-timers-to-tensorboard "
                   "--log-validation-ppl-to-tensorboard --log-params-norm --log-num-zeros-in-grad "
                   "--log-batch-size-to-tensorboard --log-world-size-to-tensorboard "
                   "--log-memory-to-tensorboard", 2)
    board = EventAccumulator(str(tmp_path)).Reload()
    tags = set(board.Tags()["scalars"])
    expected = {"lm loss", "grad-norm", "learning-rate", "loss-scale", "batch-size", "world-size",
                "params-norm", "num-zeros", "iteration-time", "forward-compute-time",
                "lm loss validation", "lm loss validation ppl", "mem-allocated-bytes",
                "lm loss vs samples", "lm loss validation vs samples"}
    assert expected <= tags
    points = board.Scalars("lm loss")
    assert [point.step for point in points] == list(range(1, 21))
    means = [sum(p.value for p in points[i:i + 5]) / 5 for i in range(0, 20, 5)]
    assert means == pytest.approx(run.column("lm loss"), rel=1e-5)
    assert board.Scalars("lm loss vs samples")[-1].step == 160


def test_every_rank_s_profile_is_a_worker_of_one_run(train, tmp_path):
    train(f"--train-iters 4 --eval-iters 0 --tensorboard-dir {tmp_path} --profile-execution yes "
          "--profile-name first", 2)
    for rank in (0, 1):
        (trace,) = (tmp_path / "run_first").glob(f"run_first_gpu{rank}.*.pt.trace.json")
        events = json.loads(trace.read_text())["traceEvents"]
        steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep#")}
        assert steps == {"ProfilerStep#2", "ProfilerStep#3"}


@pytest.mark.parametrize("flags, message", [
    ("--mock-data", "error: --mock-data: a flag of Megatron-LM, but text comes from one data set"),
    ("--vocab-file nowhere.json", "nowhere.json"),
    ("--data-path nowhere", "nowhere.idx"),
    ("--split 0,50,50", "--split 0,50,50"),
    ("--load pyproject.toml", "--load pyproject.toml is a file: give the folder that holds"),
    ("--save /proc/x --save-interval 1", "--save /proc/x is not a folder that can be written to"),
    ("--tensorboard-dir /proc/x", "--tensorboard-dir /proc/x is not a folder that can be written"),
    ("--device cuda", "--device cuda: torch finds no CUDA device here; nearest: --device cpu"),
])
def test_bad_input_is_one_line_and_a_bad_exit_code(train, flags, message):
    run = train(f"--train-iters 1 {flags}", code=1)
    assert message in run.err
    assert "Traceback" not in run.err
    assert len(run.err.strip().splitlines()) == 1


def test_a_wrong_command_line_is_said_once_by_many_ranks(train):
    run = train("--train-iters 1 --global-batch-size 3", 2, code=None)
    assert run.code != 0
    assert run.err.count("global batch size (3) is not divisible by") == 1


def test_help_names_every_flag(train):
    out = train("--help", base="").out
    for flag in MODEL.split()[::2]:
        assert flag in out


def test_a_corrupted_index_is_named(train, dataset, tmp_path):
    for suffix in ("bin", "idx"):
        content = (dataset.folder / f"text_document.{suffix}").read_bytes()
        (tmp_path / f"text_document.{suffix}").write_bytes(content[:-7])
    run = train(f"--train-iters 1 --data-path {tmp_path}/text_document", code=1)
    assert f"{tmp_path}/text_document.idx" in run.err and "Traceback" not in run.err


def test_exit_after_a_duration_saves_first(train, tmp_path):
    run = train("--train-iters 100000 --eval-iters 0 --exit-duration-in-mins 0.01 "
                   f"--save {tmp_path} --save-interval 1000000", 2)
    assert re.search(r"\[exiting program after [\d.]+ minutes\] datetime:", run.out)
    assert (tmp_path / "latest_checkpointed_iteration.txt").exists()


def test_sigterm_saves_and_exits(dataset, tmp_path):
    command = [sys.executable, PRETRAIN, *(MODEL + dataset.flags).split(), "--train-iters",
               "1000000", "--eval-iters", "0", "--exit-signal-handler", "--log-interval", "1",
               "--save", str(tmp_path), "--save-interval", "1000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith(" iteration"):
            break
    process.terminate()
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "[exiting program after receiving SIGTERM.] datetime:" in out
    assert (tmp_path / "latest_checkpointed_iteration.txt").exists()


def test_sigterm_during_the_start_is_kept_until_there_is_something_to_save(dataset, tmp_path):
    command = [sys.executable, PRETRAIN, *(MODEL + dataset.flags).split(), "--train-iters",
               "1000000", "--eval-iters", "0", "--exit-signal-handler", "--save", str(tmp_path),
               "--save-interval", "1000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("using world size")
    process.terminate()
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 0, out
    assert "[exiting program after receiving SIGTERM.] datetime:" in out
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "1"


def rendezvous(port, address="127.0.0.1"):
    return {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def test_a_port_that_is_taken(train):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        run = train("--train-iters 1", env=rendezvous(port), code=1)
    assert re.search(rf"error: MASTER_PORT {port} on \S+ is taken by another program; a free one: "
                     r"MASTER_PORT=\d+", run.err)


def test_an_address_that_does_not_exist(train):
    env = {**rendezvous(29999, "nowhere.invalid"), "RANK": "1", "WORLD_SIZE": "2"}
    run = train("--train-iters 1 --distributed-timeout-minutes 0.02", env=env, code=1)
    assert ("cannot rendezvous with the others at MASTER_ADDR:MASTER_PORT nowhere.invalid:29999"
            in run.err)


def test_half_a_launcher_is_not_enough(train):
    run = train("--train-iters 1", env={"RANK": "0"}, code=1)
    assert "RANK is set but MASTER_ADDR, MASTER_PORT, WORLD_SIZE is not" in run.err
    assert len(run.err.strip().splitlines()) == 1
