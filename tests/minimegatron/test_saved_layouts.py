"""Which file and slice a parameter comes from, and files that do not belong together."""

import itertools
import shutil
from types import SimpleNamespace

import pytest
import torch

from minimegatron.checkpoint.files import DividedState, Layout, SavedFiles
from minimegatron.checkpoint.load import read_part
from minimegatron.checkpoint.reshard import partition
from minimegatron.errors import UserError
from minimegatron.grid import Group
from minimegatron.model.parameters import ParamSpec
from minimegatron.training import Trainer

pytestmark = pytest.mark.slow

ROWS = 48
WORDS = "embedding.word_embeddings.weight"


def pieces(full, dim, ranks, blocks):
    """[the partition of each rank]: its part of the first block, then of the second, and so on."""
    if dim is None:
        return [full] * ranks
    return [torch.cat([part.chunk(ranks, dim)[rank] for part in full.chunk(blocks)])
            for rank in range(ranks)] if blocks > 1 else list(full.chunk(ranks, dim))


@pytest.mark.parametrize("shape, dim, blocks", [
    ((24, 5), 0, 1), ((5, 24), 1, 1), ((24, 5), 0, 2), ((24,), 0, 2), ((24,), 0, 1),
    ((7,), None, 1)])
@pytest.mark.parametrize("saved, loaded", [*itertools.product((1, 2, 3, 4, 6), repeat=2)])
def test_a_partition_is_made_of_the_right_slices(shape, dim, blocks, saved, loaded):
    full = torch.arange(float(torch.Size(shape).numel())).view(shape)
    there, here = pieces(full, dim, saved, blocks), pieces(full, dim, loaded, blocks)
    read = set()

    def tensor(at, name, kind, expected):
        read.add(at)
        assert list(there[at].shape) == expected
        return there[at]

    files = SimpleNamespace(layout=Layout(saved, 1, (4,), ROWS), tensor=tensor)
    spec = ParamSpec(shape, dim, blocks=blocks)
    for rank, wanted in enumerate(here):
        read.clear()
        part = partition(files, Group(tuple(range(loaded)), rank, None), "x", spec)
        assert torch.equal(part, wanted)
        assert len(read) <= -(-saved // loaded) + 1  # no file that holds none of it


@pytest.mark.parametrize("rows, loaded", [(48, 1), (48, 2), (36, 1), (36, 2), (60, 1), (60, 2),
                                          (60, 3), (72, 2), (144, 3)])
def test_rows_of_padding_are_dropped_or_added_as_the_mean_row(rows, loaded):
    """Their moments are zero. A rank may have nothing but padding."""
    full = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
    there = full.chunk(2)
    files = SimpleNamespace(layout=Layout(2, 1, (4,), ROWS), tensor=lambda at, *_: there[at])
    mean = full.mean(0)
    for kind, padding in ((None, mean), ("exp_avg", 0), ("fp32_from_fp16_params", mean)):
        whole = torch.cat([
            partition(files, Group(tuple(range(loaded)), rank, None), WORDS,
                      ParamSpec((rows, 5), 0), kind) for rank in range(loaded)])
        same = min(rows, ROWS)
        assert len(whole) == rows and torch.equal(whole[:same], full[:same])
        assert torch.allclose(whole[same:], torch.zeros(rows - same, 5) + padding)


def test_a_layer_s_name_says_its_virtual_stage():
    layout = Layout(1, 2, (0, 2, 1, 1), ROWS)
    assert [layout.virtual_stage(f"decoder.layers.{at}.mlp.linear_fc1.weight")
            for at in range(4)] == [1, 1, 2, 3]
    assert layout.virtual_stage(WORDS) == 0 and layout.is_interleaved
    assert layout.virtual_stage("decoder.final_layernorm.weight") == 3
    assert layout.virtual_stage("output_layer.weight") == 3
    assert [str(path.parent) for path in Layout(2, 2, (1, 1), ROWS).paths()] == [
        "mp_rank_00_000", "mp_rank_01_000", "mp_rank_00_001", "mp_rank_01_001"]


@pytest.fixture
def saved(make_context, tmp_path):
    """A checkpoint's folder, without checksums, as in Megatron-LM."""
    trainer = Trainer(make_context(f"--save {tmp_path} --save-interval 1"), 512, 0.0)
    trainer.progress.iteration = 1
    trainer.save()
    folder = tmp_path / "iter_0000001"
    (folder / "SHA256SUMS").unlink()
    return folder


def rewrite(folder, names, **args):
    """Copy the one file to these names, with other arguments, as if another layout had saved it."""
    state = torch.load(folder / "mp_rank_00" / "model_optim_rng.pt", weights_only=True)
    shutil.rmtree(folder / "mp_rank_00")
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        torch.save({**state, "args": {**state["args"], **args}},
                   folder / name / "model_optim_rng.pt")
    return state


def refused(make_context, folder, flags="", rows=512):
    ctx = make_context(f"--load {folder.parent} {flags}")
    trainer = Trainer(ctx, rows, 0.0)
    with pytest.raises(UserError) as error:
        read_part(ctx, folder, trainer.model, trainer.optimizer, rows)
    return str(error.value)


TP2 = {"tensor_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2, "layers_per_chunk": (1, 1)}
FILE = "model_optim_rng.pt"


def test_a_missing_file_of_one_rank_is_named(make_context, saved):
    rewrite(saved, ["mp_rank_01"], **TP2)
    assert refused(make_context, saved) == (
        f"{saved}: there is no mp_rank_00/{FILE}, but mp_rank_01/{FILE} was saved with "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1; restore the file, or "
        "load another checkpoint")


def test_files_of_two_layouts_in_one_folder_are_named(make_context, saved):
    rewrite(saved, ["mp_rank_00", "mp_rank_01", "mp_rank_00_001"], **TP2)
    assert (f"{saved} mixes files of two layouts: it holds mp_rank_00_001/{FILE}, but "
            f"mp_rank_00/{FILE} was saved with --tensor-model-parallel-size 2"
            ) in refused(make_context, saved)


@pytest.mark.parametrize("other, what", [
    ({"layers_per_chunk": (2, 0)}, "layout tensor-parallel size 1, 2 stage(s) of 2-0 layers and "),
    ({}, "iteration 7 and 1")])
def test_files_of_two_checkpoints_are_named(make_context, saved, other, what):
    state = rewrite(saved, ["mp_rank_00_000", "mp_rank_00_001"], **PP2)
    path = saved / "mp_rank_00_001" / FILE
    torch.save({**state, "args": {**state["args"], **PP2, **other},
                "iteration": 1 if other else 7}, path)
    assert (f"{path} and {saved}/mp_rank_00_000/{FILE} are of different checkpoints: {what}"
            in refused(make_context, saved))


def test_a_tensor_of_another_shape_is_named(make_context, saved):
    rewrite(saved, ["mp_rank_00", "mp_rank_01"], **TP2)
    message = refused(make_context, saved)
    assert message.startswith(f"{saved}/mp_rank_00/{FILE}: parameter ")
    assert "should be [256, 32] in this layout, but the file has [512, 32]" in message


@pytest.mark.parametrize("flags, rows, message", [
    ("--num-layers 3", 512, "num_layers value from checkpoint (2) is not equal to the input "
     "argument value (3). Nearest: --num-layers 2. ["),
    ("--swiglu --ffn-hidden-size 128", 512, "swiglu value from checkpoint (False) is not equal to "
     "the input argument value (True). Nearest: leave out --swiglu. ["),
    ("--disable-bias-linear", 512, "Nearest: leave out --disable-bias-linear. ["),
    ("", 640, "padded_vocab_size value from checkpoint (512) is not equal to the input argument "
     "value (640). No vocabulary has both sizes. Nearest: --vocab-file x. ["),
    ("--make-vocab-size-divisible-by 100", 800, "No vocabulary has both sizes")])
def test_another_model_is_refused_with_the_nearest_flag(make_context, saved, flags, rows, message):
    assert message in refused(make_context, saved, flags, rows)


def test_another_padding_of_the_vocabulary_is_a_warning(make_context, saved, capsys):
    """A vocabulary of 500 tokens has 512 rows in one run, and 600 in the other."""
    rewrite(saved, ["mp_rank_00"], make_vocab_size_divisible_by=256, padded_vocab_size=512)
    ctx = make_context(f"--load {saved.parent} --make-vocab-size-divisible-by 150")
    trainer = Trainer(ctx, 600, 0.0)
    state = read_part(ctx, saved, trainer.model, trainer.optimizer, 600)
    words = state["model"][WORDS]
    assert words.shape == (600, 32) and torch.allclose(words[512:], words[:512].mean(0))
    assert not state["optimizer"]["exp_avg"][WORDS].any()
    assert ("WARNING: the word embedding has 600 rows, and 512 in the checkpoint: rows of padding "
            "are added, which changes the loss slightly; --make-vocab-size-divisible-by 256 avoids "
            "it") in capsys.readouterr().out


def test_a_folder_without_files_is_named(tmp_path):
    with pytest.raises(UserError, match=f"holds no mp_rank_\\*/{FILE}"):
        SavedFiles(tmp_path, with_optimizer=True)


@pytest.mark.parametrize("change, found", [({"iteration": 7}, "(7, 1)"),
                                           ({"iteration": 1, "replicas": 0}, "(1, 0)")])
def test_a_replica_s_file_of_another_checkpoint_is_named(make_context, tmp_path, change, found):
    trainer = Trainer(make_context(
        f"--save {tmp_path} --save-interval 1 --use-distributed-optimizer"), 512, 0.0)
    trainer.progress.iteration = 1
    trainer.save()
    folder = tmp_path / "iter_0000001"
    path = folder / "mp_rank_00" / "distrib_optim_000.pt"
    torch.save({**torch.load(path, weights_only=True), **change}, path)
    assert refused(make_context, folder) == (
        f"{path} and {folder}/mp_rank_00/{FILE} are of different checkpoints: iteration and "
        f"replicas {found} and (1, 1); restore the files of one of them")


def test_divided_state_is_put_together_in_order():
    parts = [("a", 2, torch.tensor([3.0, 4.0])), ("b", 0, torch.tensor([5.0])),
             ("a", 0, torch.tensor([1.0, 2.0]))]
    state = DividedState({"a": [2, 2], "b": [1]}, parts)
    assert state["a"].tolist() == [[1, 2], [3, 4]] and state["b"].tolist() == [5]
    assert list(state) == ["a", "b"] and state.get("c") is None
    with pytest.raises(RuntimeError):  # an element is missing: read_part names the folder
        DividedState({"a": [2, 2]}, parts[:1])["a"]
