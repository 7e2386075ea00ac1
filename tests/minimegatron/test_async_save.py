"""--async-save: what is written is the state at the save, and nothing incomplete is published."""

import resource
import threading

import pytest
import torch

from minimegatron.checkpoint import async_save
from minimegatron.checkpoint.checksums import find_problems
from minimegatron.checkpoint.load import read_tracker
from minimegatron.checkpoint.save import TRACKER, folder_of, read_folder, write_files
from minimegatron.errors import UserError
from minimegatron.main import main
from minimegatron.training import Trainer
from warmranks import run_program, run_ranks

from . import killed_save
from .conftest import MODEL, PRETRAIN
from .test_arguments import parse
from .test_layouts import OVERLAPS, TP, Z3

pytestmark = pytest.mark.slow

SHARD = "mp_rank_00/model_optim_rng.pt"
STEPS = "--global-batch-size 4 --log-interval 1 --eval-iters 0 --lr-decay-iters 9 "


@pytest.fixture
def gate(monkeypatch):
    """Opens for the thread that writes."""
    opened = threading.Event()

    def wait_and_write(*arguments):
        assert opened.wait(60)
        return write_files(*arguments)

    monkeypatch.setattr(async_save, "write_files", wait_and_write)
    yield opened
    opened.set()


@pytest.fixture
def trainer(make_context, tmp_path):
    made = Trainer(make_context(f"--save {tmp_path} --save-interval 1 --async-save"), 512, 0.0)
    made.progress.iteration = 1
    return made


def test_training_goes_on_while_the_state_of_the_save_is_written(trainer, gate, tmp_path):
    before = {name: tensor.clone() for name, tensor in trainer.model.named_parameters()}
    trainer.save()
    assert trainer.saving.is_writing and not (tmp_path / TRACKER).exists()
    with torch.no_grad():
        trainer.optimizer.param_buffer.zero_()
        trainer.optimizer.moments["exp_avg"].fill_(1)
        trainer.optimizer.steps += 7
    assert not folder_of(tmp_path, 1).exists()
    gate.set()
    trainer.finish_saving()
    assert trainer.saving is None and read_tracker(tmp_path / TRACKER) == 1
    saved = torch.load(folder_of(tmp_path, 1) / SHARD, weights_only=True)
    assert all(torch.equal(saved["model"][name], tensor) for name, tensor in before.items())
    assert not saved["optimizer"]["step"] and find_problems(folder_of(tmp_path, 1)) == []
    assert not any(moment.any() for moment in saved["optimizer"]["exp_avg"].values())


def test_one_save_is_in_flight_and_the_next_waits_for_it(trainer, gate, tmp_path):
    trainer.save()
    trainer.progress.iteration = 2
    threading.Timer(0.2, gate.set).start()
    trainer.save()
    assert read_tracker(tmp_path / TRACKER) == 1 and trainer.saving.iteration == 2
    trainer.finish_saving()
    assert read_tracker(tmp_path / TRACKER) == 2


def test_a_thread_that_fails_publishes_nothing(trainer, monkeypatch, tmp_path):
    trainer.save()
    trainer.progress.iteration = 2

    def fail(*arguments):
        raise MemoryError("no room for a buffer")

    monkeypatch.setattr(async_save, "write_files", fail)
    trainer.save()
    with pytest.raises(UserError, match=f"--save {tmp_path}: rank 0 could not .* no room for a bu"):
        trainer.finish_saving()
    assert read_tracker(tmp_path / TRACKER) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_0000001", TRACKER]


def test_the_flag_needs_a_folder():
    with pytest.raises(UserError, match="--async-save needs --save, the folder"):
        parse("--async-save")


def test_a_run_saves_and_resumes_as_without_the_flag(train, tmp_path):
    """Two ranks, sharded; the save before an exit is complete, too."""
    flags = f"{STEPS} --bf16 {Z3} {OVERLAPS} --train-iters 6 "
    save = f"--async-save --save {tmp_path} --load {tmp_path} --save-interval 2 "
    whole = train(flags, 2)
    first = train(f"{flags}{save} --exit-interval 3", 2)
    second = train(flags + save, 2)
    for name in ("lm loss", "grad norm"):
        assert first.column(name) + second.column(name) == whole.column(name)
    for run, iterations in ((first, (2, 3)), (second, (4, 6))):
        for iteration in iterations:
            at = f"at iteration {iteration:7d} to {tmp_path}"
            scheduled, saved = f"scheduled an async checkpoint save {at}", f"saved checkpoint {at}"
            assert run.out.index(scheduled) < run.out.index(f"successfully {saved}")
    assert read_tracker(tmp_path / TRACKER) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(folder_of(tmp_path, iteration).name for iteration in (2, 3, 4, 6)), TRACKER]


def test_a_full_disk_ends_all_ranks_and_names_the_file(dataset, tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        main()

    run = run_program(small_files, [
        PRETRAIN, *(MODEL + dataset.flags + STEPS).split(), "--train-iters", "9", "--save",
        str(tmp_path), "--save-interval", "2", "--async-save", "--num-layers", "1",
        "--tensor-model-parallel-size", "2"], ranks=2)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    for rank in (0, 1):
        assert f"[rank {rank}] error: --save {tmp_path}: rank 0 could not write" in run.stderr
    assert f"{tmp_path}/.unfinished_iter_0000002/{SHARD}: [Errno 27] File too large" in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags, files", [
    (f"--async-save {TP} 2", 2), (f"{TP} 2", 2), (f"--async-save {Z3} {OVERLAPS} --bf16", 1)],
    ids=["async", "sync", "async, ZeRO-3"])
def test_a_run_that_is_killed_at_random_points_resumes(dataset, flags, files, tmp_path):
    """One of two ranks is killed; every resumed run finds an intact checkpoint, and advances."""
    words = (f"{MODEL}{dataset.flags}{STEPS}--train-iters 100000 "
             f"--save {tmp_path} --load {tmp_path} --save-interval 1 {flags}").split()
    for seed in range(12):
        before = read_tracker(tmp_path / TRACKER) or 0
        run_ranks(killed_save.kill_at_random, 2, words, str(tmp_path), seed, backend=None,
                  timeout=120)
        after = read_tracker(tmp_path / TRACKER)
        assert after > before
        folder = read_folder(tmp_path, after)
        assert find_problems(folder) == []
        states = [torch.load(path, weights_only=True) for path in folder.glob(SHARD.replace(
            "00", "*"))]
        assert [state["iteration"] for state in states] == files * [after]
