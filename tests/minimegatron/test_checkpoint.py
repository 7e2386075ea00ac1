"""Saved whole or not at all; resumed exactly; what is not a checkpoint is refused, not executed."""

import math
import pickle
import resource
import shutil
import subprocess

import pytest
import torch

from minimegatron.checkpoint.checksums import sha256, write_sums
from minimegatron.main import main
from warmranks import run_program, run_ranks

from . import failing_rank
from .conftest import MODEL, PRETRAIN

pytestmark = pytest.mark.slow

STEPS = "--global-batch-size 4 --train-iters 6 --log-interval 1 --eval-iters 1 --eval-interval 4 "


LAYOUTS = {
    "alone": (0, ""),
    "replicas": (2, ""),
    "tensor-parallel, modern block": (
        2, "--tensor-model-parallel-size 2 --group-query-attention --num-query-groups 2 "
           "--swiglu --untie-embeddings-and-output-weights --disable-bias-linear "
           "--position-embedding-type rope --normalization RMSNorm "),
    "tensor and sequence, replicas": (4, "--tensor-model-parallel-size 2 --sequence-parallel "),
    "fp16, divided": (2, "--fp16 --initial-loss-scale 262144 --use-distributed-optimizer "
                         "--ddp-bucket-size 1001 --overlap-grad-reduce "),
}
MARKS = {0: (), 2: pytest.mark.slow, 4: pytest.mark.stress}  # by the number of ranks


@pytest.mark.parametrize("layout", [
    pytest.param(name, marks=MARKS[ranks]) for name, (ranks, _) in LAYOUTS.items()])
def test_resuming_is_exact_with_dropout_on(train, tmp_path, layout):
    ranks, flags = LAYOUTS[layout]
    steps, save = STEPS + flags, f"--save {tmp_path} --load {tmp_path} --save-interval 100 "
    whole = train(steps, ranks)
    first = train(steps + save + "--exit-interval 3", ranks)
    second = train(steps + save, ranks)
    assert "will not load any checkpoints and will start from random" in first.out
    assert "[exiting program at iteration 3] datetime:" in first.out
    assert f" loading checkpoint from {tmp_path} at iteration 3" in second.out
    for name in ("lm loss", "grad norm", "learning rate", "consumed samples"):
        assert first.column(name) + second.column(name) == whole.column(name)
    assert len(whole.column("learning rate")) == 6  # fp16 has no loss where it skipped
    last = [line for line in whole.out.splitlines() if "validation loss at the end" in line]
    assert len(last) == 2 and all(line in second.out for line in last)
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "6"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "iter_0000003", "iter_0000006", "latest_checkpointed_iteration.txt"]
    parts = 2 if "tensor" in flags else 1
    assert sorted(p.name for p in (tmp_path / "iter_0000006").iterdir()) == [
        "SHA256SUMS", *(f"mp_rank_{tp:02d}" for tp in range(parts))]
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], check=True,
                   cwd=tmp_path / "iter_0000006")


def test_every_replica_saves_what_it_owns(train, tmp_path):
    """Its files serve any number of replicas, and none."""
    steps = "--global-batch-size 4 --train-iters 4 --log-interval 1 --eval-iters 0 --bf16 "
    whole = train(steps)
    save = f"--save {tmp_path} --load {tmp_path} --save-interval 100 "
    train(steps + save + "--exit-interval 2 --use-distributed-optimizer", 2)
    folder = tmp_path / "iter_0000002" / "mp_rank_00"
    names = ["distrib_optim_000.pt", "distrib_optim_001.pt"]
    assert sorted(p.name for p in folder.iterdir()) == [*names, "model_optim_rng.pt"]
    files = [torch.load(folder / name, weights_only=True) for name in names]
    for file in files:
        assert set(file["owned"]) == {"exp_avg", "exp_avg_sq", "fp32_from_fp16_params"}
    elements = [sum(len(values) for _, _, values in file["owned"]["exp_avg"]) for file in files]
    assert sum(elements) == sum(map(math.prod, files[0]["shapes"].values()))
    assert abs(elements[0] - elements[1]) <= 64  # padding at the end of a bucket
    alone = train(steps + f"--load {tmp_path}")
    assert alone.column("lm loss") == pytest.approx(whole.column("lm loss")[2:], rel=5e-4)
    (folder / names[1]).unlink()
    assert f"there is no iter_0000002/mp_rank_00/{names[1]}" in train(
        steps + f"--load {tmp_path}", code=1).err


def test_another_tensor_parallel_size_resumes(train, one_step, tmp_path):
    """From one rank to two, and back; the log names both layouts."""
    flags = "--eval-iters 0 --log-interval 1 --override-lr-scheduler --save-interval 9 "
    two = train(f"{flags}--train-iters 2 --tensor-model-parallel-size 2 --load {one_step} "
                f"--save {tmp_path}", 2)
    one = train(f"{flags}--train-iters 3 --load {tmp_path}")
    alone = train(f"{flags}--train-iters 2 --load {one_step} ")
    assert two.column("lm loss") == pytest.approx(alone.column("lm loss"), rel=1e-5)
    assert (" resharding the checkpoint: saved as tensor-parallel size 2, 1 stage(s) of 2 layers, "
            "loaded as tensor-parallel size 1, 1 stage(s) of 2 layers\n") in one.out
    assert one.column("consumed samples") == [6] and "resharding" not in alone.out


def test_what_a_killed_run_left_is_not_published(train, tmp_path):
    left = tmp_path / ".unfinished_iter_0000001" / "mp_rank_01"
    left.mkdir(parents=True)
    (left / "model_optim_rng.pt").write_bytes(b"of another layout")
    train(f"--train-iters 1 --eval-iters 0 --save {tmp_path} --save-interval 1")
    assert sorted(p.name for p in (tmp_path / "iter_0000001").iterdir()) == [
        "SHA256SUMS", "mp_rank_00"]
    assert not left.parent.exists()


def test_a_lost_part_of_the_same_layout_is_named(train, tmp_path):
    flags = "--eval-iters 0 --tensor-model-parallel-size 2 "
    train(flags + f"--train-iters 1 --save {tmp_path} --save-interval 1", 2)
    shutil.rmtree(tmp_path / "iter_0000001" / "mp_rank_01")
    err = train(flags + f"--train-iters 2 --load {tmp_path}", 2, code=None).err
    assert "there is no iter_0000001/mp_rank_01/model_optim_rng.pt" in err


@pytest.fixture(scope="module")
def one_step(train, tmp_path_factory):
    root = tmp_path_factory.mktemp("one_step")
    train(f"--train-iters 1 --eval-iters 0 --save {root} --save-interval 1")
    return root


@pytest.fixture
def saved(one_step, tmp_path):
    """A copy of a checkpoint of one step: its folder and its file."""
    root = tmp_path / "checkpoints"
    shutil.copytree(one_step, root)
    return root, root / "iter_0000001" / "mp_rank_00" / "model_optim_rng.pt"


def rewrite(file, state):
    """Save other contents, with the checksum that belongs to them."""
    torch.save(state, file)
    write_sums(file.parents[1], {f"{file.parent.name}/{file.name}": sha256(file)})


def load(train, root, flags="--train-iters 2 --eval-iters 0", code=1):
    return train(f"{flags} --load {root}", code=code)


def test_megatron_s_keys(saved):
    state = torch.load(saved[1], weights_only=True)
    assert {"args", "checkpoint_version", "iteration", "model", "optimizer", "lr_scheduler",
            "random_rng_state", "np_rng_state", "torch_rng_state", "cuda_rng_state",
            "rng_tracker_states"} == set(state)
    assert (state["checkpoint_version"], state["iteration"]) == (3.0, 1)
    assert state["args"]["consumed_train_samples"] == 2
    assert "decoder.layers.1.self_attention.linear_qkv.weight" in state["model"]


class Attack:
    def __reduce__(self):
        return print, ("the checkpoint ran code",)


@pytest.mark.parametrize("content", [
    b"", b"not a checkpoint at all", pickle.dumps({"model": Attack()}), None])
def test_what_is_not_a_checkpoint_is_refused(train, saved, content):
    root, file = saved
    file.write_bytes(file.read_bytes()[:-1000] if content is None else content)
    for sums, reason in (({}, "is not what was saved: its sha256 differs"),
                         (None, "cannot be read: File is not a zip file")):
        if sums is None:
            (file.parents[1] / "SHA256SUMS").unlink()
        err = load(train, root).err
        assert f"error: --load {root}: iter_0000001/mp_rank_00/model_optim_rng.pt" in err
        assert reason in err and "Complete checkpoints there: none" in err
        assert "Traceback" not in err and "the checkpoint ran code" not in err


def test_code_in_a_checkpoint_is_not_run(train, saved):
    root, file = saved
    rewrite(file, {"args": {}, "model": Attack(), "iteration": 1, "checkpoint_version": 3.0})
    run = load(train, root)
    assert "is not a checkpoint of this trainer" in run.err
    assert "the checkpoint ran code" not in run.out + run.err


def test_a_file_with_other_contents_is_refused(train, saved):
    root, file = saved
    rewrite(file, {"weights": torch.zeros(3)})
    assert "it has no args, checkpoint_version, iteration, model" in load(train, root).err


def test_a_missing_iteration_names_those_that_are_there(train, saved):
    root, _ = saved
    (root / "latest_checkpointed_iteration.txt").write_text("7")
    err = load(train, root).err
    assert "there is no iter_0000007. Complete checkpoints there: iter_0000001; " in err
    assert "--load-last-good takes the newest of them" in err


def test_right_keys_with_wrong_contents_are_refused(train, saved):
    root, file = saved
    state = torch.load(file, weights_only=True)
    for key in ("model", "optimizer", "lr_scheduler"):
        rewrite(file, {**state, key: {"x": 1}})
        run = load(train, root)
        assert f"{file} is not a checkpoint of this trainer" in run.err
        assert "Traceback" not in run.err


def test_nodes_that_see_different_trackers_are_refused(saved, tmp_path, dataset):
    (tmp_path / "load0").symlink_to(saved[0])
    flags = [*(MODEL + dataset.flags).split(), "--train-iters", "2", "--eval-iters", "0",
             "--global-batch-size", "4", "--load", f"{tmp_path}/loadRANK"]
    for code, err in run_ranks(failing_rank.run, 2, "", flags, str(tmp_path), backend=None):
        assert code == 1
        assert "(rank 0: 1, rank 1: None): --load needs a folder that all nodes share" in err


def test_evaluation_goes_on_when_a_resumed_run_needs_more_samples(train, tmp_path):
    save = f"--save {tmp_path} --load {tmp_path} --save-interval 100 --global-batch-size 2 "
    train(save + "--train-iters 4 --eval-interval 1 --eval-iters 5 --exit-interval 3")
    run = train(save + "--train-iters 4 --eval-interval 4 --eval-iters 5")
    assert "validation loss at iteration 4" in run.out


def test_a_tracker_that_holds_no_number(train, saved):
    root, _ = saved
    (root / "latest_checkpointed_iteration.txt").write_text("soon")
    assert "should hold the number of an iteration, but holds 'soon'" in load(train, root).err


def test_another_model_is_refused(train, saved):
    run = load(train, saved[0], "--train-iters 2 --eval-iters 0 --num-layers 3")
    assert ("num_layers value from checkpoint (2) is not equal to the input argument value (3)."
            in run.err)


def test_finetune_keeps_the_weights_alone(train, saved):
    run = load(train, saved[0],
               "--train-iters 1 --eval-iters 0 --log-interval 1 --finetune", code=0)
    assert "at iteration 0" in run.out and run.column("consumed samples") == [2]


def test_a_full_disk_leaves_the_old_checkpoint(dataset, saved):
    root, file = saved
    before = file.read_bytes()

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        main()

    run = run_program(small_files, [
        PRETRAIN, *(MODEL + dataset.flags).split(), "--train-iters", "2", "--eval-iters", "0",
        "--load", str(root), "--save", str(root), "--save-interval", "1",
        "--override-lr-scheduler"])
    assert run.returncode == 1
    assert f"error: --save {root}: rank 0 could not write the checkpoint" in run.stderr
    assert "earlier checkpoints are untouched" in run.stderr
    assert file.read_bytes() == before
    assert sorted(p.name for p in root.iterdir()) == [
        "iter_0000001", "latest_checkpointed_iteration.txt"]
