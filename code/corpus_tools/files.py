"""The files that `lab data` makes: the text, two vocabularies, and the tokens under each."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from corpus_tools import corpus
from labcore.errors import LabError
from labcore.progress import ProgressStep

if TYPE_CHECKING:
    from corpus_tools.cli import Options

# Merges are learned from at most this much text; longer input is sampled.
TRAINING_BYTES = 32_000_000


class Builder:
    """Makes every file of the data in `folder`, which exists and is empty."""

    def __init__(self, folder: Path, say: Callable[[str], object], options: Options):
        self.folder, self.say, self.options = folder, say, options
        self.assets = folder / "GPT-2_assets"
        self.small = folder / f"bpe-{options.small_entries}"

    def build(self) -> list[str]:
        """Returns the summary, one line for each token file."""
        for folder in (self.assets, self.small):
            folder.mkdir()
        self.inputs = [Path(path) for path in self.options.inputs] or [self._library_text()]
        gpt2 = self.assets / "gpt2-vocab.json", self.assets / "gpt2-merges.txt"
        small = self.small / "vocab.json", self.small / "merges.txt"
        self._vocabularies(gpt2, small)
        return [self._tokenize(gpt2, self.assets / "my-gpt2_text_document"),
                self._tokenize(small, self.small / "text_document")]

    def _library_text(self) -> Path:
        path = self.folder / "corpus.jsonl"
        with ProgressStep("reading the Python library's text", self.say) as step:
            texts = corpus.documents(self.options.size_mb * 1_000_000)
            corpus.write_jsonl(texts, path)
            step.note = f"{len(texts):,} documents, {path.stat().st_size / 1e6:.1f} MB, "
        return path

    def _vocabularies(self, gpt2: tuple[Path, Path], small: tuple[Path, Path]) -> None:
        """Write both pairs; the GPT-2 set is the user's where given."""
        from corpus_tools.train_vocabulary import write_vocabulary

        small_count = self.options.small_entries - 257  # 256 bytes and <|endoftext|>
        own = self._given_vocabulary()
        if own:
            merges = self._merges(small_count, self.options.small_entries)
            for source, target in zip(own, gpt2, strict=True):
                shutil.copyfile(source, target)
        else:
            merges = self._merges(self.options.gpt2_entries - 257, self.options.gpt2_entries)
            write_vocabulary(merges, *gpt2)
        # On the same text, the smaller vocabulary is the beginning of the larger one.
        write_vocabulary(merges[:small_count], *small)

    def _given_vocabulary(self) -> tuple[str, str] | None:
        from minimegatron.data.tokenizer import GPT2BPETokenizer

        vocab, merge = self.options.vocab_file, self.options.merge_file
        if not vocab and not merge:
            return None
        if not vocab or not merge:
            missing = "--merge-file" if vocab else "--vocab-file"
            raise LabError(f"a vocabulary is two files: give {missing} as well")
        entries = GPT2BPETokenizer(vocab, merge).vocab_size
        if entries != self.options.gpt2_entries:
            raise LabError(f"--vocab-file {vocab} has {entries:,} entries; the labs count on "
                           f"GPT-2's {self.options.gpt2_entries:,}: give GPT-2's own files")
        return vocab, merge

    def _merges(self, count: int, entries: int) -> list[tuple[str, str]]:
        """`count` merges, from the data's own text if it yields as many."""
        title = f"training a vocabulary of {entries:,} entries"
        merges = self._train(title, self._training_texts(), count)
        if len(merges) < count:
            self.say(f"  this text alone yields {len(merges):,} of {count:,} merges: the "
                     "vocabulary (not the data) is trained on the Python library's text too")
            texts = chain(self._training_texts(), corpus.documents(TRAINING_BYTES))
            merges = self._train(title, texts, count)
        if len(merges) < count:
            raise LabError(f"the text yields only {len(merges):,} of the {count:,} merges that a "
                           f"vocabulary of {entries:,} needs: give more text with --input")
        return merges

    def _training_texts(self) -> Iterator[str]:
        """Every k-th document, so that they come to at most TRAINING_BYTES or little more."""
        from corpus_tools.jsonl import read_documents

        total = sum(path.stat().st_size for path in self.inputs)
        every = -(-total // TRAINING_BYTES)
        lines = chain.from_iterable(read_documents(path, ["text"]) for path in self.inputs)
        left = TRAINING_BYTES
        for number, ((text,), _) in enumerate(lines):
            if number % every == 0 and left > 0:
                yield text[:left]
                left -= len(text)

    def _train(self, title: str, texts: Iterable[str], count: int) -> list[tuple[str, str]]:
        """Train in a thread of its own: the library lets go of Python, so that Ctrl-C and the
        bar work meanwhile."""
        from corpus_tools.train_vocabulary import train_merges

        outcome: list = []

        def work() -> None:
            try:
                # Read here first: the library would hide an error in the text behind its own.
                outcome.append(train_merges(list(texts), count))
            except Exception as error:
                outcome.append(error)

        with ProgressStep(title, self.say) as step:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            while thread.is_alive():
                thread.join(0.1)
                step.update(0)
            if isinstance(outcome[0], Exception):
                raise outcome[0]
        return outcome[0]

    def _tokenize(self, vocabulary: tuple[Path, Path], target: Path) -> str:
        from corpus_tools.preprocess import preprocess
        from minimegatron.data.tokenizer import GPT2BPETokenizer

        name = str(target.relative_to(self.folder))
        total = sum(path.stat().st_size for path in self.inputs)
        with ProgressStep(f"tokenizing {name}", self.say, total) as step:
            counts = preprocess(self.inputs, self.folder / "new", GPT2BPETokenizer(*vocabulary),
                                progress=lambda counts: step.update(counts.bytes))
        for suffix in (".bin", ".idx"):
            os.replace(f"{self.folder / 'new'}_text_document{suffix}", f"{target}{suffix}")
        tokens = counts.tokens["text"]
        return (f"  {name}: {counts.documents - counts.empty:,} documents, {tokens:,} tokens, "
                f"{counts.bytes / tokens:.2f} bytes of JSON a token")
