"""A model carried over from Hugging Face's GPT-2 format computes what it computed there.

What the library's module gives is kept in hf_gpt2.json; `pytest -m oracle` runs it again where it
is installed (see make_hf_gpt2.py).
"""

import json
import re
import struct
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hf_gpt2
import safetensors_file
from minimegatron.arguments import parse_arguments
from minimegatron.context import Context, MicroBatch
from minimegatron.device.device import CpuDevice
from minimegatron.grid import make_grid
from minimegatron.training import Trainer

from .make_hf_gpt2 import CONFIG, TOKENS, frozen, their_logits, their_model, weight_of

FROZEN = torch.tensor(json.loads(Path(__file__).with_name("hf_gpt2.json").read_text())["logits"])
MORE = ("--seq-length 10 --micro-batch-size 2 --lr 1e-3 --train-iters 1 --attention-dropout 0 "
        "--hidden-dropout 0 --data-path x --vocab-file x --merge-file x --device cpu ")


@pytest.fixture(autouse=True, scope="module")
def process_group():
    """Other modules' programs in this process start without a default group."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def theirs(tmp_path):
    """A folder as the library writes it: {"config.json", "model.safetensors"}."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    safetensors_file.write(folder / "model.safetensors", {
        name: weight_of(name, shape) for name, shape in hf_gpt2.shapes(CONFIG).items()})
    return folder


def run(*words):
    return hf_gpt2.main([str(word) for word in words])


def printed(capsys):
    """The flags that from-hf gave."""
    return capsys.readouterr().out.rpartition("the trainer's flags: ")[2]


def trainer_with(flags):
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    config = parse_arguments((MORE + flags).split(), {})
    padded = -(-CONFIG["vocab_size"] // config.make_vocab_size_divisible_by
               ) * config.make_vocab_size_divisible_by
    trainer = Trainer(Context(config, make_grid({}, "gloo"), CpuDevice()), padded, started=0.0)
    trainer.resume()
    return trainer


def our_logits(trainer):
    """[b, s, V] of the whole model."""
    with torch.no_grad():
        batch = MicroBatch(TOKENS, None, None, None)
        x = trainer.model.embedding(batch)
        for layer in trainer.model.decoder.layers.values():
            x = layer(x, batch)
        return trainer.model.logits(x).transpose(0, 1)


def carried_over(folder, save, capsys, divisor=128):
    assert run("from-hf", folder, save, "--make-vocab-size-divisible-by", divisor) == 0
    return trainer_with(printed(capsys))


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_logits_are_hugging_faces_with_the_flags_that_are_printed(theirs, tmp_path, capsys):
    ours = our_logits(carried_over(theirs, tmp_path / "ours", capsys))
    rows = CONFIG["vocab_size"]
    assert ours.shape == (2, 10, 128)
    torch.testing.assert_close(ours[..., :rows].flatten(0, 1), FROZEN, rtol=0, atol=1e-4)
    more = (ours.logsumexp(-1) - ours[..., :rows].logsumexp(-1)).exp()
    assert 1 < more.max() < 128 / rows  # the padding takes no more than its rows' share


def test_there_and_back_every_bit_is_the_same(theirs, tmp_path, capsys):
    model = carried_over(theirs, tmp_path / "ours", capsys).model.state_dict()
    assert run("to-hf", tmp_path / "ours", tmp_path / "cut", "--vocab-size", 24) == 0
    assert same(*(safetensors_file.read(folder / "model.safetensors")
                  for folder in (theirs, tmp_path / "cut")))
    assert run("to-hf", tmp_path / "ours" / "iter_0000000", tmp_path / "padded") == 0
    again = carried_over(tmp_path / "padded", tmp_path / "again", capsys)
    assert again.config.layernorm_epsilon == CONFIG["layer_norm_epsilon"]
    assert same(model, torch.load(tmp_path / "again/iter_0000000" / hf_gpt2.SHARD)["model"])


def test_a_trained_checkpoint_goes_to_hugging_face(theirs, tmp_path, capsys):
    """With optimizer, iteration and all; and what is there is not overwritten."""
    flags = f"--save {tmp_path / 'saved'} --save-interval 1 "
    assert run("from-hf", theirs, tmp_path / "ours") == 0
    trainer = trainer_with(flags + printed(capsys))
    trainer.progress.iteration = 7
    trainer.save()
    assert run("to-hf", tmp_path / "saved", tmp_path / "out", "--vocab-size", 24) == 0
    assert same(*(safetensors_file.read(folder / "model.safetensors")
                  for folder in (theirs, tmp_path / "out")))
    assert run("to-hf", tmp_path / "saved", tmp_path / "out") == 1
    assert run("from-hf", theirs, tmp_path / "saved") == 1
    assert capsys.readouterr().err.count("already: name a new folder") == 2


def test_files_of_old_are_read(theirs, tmp_path, capsys):
    """pytorch_model.bin of GPT2Model: no prefix, the causal mask among the weights."""
    file = theirs / "model.safetensors"
    old = {name.removeprefix("transformer."): weight
           for name, weight in safetensors_file.read(file).items()}
    old["lm_head.weight"] = old["wte.weight"]
    old["h.0.attn.bias"] = torch.ones(1, 1, 12, 12)
    torch.save(old, theirs / "pytorch_model.bin")
    file.unlink()
    ours = our_logits(carried_over(theirs, tmp_path / "ours", capsys, 8))
    torch.testing.assert_close(ours.flatten(0, 1), FROZEN, rtol=0, atol=1e-4)


def other_weights(change):
    def write(folder):
        weights = safetensors_file.read(folder / "model.safetensors")
        change(weights)
        safetensors_file.write(folder / "model.safetensors", weights)
    return write


def other_config(**values):
    return lambda folder: (folder / "config.json").write_text(json.dumps(CONFIG | values))


def other_bytes(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def other_header(change):
    def rewrite(data):
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        change(header["transformer.wpe.weight"])
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length:]
    return other_bytes("model.safetensors", rewrite)


LN, QKV = "transformer.ln_f.bias", "transformer.h.2.attn.c_attn.weight"


@pytest.mark.parametrize(("break_it", "says"), [
    (other_config(model_type="llama"), "model_type 'llama' is not possible; nearest: 'gpt2'"),
    (other_config(activation_function="relu"), "'relu' is not what .*nearest: 'gelu_new'"),
    (other_config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx True"),
    (other_config(n_head=5), "n_embd 32 is not divisible by n_head 5"),
    (other_config(n_layer="3"), "n_layer '3' is not a positive whole number"),
    (other_config(n_layer=2), "unknown transformer.h.2"),
    (other_config(n_layer=4), "lacks transformer.h.3"),
    (other_config(n_positions=16), r"wpe.weight has the shape \(12, 32\).*should have \(16, 32\)"),
    (other_bytes("config.json", lambda data: data[:20]), "is not the config.json of a model"),
    (lambda folder: (folder / "config.json").unlink(), "config.json is not the config.json"),
    (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    (other_weights(lambda w: w.pop(LN)), f"lacks {LN}"),
    (other_weights(lambda w: w.update({QKV: w[QKV].t()})), r"shape \(96, 32\)"),
    (other_weights(lambda w: w.update({LN: w[LN].half()})), "one dtype"),
    (other_weights(lambda w: w.update({"lm_head.weight": w[LN]})), "lm_head.weight is not the wo"),
    (other_bytes("model.safetensors", lambda data: data[:5]), "not a whole safetensors file"),
    (other_bytes("model.safetensors", lambda data: data[:500]), "its header is cut off"),
    (other_bytes("model.safetensors", lambda data: data[:-5]), "it is cut off"),
    (other_bytes("model.safetensors", lambda data: b"\xff" * 8 + data[8:]), "header is cut off"),
    (other_header(lambda entry: entry.update(dtype="I64")), "dtype I64 is none of F32"),
    (other_header(lambda entry: entry.update(shape=[12, 33])), r"\[12, 33\] does not take bytes"),
    (other_header(lambda entry: entry.update(data_offsets=[-1])), "not a whole safetensors"),
])
def test_what_cannot_be_read_is_named_and_nothing_written(theirs, tmp_path, capsys, break_it, says):
    break_it(theirs)
    assert run("from-hf", theirs, tmp_path / "ours") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {theirs}") and re.search(says, error), error
    assert not (tmp_path / "ours").exists()


def test_a_checkpoint_that_cannot_go_is_refused(theirs, tmp_path, capsys):
    def refused(says, *flags):
        assert run("to-hf", save, tmp_path / "out", *flags) == 1
        assert re.search(says, capsys.readouterr().err)
        assert not (tmp_path / "out").exists()

    save = tmp_path / "ours"
    refused("has no latest_checkpointed_iteration.txt")
    assert run("from-hf", theirs, save) == 0
    refused("--vocab-size 500: .* has 128 rows; nearest: 128", "--vocab-size", 500)
    folder = save / "iter_0000000"
    (folder / "mp_rank_01").mkdir()
    refused("divided among mp_rank_00, mp_rank_01")
    (folder / "mp_rank_01").rmdir()
    path = folder / hf_gpt2.SHARD
    state = torch.load(path)
    state["args"] |= {"kv_channels": 10, "squared_relu": True}
    torch.save(state, path)
    refused("its sha256 differs")
    (folder / "SHA256SUMS").unlink()
    refused("squared_relu True: GPT-2 has False")
    state["args"]["squared_relu"] = False
    torch.save(state, path)
    refused("--kv-channels 10: .* 8")


@pytest.mark.oracle
def test_hugging_face_still_does_what_is_kept_and_reads_what_we_write(theirs, tmp_path, capsys):
    torch.testing.assert_close(torch.tensor(frozen()["logits"]), FROZEN, rtol=0, atol=1e-5)
    their_model().save_pretrained(tmp_path / "saved")
    for source in (theirs, tmp_path / "saved"):
        ours = our_logits(carried_over(source, tmp_path / f"from-{source.name}", capsys))
        assert run("to-hf", tmp_path / f"from-{source.name}", tmp_path / "back") == 0
        again = their_logits(tmp_path / "back")
        torch.testing.assert_close(again, ours, rtol=0, atol=1e-4)
        (tmp_path / "back/config.json").unlink()
