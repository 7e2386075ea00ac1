"""Models in Hugging Face's format generate the library's text, and tokenizers travel with them."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import generate as program
from checkpoint_tools.convert import open_hugging_face, specs_of
from checkpoint_tools.tokenizers_of import copy_tokenizer, tokenizer_in
from corpus_tools.train_vocabulary import train_merges, write_vocabulary
from lab.cli import main as lab
from labcore.workspace import CODE
from minimegatron.checkpoint.saved_model import intact_files, model_config
from minimegatron.context import Context
from minimegatron.data.tokenizer import build_tokenizer
from minimegatron.device.device import CpuDevice
from minimegatron.generation import Sampling, TextModel, generate
from minimegatron.grid import GROUPS, Grid, Group
from warmranks import run_program

from .test_convert import CONFIGS, VOCABULARY, library, saved  # noqa: F401  fixtures

PROMPT, COUNT = [3, 1, 4, 1, 5], 7


class Tokens:
    """All tokens of the model, none of which ends a document."""

    vocab_size, eod = VOCABULARY, None


@pytest.fixture(autouse=True, scope="module")
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_greedy_text_is_the_librarys(saved):  # noqa: F811
    from transformers import AutoModelForCausalLM

    folder, _ = saved
    found = open_hugging_face(folder)
    one = Grid(0, 1, **dict.fromkeys(GROUPS, Group((0,), 0, None)))
    model = TextModel(Context(model_config(found.args), one, CpuDevice()), found, found.rows)
    tokens = list(generate(model, PROMPT, COUNT, Tokens, Sampling()))
    theirs = AutoModelForCausalLM.from_pretrained(folder).generate(
        torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, pad_token_id=0,
        eos_token_id=None)
    assert tokens == [int(each) for each in theirs[0, len(PROMPT):]] and len(tokens) == COUNT


@pytest.fixture
def llama(library, tmp_path):  # noqa: F811
    """A copy of the small Llama, with a tokenizer of its 24 tokens."""
    folder = shutil.copytree(library["llama"][0], tmp_path / "llama")
    vocabulary = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvw")}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, "<|end_of_text|>": 23}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def run(*words, ranks=0, code=0):
    done = run_program(program.main, [str(CODE / "generate.py"), "--device", "cpu", *words],
                       ranks=ranks, timeout=150, env=dict(os.environ))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def words_for(folder):
    return ["--load", str(folder), "--prompt", "abac", "--num-tokens-to-generate", "6"]


def test_a_folder_and_its_conversions_there_and_back_generate_the_same(llama, tmp_path, capsys):
    text = run(*words_for(llama))
    assert re.fullmatch("abac[a-w]{0,6}\n", text)
    convert = ["convert-checkpoint"]
    assert lab([*convert, "from-hf", str(llama), str(tmp_path / "ours")]) == 0
    assert (f"--tokenizer-type HuggingFaceTokenizer --tokenizer-model {llama}"
            in capsys.readouterr().out)
    assert run(*words_for(tmp_path / "ours")) == text
    assert lab([*convert, "to-hf", str(tmp_path / "ours"), str(tmp_path / "hf"), "--vocab-size",
                "24"]) == 0
    assert capsys.readouterr().out == ""
    assert run(*words_for(tmp_path / "hf")) == text
    (llama / "tokenizer.json").unlink()
    assert lab([*convert, "to-hf", str(tmp_path / "ours"), str(tmp_path / "bare")]) == 0
    assert f"without a tokenizer (--tokenizer-model {llama} has no" in capsys.readouterr().out
    error = run(*words_for(tmp_path / "bare"), code=1)
    assert "--tokenizer-type GPT2BPETokenizer needs --vocab-file" in error


@pytest.mark.slow
def test_two_ranks_read_a_folder_as_one_does(llama):
    words = [*words_for(llama), "--temperature", "0.7", "--top_p", "0.9"]
    one = run(*words)
    two = run(*words, "--tensor-model-parallel-size", "2", ranks=2)
    assert two.splitlines()[-1] == one.splitlines()[-1]


def test_a_rank_keeps_no_more_than_its_part(llama):
    model = open_hugging_face(llama)
    for name, spec in specs_of(model.args, model.rows).items():
        part = model.part(Group((0, 1), 1, None), name, spec)
        assert part.untyped_storage().nbytes() == part.nbytes
        assert list(part.shape) == spec.shape(Group((0, 1), 1, None))


def test_gpt2_files_become_a_tokenizer_that_the_library_reads(library, tmp_path):  # noqa: F811
    from transformers import AutoTokenizer

    text = "import os\nprint(os.environ)  # ünï <|endoftext|>"
    files = tmp_path / "vocab.json", tmp_path / "merges.txt"
    write_vocabulary(train_merges([text * 3], 10), *files)
    assert tokenizer_in(tmp_path) == {"vocab_file": str(files[0]), "merge_file": str(files[1])}
    args = {"tokenizer_type": "GPT2BPETokenizer", **tokenizer_in(tmp_path)}
    out = tmp_path / "out"
    out.mkdir()
    assert copy_tokenizer(args, out) is None
    ours = build_tokenizer(args["tokenizer_type"], *files)
    plain = text.replace("<|endoftext|>", "")
    (out / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    theirs = AutoTokenizer.from_pretrained(out)
    assert theirs(plain).input_ids == ours.tokenize(plain)
    assert theirs.eos_token_id == ours.eod
    found = {**tokenizer_in(out)}
    again = build_tokenizer(found["tokenizer_type"], None, None, found["tokenizer_model"])
    assert again.tokenize(text) == ours.tokenize(text) and again.eod == ours.eod


def test_a_checkpoint_from_hugging_face_names_its_tokenizer(llama, tmp_path):
    assert lab(["convert-checkpoint", "from-hf", str(llama), str(tmp_path / "ours")]) == 0
    args = intact_files(tmp_path / "ours").first["args"]
    assert (args["tokenizer_type"], args["tokenizer_model"]) == ("HuggingFaceTokenizer", str(llama))
