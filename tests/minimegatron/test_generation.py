"""Text from a trained model: the cache changes no logit, and ranks and formats change no token."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import generate as program
from corpus_tools.train_vocabulary import write_vocabulary
from labcore.workspace import CODE
from minimegatron.checkpoint.saved_model import model_config, whole_model
from minimegatron.context import MicroBatch
from minimegatron.errors import UserError
from minimegatron.generate import parse
from minimegatron.generation import Sampling, TextModel, generate
from minimegatron.model.gpt import Stage
from warmranks import run_program

BLOCK = ("--group-query-attention --num-query-groups 2 --position-embedding-type rope "
         "--normalization RMSNorm --untie-embeddings-and-output-weights --swiglu "
         "--disable-bias-linear ")
MODELS = {"gpt2": "", "llama": BLOCK, "mixed": "--position-embedding-type rope --rotary-percent "
          "0.5 --squared-relu --kv-channels 12", "mqa": "--group-query-attention"}
ROWS = 40
PROGRAM = str(CODE / "generate.py")
TP2 = "--tensor-model-parallel-size 2"


class Letters:
    """A tokenizer of 37 tokens."""

    vocab_size, eod = 37, 5


@pytest.fixture(params=MODELS)
def pair(request, make_context):
    return make_pair(make_context, MODELS[request.param])


def make_pair(make_context, flags):
    """(The model as in training, the model that generates), with the same random weights."""
    trained = make_context(flags)
    torch.manual_seed(0)
    stage = Stage(trained, ROWS, range(2))
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    dtype = stage.embedding.word_embeddings.weight.dtype
    config = model_config(vars(trained.config), dtype)
    saved = whole_model("here", vars(trained.config), dict(stage.named_parameters()))
    return stage, TextModel(replace(trained, config=config), saved, ROWS)


@torch.no_grad()
def all_logits(stage, tokens):
    """The logits [s, V] of one forward pass over all tokens."""
    batch = MicroBatch(torch.tensor([tokens]), None, None, None)
    x = stage.embedding(batch)
    for layer in stage.decoder.layers.values():
        x = layer(x, batch)
    return stage.logits(x)[:, 0]


@pytest.mark.parametrize("chunks", [[1] * 12, [7, 1, 1, 3], [12]])
def test_the_cache_gives_the_logits_of_the_whole_forward_pass(pair, chunks):
    stage, model = pair
    tokens = [int(each) for each in torch.randint(0, 37, (12,))]
    expected, at = all_logits(stage, tokens), 0
    for _ in range(2):  # a second text knows nothing of the first
        model.restart()
        for at, chunk in zip([sum(chunks[:n]) for n in range(len(chunks))], chunks, strict=True):
            logits = model.logits(tokens[at:at + chunk])
            torch.testing.assert_close(logits, expected[at + chunk - 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["--bf16", "--fp16"])
def test_16_bits_stay_16_bits(make_context, precision):
    stage, model = make_pair(make_context, f"{BLOCK} {precision}")
    tokens = list(range(12))
    expected = all_logits(stage, tokens)[-1].float()
    for token in tokens:
        logits = model.logits([token])
    assert model.ctx.config.params_type in str(model.stage.output_layer.weight.dtype)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.05)


def test_training_does_not_import_it():
    code = ("import sys, minimegatron.training; "
            "print([name for name in sys.modules if 'generat' in name or 'saved_model' in name])")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "minimegatron" not in found.stdout, found.stdout + found.stderr


def test_greedy_tokens_are_those_of_recomputing_everything(pair):
    stage, model = pair
    tokens = [1, 2, 3]
    expected = []
    for _ in range(20):
        expected.append(int(all_logits(stage, tokens + expected)[-1][:37].argmax()))
    if Letters.eod in expected:
        expected = expected[:expected.index(Letters.eod)]
    assert list(generate(model, tokens, 20, Letters, Sampling())) == expected


def test_sampling_draws_from_the_distribution_that_it_describes():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()

    def shares(**about):
        generator = torch.Generator().manual_seed(1)
        sampling = Sampling(**about)
        drawn = torch.cat([sampling.choose(logits, generator) for _ in range(4000)])
        return torch.bincount(drawn, minlength=4) / len(drawn)

    def close(found, expected):
        torch.testing.assert_close(found, torch.tensor(expected).float(), rtol=0, atol=0.03)

    close(shares(temperature=1.0), [0.1, 0.4, 0.2, 0.3])
    close(shares(temperature=0.5), [0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3])
    close(shares(temperature=1.0, top_k=2), [0, 4 / 7, 0, 3 / 7])
    close(shares(temperature=1.0, top_p=0.4), [0, 1, 0, 0])
    close(shares(temperature=1.0, top_p=0.41), [0, 4 / 7, 0, 3 / 7])
    close(shares(temperature=1.0, top_k=3, top_p=0.8), [0, 4 / 9, 2 / 9, 3 / 9])
    close(shares(temperature=1.0, top_k=99, top_p=1.0), [0.1, 0.4, 0.2, 0.3])
    assert Sampling().choose(logits, None) == 1


GIVEN = "--load x --prompts a "


@pytest.mark.parametrize(("flags", "says"), [
    ("--load x", "nothing to continue"),
    ("--prompts a", "required: --load"),
    (GIVEN + "--temperature 0", "--temperature 0.0: must be greater than 0; nearest"),
    (GIVEN + "--temperature inf", "--temperature inf: must be"),
    (GIVEN + "--top_k 0", "--top_k 0: must be greater than 0; nearest: --top_k 1"),
    (GIVEN + "--top-p 1.5", "--top_p 1.5: must be greater than 0 and at most 1; nearest"),
    (GIVEN + "--greedy --top_k 3", "--greedy with --top_k 3: leave one of them out"),
    (GIVEN + "--num-tokens-to-generate 0", "--num-tokens-to-generate 0: must be at least 1"),
    (GIVEN + "--pipeline-model-parallel-size 2", "one token at a time, only one stage would ever "
     "be busy; nearest: --tensor-model-parallel-size 2"),
    (GIVEN + "--seed -1", "--seed -1: must be from 0 to 4294967295"),
    (GIVEN + "--tokenizer-type Bert", "invalid choice: 'Bert'"),
])
def test_flags_that_do_not_fit_are_refused(flags, says):
    with pytest.raises(UserError, match=re.escape(says)):
        parse(flags.split())


def test_without_flags_of_sampling_it_is_greedy():
    assert parse(GIVEN.split()).sampling == Sampling()
    assert parse((GIVEN + "--top_k 5 --seed 3").split()).sampling == Sampling(1.0, 5, 0.0, 3)


# The program, on checkpoints of the trainer.


@pytest.fixture(scope="module")
def checkpoints(train, tmp_path_factory):
    """{model: {layout: folder}} of the same training run in several layouts."""
    made = {}
    for name, flags in (("gpt2", "--hidden-dropout 0"), ("llama", BLOCK)):
        for layout, ranks in (("one", 0), ("four", 4)):
            folder = tmp_path_factory.mktemp(f"{name}-{layout}")
            more = f"{TP2} --pipeline-model-parallel-size 2" if ranks else ""
            if layout == "one" or name == "llama":
                train(f"{flags} --save {folder} --save-interval 40 --train-iters 40 --lr 1e-2 "
                      f"--eval-iters 0 --global-batch-size 4 {more}", ranks=ranks)
                made.setdefault(name, {})[layout] = folder
    return made


def run(flags, ranks=0, code=0):
    done = run_program(program.main, [PROGRAM, "--device", "cpu", *shlex.split(flags)],
                       ranks=ranks, timeout=150, env=dict(os.environ))
    assert done.returncode == code, done.stdout + done.stderr
    return done


def text(flags, ranks=0):
    """What it prints, without the note about threads."""
    lines = run(flags, ranks).stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith("using "))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["", "--temperature 0.8 --top_k 20 --seed 5"])
def test_the_ranks_and_the_layout_that_saved_change_no_text(checkpoints, sampling):
    for folders in checkpoints.values():
        for folder in folders.values():
            flags = f"--load {folder} --prompts 'import os' 'def ' --num-tokens-to-generate 12 "
            one, two = text(flags + sampling), text(f"{flags} {TP2} {sampling}", ranks=2)
            assert one == two
            assert one.startswith("import os") and "\n\ndef " in one
    assert text(flags + "--temperature 0.8 --seed 6") != text(flags + "--temperature 0.8 --seed 7")


@pytest.mark.slow
def test_prompts_from_a_file_and_none_at_all(checkpoints, tmp_path):
    file, load = tmp_path / "prompts.jsonl", f"--load {checkpoints['gpt2']['one']} "
    file.write_text('{"text": "import os"}\n{"text": ""}\n')
    load += "--num-tokens-to-generate 8"
    both = text(f"{load} --prompt-file {file}")
    assert both == text(f"{load} --prompt 'import os' ''")
    assert both.startswith(text(f"{load} --prompts 'import os'"))
    for content, says in (("{", "line 1: not a JSON object"), ('{"text": 3}', '"text" is no str'),
                          ('{"text": "a"}\n[]', "line 2: not a JSON object with the key")):
        file.write_text(content)
        assert says in run(f"{load} --prompt-file {file}", code=1).stderr


@pytest.mark.slow
def test_what_cannot_be_done_is_named(checkpoints, dataset, tmp_path):
    load = f"--load {checkpoints['gpt2']['one']} "
    small = tmp_path / "vocab.json"
    for flags, says in (
            (f"--load {tmp_path}/none --prompts a", f"there is no folder {tmp_path}/none"),
            (f"--load {tmp_path} --prompts a", "has no latest_checkpointed_iteration.txt"),
            (f"{load} --prompts '{'x = 1 ' * 40}'", "but the model has only 32 positions"),
            (f"{load} --prompts a --num-tokens-to-generate 32", "more than the 32 positions of the "
             "model (--max-position-embeddings); nearest: 31"),
            (f"{load} --prompts a {TP2}", "--tensor-model-parallel-size 2 with 1 rank(s)"),
            (f"{load} --prompts a --vocab-file {small} --merge-file {small}", "does not exist"),
            (f"{load} --prompts a --tokenizer-model f", "belongs to --tokenizer-type Hugging"),
            (f"{load} --prompts a --device virtual:v100", "have no values; nearest: --device cpu")):
        error = run(flags, code=1).stderr
        assert says in error and "Traceback" not in error, error
    error = run(f"{load} --prompts a", ranks=2, code=1).stderr
    assert error.count("--tensor-model-parallel-size 1 with 2 rank(s): all ranks share one") == 1
    folder = checkpoints["llama"]["four"]
    path = next(folder.glob("iter_*/mp_rank_01_001/*.pt"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert "its sha256 differs" in run(f"--load {folder} --prompts a", code=1).stderr
    path.write_bytes(whole)


@pytest.mark.slow
def test_another_vocabulary_is_refused(checkpoints, tmp_path):
    files = tmp_path / "vocab.json", tmp_path / "merges.txt"
    write_vocabulary([], *files)
    error = run(f"--load {checkpoints['gpt2']['one']} --prompts a --vocab-file {files[0]} "
                f"--merge-file {files[1]}", code=1).stderr
    assert re.search("the tokenizer has 257 tokens, but the model in .* was trained with 385 to "
                     "512: give its own with --vocab-file", error)
