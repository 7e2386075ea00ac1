"""Tokenizers in Hugging Face's format: text becomes tokens and trains; bad folders are named."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from corpus_tools.preprocess import main as preprocess
from minimegatron.arguments import parse_arguments
from minimegatron.data.hugging_face import HuggingFaceTokenizer
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.data.tokenizer import build_tokenizer, vocabulary_of
from minimegatron.errors import UserError
from pretrain_gpt import main as pretrain
from warmranks import run_program

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
KIND = "HuggingFaceTokenizer"
MODEL = ("--device cpu --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
         "--max-position-embeddings 32 --micro-batch-size 4 --lr 1e-2 --split 900,50,50 "
         "--train-iters 12 --log-interval 4 --eval-iters 0 ")


@pytest.fixture(scope="module")
def llama_like(tmp_path_factory, texts):
    """A byte-level BPE with the special tokens of Llama 3, which puts one before each text."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=500, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (BEGIN, END)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))])
    tokenizer.enable_truncation(5)  # which training must not do
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return folder


@pytest.fixture(scope="module")
def gpt2_as_folder(tmp_path_factory, vocabulary):
    """The GPT-2 vocabulary of the other tests, in Hugging Face's format."""
    folder = tmp_path_factory.mktemp("gpt2")
    build_tokenizer("GPT2BPETokenizer", *vocabulary).save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def broken(llama_like, tmp_path):
    """Return a copy that a test may change."""
    return shutil.copytree(llama_like, tmp_path / "broken")


def test_text_survives_and_names_of_special_tokens_in_it_are_text(llama_like, texts):
    tokenizer = HuggingFaceTokenizer(llama_like)
    assert (tokenizer.vocab_size, tokenizer.eod) == (502, 501)
    for text in (*texts[:3], "", f"a {END} inside", "ünï 🙂"):
        ids = tokenizer.tokenize(text)
        assert ids[0] == 500 and not {500, 501} & set(ids[1:])
        assert tokenizer.detokenize(ids) == BEGIN + text
    assert tokenizer.tokenize_batch(texts[:3]) == [tokenizer.tokenize(text) for text in texts[:3]]


def test_the_token_that_ends_a_document(gpt2_as_folder, tokenizer, broken):
    assert HuggingFaceTokenizer(gpt2_as_folder).eod == tokenizer.eod
    settings = broken / "tokenizer_config.json"
    for content in ({"eos_token": {"content": BEGIN, "special": True}}, {"eos_token": BEGIN}):
        settings.write_text(json.dumps(content))
        assert HuggingFaceTokenizer(broken).eod == 500
    for absent in ("{}", '{"eos_token": null}'):
        settings.write_text(absent)
        assert HuggingFaceTokenizer(broken).eod == 501
    settings.unlink()
    assert HuggingFaceTokenizer(broken).eod == 501


def without_end(folder):
    (folder / "tokenizer_config.json").unlink()
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace(END, "<|the_end|>"))


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(("break_it", "says"), [
    (shutil.rmtree, "does not exist: give the folder that holds tokenizer.json"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json: give the folder"),
    (write("tokenizer.json", "{"), r"is not a tokenizer that .* reads \(.*\); it is corrupted"),
    (write("tokenizer.json", '{"model": {"type": "BPF"}}'), "is not a tokenizer that"),
    (lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff\xfe"), "is not a tokenizer"),
    (write("tokenizer_config.json", "{"), "tokenizer_config.json is not a JSON object"),
    (write("tokenizer_config.json", "[]"), "tokenizer_config.json is not a JSON object"),
    (write("tokenizer_config.json", '{"eos_token": "</s>"}'), "eos_token '</s>', which tokenizer"),
    (without_end, r"has neither <\|endoftext\|> nor <\|end_of_text\|>; name one in .*config.json"),
])
def test_a_folder_that_cannot_be_used_is_named_with_its_flag(broken, break_it, says):
    break_it(broken)
    with pytest.raises(UserError, match=re.escape(f"--tokenizer-model {broken}") + f".*{says}"):
        HuggingFaceTokenizer(broken)


def test_a_file_in_place_of_the_folder(broken):
    with pytest.raises(UserError, match=r"tokenizer.json is a file: give the folder"):
        HuggingFaceTokenizer(broken / "tokenizer.json")


BASE = (f"{MODEL} --data-path d")
PAIR = "--vocab-file v --merge-file m"


@pytest.mark.parametrize(("flags", "says"), [
    (f"--tokenizer-type {KIND} --tokenizer-model f {PAIR}", "^--vocab-file v belongs to --tokeniz"
     f"er-type GPT2BPETokenizer, but the type is {KIND}, .* leave --vocab-file out$"),
    (f"--tokenizer-type {KIND} --tokenizer-model f --merge-file m", "^--merge-file m belongs to"),
    (f"--tokenizer-type {KIND}", f"^--tokenizer-type {KIND} needs --tokenizer-model, a folder"),
    ("--tokenizer-model f", "^--tokenizer-model f belongs to --tokenizer-type HuggingFaceToken.*; "
     f"nearest: --tokenizer-type {KIND} --tokenizer-model f"),
    (f"--tokenizer-model=f {PAIR}", "^--tokenizer-model f belongs to"),
    ("", "required: --vocab-file, --merge-file$"),
    ("--tokenizer-type GPT2BPETokenizer --merge-file m", "required: --vocab-file$"),
])
def test_flags_of_two_tokenizers_or_of_none_are_refused(flags, says):
    with pytest.raises(UserError, match=says):
        parse_arguments(f"{BASE} {flags}".split(), {})


def test_an_estimate_needs_no_files():
    from minimegatron.arguments.parse import parse_command_line

    for flags in ("", f"--tokenizer-type {KIND}", f"--tokenizer-type {KIND} --tokenizer-model f"):
        words = f"{MODEL} --estimate --device virtual:v100 {flags}".split()
        assert parse_command_line(words, {}).estimate


def run(program, words, code=0):
    done = run_program(program, ["program.py", *words.split()], timeout=150,
                       env=dict(os.environ))
    assert done.returncode == code, done.stderr[-3000:]
    return done


def losses(flags, data):
    out = run(pretrain, f"{MODEL} --data-path {data} {flags}").stdout
    return [float(loss) for loss in re.findall(r"lm loss: (\S+) \|", out)]


@pytest.mark.slow
def test_preprocessing_and_training_as_with_the_gpt2_files_of_the_same_vocabulary(
        gpt2_as_folder, vocabulary, jsonl, tmp_path):
    """The same tokens, so the same bytes and the same losses."""
    kinds = {"pair": f"--vocab-file {vocabulary[0]} --merge-file {vocabulary[1]}",
             "folder": f"--tokenizer-type {KIND} --tokenizer-model {gpt2_as_folder}"}
    found = []
    for name, flags in kinds.items():
        run(preprocess, f"--input {jsonl} --output-prefix {tmp_path / name} --append-eod {flags}")
        data = tmp_path / f"{name}_text_document"
        found.append((data.with_suffix(".bin").read_bytes(), losses(flags, data)))
    assert found[0] == found[1] and len(found[0][1]) == 3


@pytest.mark.slow
def test_a_llama_like_tokenizer_trains_and_resumes(llama_like, gpt2_as_folder, jsonl, tmp_path):
    flags = f"--tokenizer-type {KIND} --tokenizer-model {llama_like} "
    run(preprocess, f"--input {jsonl} --output-prefix {tmp_path / 'l'} --append-eod {flags}")
    data = tmp_path / "l_text_document"
    document = list(map(int, IndexedDataset(data)[0]))
    assert (document[0], document[-1]) == (500, 501)
    save = f"--train-iters 16 --save {tmp_path / 'save'} --save-interval 16 "
    first = losses(flags + save, data)
    assert first[-1] < first[0] - 0.5
    more = losses(f"{flags} --load {tmp_path / 'save'} --override-lr-scheduler --train-iters 20",
                  data)
    assert more[-1] < first[0]
    assert vocabulary_of(parse_arguments(f"{BASE} {flags}".split(), {})).vocab_size == 502
    other = flags.replace(str(llama_like), str(gpt2_as_folder))
    load = f"--data-path {data} --load {tmp_path / 'save'}"
    error = run(pretrain, f"{MODEL} {load} {other}", 1).stderr
    assert f"No vocabulary has both sizes. Nearest: --tokenizer-model {llama_like}." in error
