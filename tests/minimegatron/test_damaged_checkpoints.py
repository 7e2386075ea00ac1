"""Killed while saving, cut off, rotten, lost: the checkpoint before it is there and can be had."""

import shutil

import pytest
import torch

from minimegatron.checkpoint.checksums import SUMS, find_problems, read_sums
from minimegatron.checkpoint.load import find_checkpoint, load, read_tracker
from minimegatron.checkpoint.save import TRACKER, folder_of, read_folder, save
from minimegatron.context import Progress
from minimegatron.errors import UserError
from minimegatron.model.gpt import Stage
from minimegatron.model.parameters import named_param_specs
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from warmranks import run_ranks

from . import killed_save
from .test_model import VOCABULARY

pytestmark = pytest.mark.slow

SHARD = "mp_rank_00/model_optim_rng.pt"


@pytest.mark.slow
@pytest.mark.parametrize("second, flags", [(2, ""), (1, ""), (2, "--async-save")],
                         ids=["the next one", "the same one again", "by a thread"])
def test_a_kill_at_any_point_of_a_save_costs_no_checkpoint(tmp_path, second, flags):
    (kills,) = run_ranks(killed_save.run, 1, str(tmp_path), 1, second, flags, backend=None,
                         timeout=200)
    assert kills >= 14
    collected = []
    for root in (tmp_path / str(kill) for kill in range(kills + 1)):
        collected.append(read_tracker(root / TRACKER))
        folder = read_folder(root, collected[-1])
        assert find_problems(folder) == []
        assert torch.load(folder / SHARD, weights_only=True)["iteration"] == collected[-1]
    assert (collected[0], collected[-1]) == (1, second) and collected == sorted(collected)


def flip(path):
    """One wrong bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def save_small(make_context, root, *iterations):
    ctx = make_context(f"--save {root} --save-interval 1 --no-save-optim")
    model, learning_rate = torch.nn.Linear(30, 30), LearningRate(ctx.config)
    for iteration in iterations:
        save(ctx, model, killed_save.UNSHARDED, learning_rate, Progress(iteration), 128)


@pytest.fixture
def saved(make_context, tmp_path, capsys):
    """Checkpoints of iterations 1, 2 and 3 of a small model."""
    save_small(make_context, tmp_path, 1, 2, 3)
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize("done", [True, False])
def test_what_a_kill_set_aside_does_not_stop_the_next_save(make_context, saved, done):
    """It is removed once the new one is there, and kept while it is the only one."""
    old, new = saved / ".replaced_iter_0000002", saved / "iter_0000002"
    new.rename(old)
    if done:
        shutil.copytree(old, new)
    save_small(make_context, saved, 4)
    assert old.exists() != done and find_problems(read_folder(saved, 2)) == []


def lose_number(root):
    (root / TRACKER).write_text("soon")


BROKEN = {
    "a wrong bit": (lambda root: flip(folder_of(root, 3) / SHARD), "its sha256 differs", 2),
    "a lost file": (lambda root: (folder_of(root, 3) / SHARD).unlink(),
                    f"there is no iter_0000003/{SHARD}", 2),
    "a lost folder": (lambda root: shutil.rmtree(folder_of(root, 3)),
                      "there is no iter_0000003", 2),
    "a lost tracker": (lambda root: (root / TRACKER).unlink(), f"there is no {TRACKER}", 3),
    "a tracker without a number": (lose_number, "but holds 'soon'", 3),
    "damaged checksums": (lambda root: (folder_of(root, 3) / SUMS).write_text("x"),
                          "line 1 is not a checksum and a name: 'x'", 2),
}


@pytest.mark.parametrize("how", BROKEN)
def test_the_last_good_one_is_taken_when_asked_and_said_aloud(make_context, saved, capsys, how):
    damage_it, said, iteration = BROKEN[how]
    damage_it(saved)
    folder = find_checkpoint(make_context(f"--load {saved} --load-last-good"), saved)
    out = capsys.readouterr().out
    assert folder == folder_of(saved, iteration)
    assert said in out and "!" * 72 in out
    assert f"RESUMING FROM ITERATION {iteration}" in out


@pytest.mark.parametrize("how", sorted(set(BROKEN) - {"a lost tracker"}))
def test_without_being_asked_it_is_named_and_not_taken(make_context, saved, how):
    damage_it, said, iteration = BROKEN[how]
    damage_it(saved)
    with pytest.raises(UserError) as refused:
        find_checkpoint(make_context(f"--load {saved}"), saved)
    assert said in str(refused.value)
    assert f"Complete checkpoints there: iter_000000{iteration}, iter" in str(refused.value)
    assert "--load-last-good takes the newest of them" in str(refused.value)


def test_without_its_tracker_a_run_says_which_checkpoints_it_leaves_alone(
        make_context, saved, capsys):
    (saved / TRACKER).unlink()
    assert find_checkpoint(make_context(f"--load {saved}"), saved) is None
    out = capsys.readouterr().out
    assert "will not load any checkpoints and will start from random" in out
    assert ("although there are checkpoints: iter_0000003, iter_0000002, iter_0000001; "
            "--load-last-good takes" in out)


def test_a_whole_checkpoint_is_loaded_also_with_the_flag(make_context, saved, capsys):
    ctx = make_context(f"--load {saved} --load-last-good")
    assert find_checkpoint(ctx, saved) == folder_of(saved, 3)
    assert "WARNING" not in capsys.readouterr().out


def test_nothing_whole_is_an_error_with_the_flag_too(make_context, saved):
    for iteration in (1, 2, 3):
        flip(folder_of(saved, iteration) / SHARD)
    with pytest.raises(UserError, match="Complete checkpoints there: none"):
        find_checkpoint(make_context(f"--load {saved} --load-last-good"), saved)


def test_a_checkpoint_without_checksums_is_checked_by_its_crcs(make_context, saved):
    """Write the format of Megatron-LM and of earlier versions."""
    (folder_of(saved, 3) / SUMS).unlink()
    assert find_checkpoint(make_context(f"--load {saved}"), saved) == folder_of(saved, 3)
    flip(folder_of(saved, 3) / SHARD)
    with pytest.raises(UserError, match=f"{SHARD} (is corrupted in|cannot be read)"):
        find_checkpoint(make_context(f"--load {saved}"), saved)


def test_all_ranks_refuse_and_all_take_the_last_good_one(train, tmp_path):
    """Though only one of them reads the damaged file."""
    flags = ("--tensor-model-parallel-size 2 --eval-iters 0 --log-interval 1 --save-interval 1 "
             f"--save {tmp_path} --load {tmp_path} --lr-decay-style constant --lr-decay-iters 9 ")
    train(flags + "--train-iters 2", 2)
    flip(folder_of(tmp_path, 2) / "mp_rank_01" / "model_optim_rng.pt")
    run = train(flags + "--train-iters 3", 2, code=None)
    assert run.code != 0 and " iteration        3" not in run.out
    for rank in (0, 1):
        assert (f"[rank {rank}] error: --load {tmp_path}: iter_0000002/mp_rank_01/"
                "model_optim_rng.pt (" in run.err)
    (folder_of(tmp_path, 1) / SUMS).unlink()
    run = train(flags + "--train-iters 3 --load-last-good", 2)
    assert "RESUMING FROM ITERATION 1" in run.out
    assert f"{SUMS}: it can be read, but" in run.out
    assert run.column("consumed samples") == [4, 6]
    assert find_problems(folder_of(tmp_path, 2)) == []  # it was trained and saved again


@pytest.mark.parametrize("text, said", [
    ("", "it is empty"), ("\n", "line 1 is not a checksum and a name: ''"),
    ("0" * 64, "line 1"), (f"{'0' * 63}  a\n", "line 1"), (f"{'G' * 64}  a\n", "line 1"),
    (f"{'0' * 64}  a b\n", "line 1"), (f"{'0' * 64}  a\n\x00\xff", "line 2")])
def test_a_list_of_checksums_that_is_none_is_refused(tmp_path, text, said):
    (tmp_path / SUMS).write_text(text)
    with pytest.raises(ValueError, match=said):
        read_sums(tmp_path)


@pytest.mark.parametrize("rows", [VOCABULARY, VOCABULARY + 1], ids=["same layout", "resharded"])
def test_a_layer_that_was_frozen_when_saved_is_named(make_context, tmp_path, rows):
    ctx = make_context(f"--save {tmp_path} --load {tmp_path} --save-interval 1")
    learning_rate = LearningRate(ctx.config)
    for frozen in ("decoder.layers.1.mlp.linear_fc1.weight", None):
        stage = Stage(ctx, VOCABULARY if frozen else rows, range(2))
        for name, spec in named_param_specs(stage).items():
            spec.trained = name != frozen
        optimizer = Optimizer(ctx, DistributedDataParallel(ctx, stage))
        if frozen:
            save(ctx, stage, optimizer, learning_rate, Progress(1), VOCABULARY)
    with pytest.raises(UserError) as refused:
        load(ctx, stage, optimizer, learning_rate, rows)
    message = str(refused.value)
    assert message.startswith("decoder.layers.1.mlp.linear_fc1.weight: ") and "\n" not in message
    assert "frozen when it was saved" in message and "--no-load-optim" in message
