"""Models go to Hugging Face's format and come back: every bit is the same, and so are the logits.

The library itself reads what is written here, and writes what is read.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from checkpoint_tools.convert import SHARD
from lab.cli import main
from minimegatron.arguments import parse_arguments
from minimegatron.context import Context, MicroBatch
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.device.device import CpuDevice
from minimegatron.grid import axis_sizes, make_grid
from minimegatron.training import Trainer
from warmranks import run_ranks

VOCABULARY = 24
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 12,
        "n_inner": 80, "vocab_size": VOCABULARY, "layer_norm_epsilon": 1e-3}
LLAMA = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 12,
         "rms_norm_eps": 1e-4, "vocab_size": VOCABULARY, "head_dim": 10,
         "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
TIED = {**LLAMA, "tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 8}
QWEN3 = {**LLAMA, "model_type": "qwen3"}
CONFIGS = {"gpt2": GPT2, "llama": LLAMA, "tied llama": TIED, "qwen3": QWEN3}
TOKENS = torch.arange(2 * 10).reshape(2, 10) * 7 % VOCABULARY  # [b, s]
MORE = ("--seq-length 10 --micro-batch-size 2 --lr 1e-3 --train-iters 1 --attention-dropout 0 "
        "--hidden-dropout 0 --data-path x --vocab-file x --merge-file x --device cpu "
        "--use-flash-attn ")
FILE = "model.safetensors"


@pytest.fixture(autouse=True, scope="module")
def process_group():
    """Other modules' programs in this process start without a default group."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def library_model(config):
    """Return a model of the library with random weights, norms included."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    kind = config["model_type"]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**config, "model_type": kind}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def library_logits(model):
    """Return the logits [b, s, V] of a model, or of the one that the library finds in a folder."""
    from transformers import AutoModelForCausalLM

    if not isinstance(model, torch.nn.Module):
        model = AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.no_grad():
        return model(TOKENS).logits


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """{name: (a folder that the library wrote, its logits)}."""
    made = {}
    for name, config in CONFIGS.items():
        folder, model = tmp_path_factory.mktemp("hf"), library_model(config)
        model.save_pretrained(folder)
        made[name] = folder, library_logits(model)
    return made


@pytest.fixture(params=CONFIGS)
def saved(request, library):
    return library[request.param]


@pytest.fixture
def gpt2(library, tmp_path):
    """Return a copy that a test may change."""
    return shutil.copytree(library["gpt2"][0], tmp_path / "hf")


@pytest.fixture
def llama(library, tmp_path):
    """Return a copy that a test may change."""
    return shutil.copytree(library["llama"][0], tmp_path / "hf")


def run(*words):
    return main(["convert-checkpoint", *(str(word) for word in words)])


def flags_from(capsys):
    """Return the flags that from-hf printed."""
    return capsys.readouterr().out.rpartition("the trainer's flags: ")[2]


def trainer_with(flags):
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    config = parse_arguments((MORE + flags).split())
    rows = pad_vocab_size(VOCABULARY, config.make_vocab_size_divisible_by,
                          config.tensor_model_parallel_size)
    trainer = Trainer(Context(config, make_grid(axis_sizes(config), "gloo"), CpuDevice()), rows,
                      started=0.0)
    trainer.resume()
    return trainer


def our_logits(trainer):
    """Return the logits [b, s, V] of a whole model."""
    with torch.no_grad():
        batch = MicroBatch(TOKENS, None, None, None)
        x = trainer.model.embedding(batch)
        for layer in trainer.model.decoder.layers.values():
            x = layer(x, batch)
        return trainer.model.logits(x).transpose(0, 1)


def weights_in(folder):
    return {name: weight for path in sorted(folder.glob("*.safetensors"))
            for name, weight in load_file(path).items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_logits_are_the_librarys_with_the_flags_that_are_printed(saved, tmp_path, capsys):
    folder, logits = saved
    assert run("from-hf", folder, tmp_path / "ours") == 0
    ours = our_logits(trainer_with(flags_from(capsys)))
    assert ours.shape == (2, 10, 128)
    torch.testing.assert_close(ours[..., :VOCABULARY], logits, rtol=0, atol=1e-4)
    more = (ours.logsumexp(-1) - ours[..., :VOCABULARY].logsumexp(-1)).exp()
    assert 1 < more.max() < 128 / VOCABULARY  # the padding takes no more than its rows' share


def test_there_and_back_every_bit_is_the_same(saved, tmp_path, capsys):
    """Also in parts, and with the padding; the library reads all of them."""
    folder, logits = saved
    assert run("from-hf", folder, tmp_path / "ours") == 0
    model = trainer_with(flags_from(capsys)).model.state_dict()
    for name, more in (("cut", ()), ("parts", ("--max-shard-gb", 2e-5))):
        assert run("to-hf", tmp_path / "ours", tmp_path / name, "--vocab-size", 24, *more) == 0
        assert same(weights_in(folder), weights_in(tmp_path / name))
        torch.testing.assert_close(library_logits(tmp_path / name), logits, rtol=0, atol=1e-6)
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    assert run("from-hf", tmp_path / "parts", tmp_path / "second") == 0
    assert run("to-hf", tmp_path / "ours" / "iter_0000000", tmp_path / "padded") == 0
    assert library_logits(tmp_path / "padded").shape == (2, 10, 128)
    assert run("from-hf", tmp_path / "padded", tmp_path / "third") == 0
    for again in ("second", "third"):
        path = tmp_path / again / "iter_0000000" / SHARD
        assert same(model, torch.load(path)["model"])


def save_in_layout(flags):
    """Load a checkpoint into another layout, and save it, as one of several ranks."""
    trainer = trainer_with(flags)
    trainer.progress.iteration = 7
    trainer.save()


@pytest.mark.slow
def test_a_checkpoint_of_any_layout_goes_to_the_library(saved, tmp_path, capsys):
    folder, _ = saved
    assert run("from-hf", folder, tmp_path / "ours") == 0
    flags = (f"{flags_from(capsys)} --save {tmp_path / 'four'} --save-interval 1 "
             "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
             "--global-batch-size 2")
    run_ranks(save_in_layout, 4, flags)
    assert run("to-hf", tmp_path / "four", tmp_path / "out", "--vocab-size", 24) == 0
    assert same(weights_in(folder), weights_in(tmp_path / "out"))
    assert run("to-hf", tmp_path / "four", tmp_path / "out") == 1
    assert run("from-hf", folder, tmp_path / "four") == 1
    assert capsys.readouterr().err.count("already: name a new folder") == 2


def test_files_of_old_are_read(gpt2, tmp_path, capsys):
    """pytorch_model.bin of GPT2Model: no prefix, the causal mask among the weights."""
    logits = library_logits(gpt2)
    old = {name.removeprefix("transformer."): weight for name, weight in weights_in(gpt2).items()}
    old["lm_head.weight"] = old["wte.weight"]
    old["h.0.attn.bias"] = torch.ones(1, 1, 12, 12)
    torch.save(old, gpt2 / "pytorch_model.bin")
    (gpt2 / FILE).unlink()
    assert run("from-hf", gpt2, tmp_path / "ours", "--make-vocab-size-divisible-by", 8) == 0
    ours = our_logits(trainer_with(flags_from(capsys)))
    torch.testing.assert_close(ours, logits, rtol=0, atol=1e-4)


def other_weights(change):
    def write(folder):
        weights = weights_in(folder)
        change(weights)
        save_file({name: weight.clone(memory_format=torch.contiguous_format)
                   for name, weight in weights.items()}, folder / FILE)
    return write


def other_config(**values):
    def write(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return write


def other_bytes(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


LN, QKV = "transformer.ln_f.bias", "transformer.h.2.attn.c_attn.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
BROKEN_GPT2 = [
    (other_config(model_type="mamba"), "'mamba' is not possible; nearest: 'gpt2' or 'llama'"),
    (other_config(activation_function="relu"), "'relu' is not what .*nearest: 'gelu_new'"),
    (other_config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx True"),
    (other_config(n_head=5), "n_embd 32 is not divisible by n_head 5"),
    (other_config(n_layer="3"), "n_layer '3' is not a positive whole number"),
    (other_config(n_layer=3), "unknown transformer.h.3"),
    (other_config(n_layer=5), "lacks transformer.h.4"),
    (other_config(n_positions=16), r"wpe.weight has the shape \(12, 32\).*should have \(16, 32\)"),
    (other_bytes("config.json", lambda data: data[:20]), "is not the config.json of a model"),
    (lambda folder: (folder / "config.json").unlink(), "config.json is not the config.json"),
    (lambda folder: (folder / FILE).unlink(), "has neither model.safetensors nor"),
    (other_weights(lambda w: w.pop(LN)), f"lacks {LN}"),
    (other_weights(lambda w: w.update({QKV: w[QKV].t()})), r"shape \(96, 32\)"),
    (other_weights(lambda w: w.update({LN: w[LN].half()})), "one dtype"),
    (other_weights(lambda w: w.update({"lm_head.weight": w[LN]})), "lm_head.weight is not the wo"),
    (other_bytes(FILE, lambda data: data[:5]), "is not a file of weights"),
    (other_bytes(FILE, lambda data: data[:500]), "is not a file of weights"),
    (other_bytes(FILE, lambda data: data[:-5]), "is not a file of weights"),
    (lambda folder: (folder / f"{FILE}.index.json").write_text("[]"), "not an index of weights"),
    (lambda folder: (folder / f"{FILE}.index.json").write_text(
        '{"weight_map": {"a": "b.safetensors"}}'), "b.safetensors is not a file of weights"),
]
BROKEN_LLAMA = [
    (other_config(hidden_act="gelu"), "hidden_act 'gelu' is not what .*nearest: 'silu'"),
    (other_config(attention_bias=True), "attention_bias True is not what"),
    (other_config(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5}),
     "rope_parameters 'llama3' is not what .*nearest: 'default'"),
    (other_config(rope_scaling={"rope_type": "linear", "factor": 2.0}), "rope_scaling .* is not"),
    (other_config(rope_parameters={"rope_theta": "big"}), "rope_theta 'big' is not a number"),
    (other_config(rope_parameters={"rope_theta": float("nan")}), "rope_theta nan is not a number"),
    (other_config(num_key_value_heads=3), "num_attention_heads 4 is not divisible by num_key_val"),
    (other_config(num_key_value_heads=1), r"k_proj.weight has the shape \(20, 32\)"),
    (other_config(tie_word_embeddings=True), "lm_head.weight is not the word embedding"),
    (other_weights(lambda w: w.pop(DOWN)), f"lacks {DOWN}"),
]


def assert_refused(folder, out, capsys, says):
    assert run("from-hf", folder, out) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"lab: error: {folder}") and re.search(says, error), error
    assert not out.exists()


@pytest.mark.parametrize(("break_it", "says"), BROKEN_GPT2)
def test_a_gpt2_that_cannot_be_read_is_named_and_nothing_written(gpt2, tmp_path, capsys, break_it,
                                                                 says):
    break_it(gpt2)
    assert_refused(gpt2, tmp_path / "ours", capsys, says)


@pytest.mark.parametrize(("break_it", "says"), BROKEN_LLAMA)
def test_so_is_a_llama(llama, tmp_path, capsys, break_it, says):
    break_it(llama)
    assert_refused(llama, tmp_path / "ours", capsys, says)


def test_a_checkpoint_that_cannot_go_is_refused(gpt2, tmp_path, capsys):
    def refused(says, *flags):
        assert run("to-hf", save, tmp_path / "out", *flags) == 1
        assert re.search(says, capsys.readouterr().err)
        assert not (tmp_path / "out").exists()

    save = tmp_path / "ours"
    refused("there is no folder .*ours: give the one that --save named")
    save.mkdir()
    refused("has no latest_checkpointed_iteration.txt")
    assert run("from-hf", gpt2, save) == 0
    refused("--vocab-size 500: .* has 128 rows; nearest: 128", "--vocab-size", 500)
    refused("--max-shard-gb 0.0 is not possible; nearest: 1", "--max-shard-gb", 0)
    folder = save / "iter_0000000"
    path = folder / SHARD
    state = torch.load(path)
    state["args"] |= {"squared_relu": True}
    torch.save(state, path)
    refused("its sha256 differs")
    (folder / "SHA256SUMS").unlink()
    refused("--squared-relu True: gpt2 has False")
    state["args"] |= {"squared_relu": False, "kv_channels": 10}
    torch.save(state, path)
    refused("--kv-channels 10: gpt2 has hidden size / heads, 8")
