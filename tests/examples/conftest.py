"""A workspace with a little text, and the programs' own modules on the path."""

import json
import sys

import pytest

from corpus_tools.preprocess import preprocess
from corpus_tools.train_vocabulary import write_vocabulary
from labcore import workspace
from minimegatron.data.tokenizer import GPT2BPETokenizer

EXAMPLES = workspace.CODE / "examples"
sys.path.insert(0, str(EXAMPLES))

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 40


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A workspace whose vocabulary is the 256 bytes and the end token."""
    made = tmp_path_factory.mktemp("examples")
    folder = made / "data" / "bpe-4096"
    folder.mkdir(parents=True)
    vocabulary = folder / "vocab.json", folder / "merges.txt"
    write_vocabulary([], *vocabulary)
    text = made / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"{n} {TEXT}"}) + "\n" for n in range(10)))
    preprocess([text], folder / "new", GPT2BPETokenizer(*vocabulary))
    for suffix in (".bin", ".idx"):
        (folder / f"new_text_document{suffix}").rename(folder / f"text_document{suffix}")
    return made


@pytest.fixture(scope="session", autouse=True)
def offline(home):
    """Before transformers and datasets are imported, which read these once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(home / "hf"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture
def in_home(home, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def checkpoint(home):
    """A folder as `save_pretrained` writes one: a small GPT-2 with random weights everywhere."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

    folder, text = home / "small-gpt2", home / "data" / "bpe-4096"
    vocabulary = json.loads((text / "vocab.json").read_text())
    tokenizer = GPT2Tokenizer(vocab=vocabulary, merges=[])
    torch.manual_seed(7)
    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=32, n_head=4, n_positions=64,
                                       vocab_size=len(vocabulary),
                                       bos_token_id=256, eos_token_id=256))
    with torch.no_grad():
        for weight in model.parameters():  # norms and biases too: a swapped one must show
            weight.normal_(std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


ROWS = [("The dog is lazy.", "Who is lazy?", ["The dog", "dog"]),
        ("A fox jumps.", "Who?", ["A fox"]), ("Nobody knows.", "Why?", []),
        ("A long story. " * 20, "How long?", ["long"])] * 5


def row(number):
    context, question, answers = ROWS[number]
    return {"id": str(number), "title": "t", "context": context, "question": question,
            "answers": {"text": answers, "answer_start": [0 for _ in answers]}}


@pytest.fixture(scope="session")
def rows_file(home):
    """Questions as the hub has SQuAD's, a JSON line each."""
    file = home / "rows.jsonl"
    file.write_text("".join(json.dumps(row(number)) + "\n" for number in range(len(ROWS))))
    return file


@pytest.fixture(scope="session")
def squad_file(home):
    """The same questions as SQuAD's own site has them: in paragraphs, in articles."""
    paragraphs = [{"context": one["context"], "qas": [
        {"id": one["id"], "question": one["question"],
         "answers": [{"text": text, "answer_start": 0} for text in one["answers"]["text"]]}]}
        for one in map(row, range(len(ROWS)))]
    file = home / "squad.json"
    file.write_text(json.dumps({"version": "1.1", "data": [
        {"title": "t", "paragraphs": paragraphs[:7]},
        {"title": "u", "paragraphs": paragraphs[7:]}]}))
    return file
