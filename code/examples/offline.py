r"""Stand-ins for GPT-2's weights and SQuAD, made here for machines without a network.

    python code/examples/offline.py data/offline
    python code/examples/gpipe.py --pretrained data/offline/gpt2 \
        --dataset data/offline/questions.json

gpt2/ is a small GPT-2 that is trained on the workspace's text, as `save_pretrained` writes it.
questions.json asks what functions of Python's standard library do. It has SQuAD's format: the
context is a function's documentation, and the answer is a part of it.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pydoc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import options
import text_batches
from minimegatron.data.tokenizer import GPT2BPETokenizer

MODULES = ("argparse", "base64", "bisect", "calendar", "collections", "contextlib", "copy", "csv",
           "datetime", "decimal", "difflib", "email.utils", "fnmatch", "fractions", "functools",
           "glob", "gzip", "heapq", "html", "inspect", "ipaddress", "itertools", "json", "locale",
           "logging", "math", "mimetypes", "operator", "os", "os.path", "pathlib", "pickle",
           "pprint", "random", "re", "secrets", "shlex", "shutil", "signal", "socket", "statistics",
           "string", "subprocess", "tempfile", "textwrap", "threading", "time", "tokenize",
           "traceback", "types", "urllib.parse", "uuid", "warnings", "zipfile")
LONGEST = 400  # characters of a context


def documented() -> Iterator[tuple[str, str]]:
    """The public functions of MODULES with their documentation."""
    for name in MODULES:
        module = importlib.import_module(name)
        for function, value in sorted(vars(module).items()):
            text = inspect.getdoc(value) if inspect.isroutine(value) else None
            if text and not function.startswith("_"):
                yield f"{name}.{function}", text


def squad() -> dict[str, Any]:
    """All questions, in the nesting of SQuAD's own file."""
    paragraphs = []
    for name, text in documented():
        answer = pydoc.splitdoc(text)[0]
        context = " ".join(text.split())[:LONGEST]
        if answer and answer in context and "->" not in answer:  # a signature, not a sentence
            paragraphs.append({"context": context, "qas": [
                {"id": name, "question": f"What does {name} do?",
                 "answers": [{"text": answer, "answer_start": context.index(answer)}]}]})
    return {"version": "offline", "data": [{"title": "Python", "paragraphs": paragraphs}]}


def pretrain(folder: Path, steps: int, samples: int, seq_length: int, rate: float) -> float:
    """Train GPT-2 of the preset's size on the workspace's text, save it; return the last loss."""
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer  # slow to import
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    prefix, vocabulary, merges = (preset := options.PRESETS["tiny"]).files
    own, size = GPT2BPETokenizer(vocabulary, merges), preset.size
    batches = text_batches.batches(
        *text_batches.running_text(prefix, own, own, seq_length), samples, seed=1)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(
        n_layer=size.layers, n_embd=size.hidden, n_head=size.heads, n_positions=size.positions,
        vocab_size=own.vocab_size, bos_token_id=own.eod, eos_token_id=own.eod,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _, (tokens, labels) in zip(range(steps), batches, strict=False):
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    pairs = [tuple(line.split()) for line in merges.read_text("utf-8").splitlines()
             if line and not line.startswith("#version")]
    GPT2Tokenizer(vocab=json.loads(vocabulary.read_text("utf-8")), merges=pairs
                  ).save_pretrained(folder)
    return loss.item()


def flags() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("folder", type=Path, help="where gpt2/ and questions.json go")
    result.add_argument("--steps", type=options.positive, default=100, metavar="N",
                        help="steps of training (default: 100)")
    result.add_argument("--batch-size", type=options.positive, default=16, metavar="N")
    result.add_argument("--seq-length", type=options.positive, default=64, metavar="N")
    result.add_argument("--lr", type=float, default=1e-3, metavar="X",
                        help="learning rate of AdamW (default: 0.001)")
    return result


def main() -> None:
    arguments = flags().parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    questions = squad()
    (arguments.folder / "questions.json").write_text(json.dumps(questions))
    count = len(questions["data"][0]["paragraphs"])
    print(f"{arguments.folder}/questions.json: {count:,} questions about Python's library")
    loss = pretrain(arguments.folder / "gpt2", arguments.steps, arguments.batch_size,
                    arguments.seq_length, arguments.lr)
    print(f"{arguments.folder}/gpt2: a loss of {loss:.2f} after {arguments.steps} steps")


if __name__ == "__main__":
    raise SystemExit(options.explained(main))
