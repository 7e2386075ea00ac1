"""Batches of token ids: from the workspace's text, or from questions and answers.

A batch is (tokens, labels), int64 [samples, seq_length]; labels are the tokens one place later.
The running text of the workspace is cut into samples that are full. A question with its context
and answer is one sample: cut where it is longer, padded where it is shorter. The labels of padding
are NO_LABEL, so that it counts neither in the loss nor in the gradient.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from gpt_layers import NO_LABEL
from labcore.errors import LabError
from minimegatron.data.indexed_dataset import IndexedDataset

Batch = tuple[torch.Tensor, torch.Tensor]
MAX_TOKENS = 4_000_000  # tokens of the workspace's text: no run of an example reads more
RESPELLED = 1_000_000  # as many, where they must be spelled anew, which takes seconds


class Tokenizer(Protocol):
    """Interface of both tokenizers: the course's, and that of transformers in pretrained.py."""

    eod: int
    vocab_size: int

    def tokenize_batch(self, texts: list[str]) -> list[list[int]]: ...


def batches(rows: torch.Tensor, labels: torch.Tensor, samples: int, seed: int) -> Iterator[Batch]:
    """Batches of `samples` rows forever, in a new order each time around."""
    if len(rows) < samples:
        raise LabError(f"there is text for {len(rows)} samples only, and a batch has {samples}: "
                       "give more text, a smaller batch or a shorter --seq-length")
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator)
        for picked in order[:len(rows) - len(rows) % samples].split(samples):
            yield rows[picked], labels[picked]


def running_text(prefix: Path, own: Any, tokenizer: Tokenizer, seq_length: int) -> Batch:
    """All samples of a token file, which `own` has spelled; `tokenizer` is the model's."""
    ids = IndexedDataset(prefix).tokens
    if tokenizer is not own:  # back to text, and into the model's own vocabulary
        text = own.detokenize(ids[:RESPELLED].tolist())
        parts = [text[at:at + 10_000] for at in range(0, len(text), 10_000)]
        ids = [token for spelled in tokenizer.tokenize_batch(parts) for token in spelled]
    stream = torch.from_numpy(np.array(ids[:MAX_TOKENS], dtype=np.int64))
    count = (len(stream) - 1) // seq_length
    end = count * seq_length
    return stream[:end].view(count, -1), stream[1:end + 1].view(count, -1)


def questions(dataset: str, tokenizer: Tokenizer, seq_length: int) -> Batch:
    """All samples of SQuAD, or of a file of its kind."""
    texts = [spell_out(row) for row in rows_of(dataset)]
    rows = [[*ids, tokenizer.eod][:seq_length + 1] for ids in tokenizer.tokenize_batch(texts)]
    tokens = torch.full((len(rows), seq_length), tokenizer.eod)
    labels = torch.full((len(rows), seq_length), NO_LABEL)
    for at, ids in enumerate(rows):
        tokens[at, :len(ids) - 1] = torch.tensor(ids[:-1])
        labels[at, :len(ids) - 1] = torch.tensor(ids[1:])
    return tokens, labels


def spell_out(row: dict[str, Any]) -> str:
    """One row of SQuAD as a text to learn: context, question and the first answer."""
    try:
        answers = row["answers"]["text"]
        answer = answers[0] if len(answers) else "(none)"
        return f"{row['context']}\nQuestion: {row['question']}\nAnswer: {answer}"
    except (KeyError, TypeError, IndexError) as error:
        raise LabError('--dataset: a row is not as SQuAD\'s are ({"context": ..., "question": ..., '
                       f'"answers": {{"text": [...]}}}}): {str(row)[:120]}') from error


def rows_of(dataset: str) -> list[dict[str, Any]]:
    """Rows as the Hugging Face hub has SQuAD's. Raises LabError where there are none."""
    file = Path(dataset).expanduser()
    if file.suffix in (".json", ".jsonl") and not file.is_file():
        raise LabError(f"--dataset {dataset}: there is no such file")
    if file.is_file() and (nested := squad_file(file)):
        return nested
    import datasets  # slow

    try:
        if not file.is_file():
            return list(datasets.load_dataset(dataset, split="train"))
        return list(datasets.load_dataset("json", data_files=str(file), split="train"))
    except Exception as error:  # one class for each of its sources and formats
        hint = "" if file.is_file() else ("; without a network, give a file: the train-v1.1.json "
                                          "of SQuAD's own site, or JSON lines")
        raise LabError(f"--dataset {dataset} cannot be loaded ({type(error).__name__}: "
                       f"{str(error).splitlines()[0][:200]}){hint}") from error


def squad_file(file: Path) -> list[dict[str, Any]]:
    """The rows of SQuAD's own file, which nests them by article and paragraph; else nothing."""
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        return [{"context": paragraph["context"], "question": question["question"],
                 "answers": {"text": [answer["text"] for answer in question["answers"]]}}
                for article in whole["data"] for paragraph in article["paragraphs"]
                for question in paragraph["qas"]]
    except (ValueError, KeyError, TypeError):  # JSON lines, or one array of rows
        return []
