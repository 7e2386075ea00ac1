"""Build the files of `lab data`: the text, two vocabularies, and the tokens for each."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from corpus_tools import corpus
from labcore.errors import LabError
from labcore.progress import Notify, ProgressStep

# Part of the stamp; increment it when this package writes other bytes for the same text.
FORMAT = 1
DEFAULT_MB = 32

# Merges are learned from at most this much text; longer text is sampled.
TRAINING_BYTES = 32_000_000


@dataclass(frozen=True)
class DataOptions:
    """Options of `lab data`, whose names are part of the stamp.

    Attributes:
        inputs: the user's JSON-lines files; without any, the text is the Python library's.
        vocab_file: the user's vocab.json for GPT-2's vocabulary.
        merge_file: the user's merges.txt for GPT-2's vocabulary.
        size_mb: the maximum size of the Python library's text, in MB.
        gpt2_entries: the size of GPT-2's vocabulary.
        small_entries: the size of the small vocabulary.
    """

    inputs: tuple[str, ...] = ()
    vocab_file: str | None = None
    merge_file: str | None = None
    size_mb: int = DEFAULT_MB
    gpt2_entries: int = 50257
    small_entries: int = 4096

    def key(self) -> str:
        """Return a hash of all that determines the bytes: texts, options, and library version."""
        import tokenizers

        parts = asdict(self) | {"format": FORMAT, "tokenizers": tokenizers.__version__}
        for name in ("vocab_file", "merge_file"):
            parts[name] = parts[name] and _content_hash(parts[name])
        parts["inputs"] = [_content_hash(path) for path in self.inputs] or corpus.fingerprint()
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _content_hash(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


class Builder:
    """Builds all files in a folder, which exists and is empty."""

    def __init__(self, folder: Path, notify: Notify, options: DataOptions):
        """Args:
            folder: the folder.
            notify: receives lines about the progress.
            options: the options of `lab data`.
        """
        self.folder, self.notify, self.options = folder, notify, options
        self.assets = folder / "GPT-2_assets"
        self.small = folder / f"bpe-{options.small_entries}"

    def build(self) -> list[str]:
        """Build all files, and return the summary, with one line per token file."""
        for folder in (self.assets, self.small):
            folder.mkdir()
        self.inputs = [Path(path) for path in self.options.inputs] or [self._library_text()]
        gpt2 = self.assets / "gpt2-vocab.json", self.assets / "gpt2-merges.txt"
        small = self.small / "vocab.json", self.small / "merges.txt"
        self._write_vocabularies(gpt2, small)
        return [self._tokenize(gpt2, self.assets / "my-gpt2_text_document"),
                self._tokenize(small, self.small / "text_document")]

    def _library_text(self) -> Path:
        path = self.folder / "corpus.jsonl"
        with ProgressStep("reading the Python library's text", self.notify) as step:
            texts = corpus.documents(self.options.size_mb * 1_000_000)
            corpus.write_jsonl(texts, path)
            step.note = f"{len(texts):,} documents, {path.stat().st_size / 1e6:.1f} MB, "
        return path

    def _write_vocabularies(self, gpt2: tuple[Path, Path], small: tuple[Path, Path]) -> None:
        """Write both vocabularies; GPT-2's is the user's own if one is given."""
        from corpus_tools.train_vocabulary import write_vocabulary

        small_count = self.options.small_entries - 257  # without 256 bytes and <|endoftext|>
        own = self._user_vocabulary()
        if own:
            merges = self._merges(small_count, self.options.small_entries)
            for source, target in zip(own, gpt2, strict=True):
                shutil.copyfile(source, target)
        else:
            merges = self._merges(self.options.gpt2_entries - 257, self.options.gpt2_entries)
            write_vocabulary(merges, *gpt2)
        # On the same text, the smaller vocabulary is a prefix of the larger one.
        write_vocabulary(merges[:small_count], *small)

    def _user_vocabulary(self) -> tuple[str, str] | None:
        from minimegatron.data.tokenizer import GPT2BPETokenizer

        vocab, merge = self.options.vocab_file, self.options.merge_file
        if not vocab and not merge:
            return None
        if not vocab or not merge:
            missing = "--merge-file" if vocab else "--vocab-file"
            raise LabError(f"a vocabulary has two files: pass {missing}, too")
        entries = GPT2BPETokenizer(vocab, merge).vocab_size
        if entries != self.options.gpt2_entries:
            raise LabError(f"--vocab-file {vocab} has {entries:,} entries, but the labs need "
                           f"GPT-2's {self.options.gpt2_entries:,}: pass GPT-2's own files")
        return vocab, merge

    def _merges(self, count: int, entries: int) -> list[tuple[str, str]]:
        """Return `count` merges, trained on the data's own text if it has enough of them."""
        title = f"training a vocabulary of {entries:,} entries"
        merges = self._train(title, self._training_texts(), count)
        if len(merges) < count:
            self.notify(f"  this text alone has only {len(merges):,} of {count:,} merges, so the "
                        "vocabulary (not the data) is also trained on the Python library's text")
            texts = chain(self._training_texts(), corpus.documents(TRAINING_BYTES))
            merges = self._train(title, texts, count)
        if len(merges) < count:
            raise LabError(f"the text has only {len(merges):,} of the {count:,} merges that a "
                           f"vocabulary of {entries:,} entries needs: pass more text with --input")
        return merges

    def _training_texts(self) -> Iterator[str]:
        """Yield every k-th document, for about TRAINING_BYTES in total."""
        from corpus_tools.jsonl import read_documents

        total = sum(path.stat().st_size for path in self.inputs)
        stride = -(-total // TRAINING_BYTES)
        lines = chain.from_iterable(read_documents(path, ["text"]) for path in self.inputs)
        left = TRAINING_BYTES
        for number, ((text,), _) in enumerate(lines):
            if number % stride == 0 and left > 0:
                yield text[:left]
                left -= len(text)

    def _train(self, title: str, texts: Iterable[str], count: int) -> list[tuple[str, str]]:
        """Train in a thread, which releases the GIL, so that Ctrl-C and the progress bar work."""
        from corpus_tools.train_vocabulary import train_merges

        outcome: list = []

        def work() -> None:
            try:
                # Read the texts here, because the library would mask an error in them.
                outcome.append(train_merges(list(texts), count))
            except Exception as error:
                outcome.append(error)

        with ProgressStep(title, self.notify) as step:
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
        with ProgressStep(f"tokenizing {name}", self.notify, total) as step:
            counts = preprocess(self.inputs, self.folder / "new", GPT2BPETokenizer(*vocabulary),
                                progress=lambda counts: step.update(counts.bytes))
        for suffix in (".bin", ".idx"):
            os.replace(f"{self.folder / 'new'}_text_document{suffix}", f"{target}{suffix}")
        tokens = counts.tokens["text"]
        return (f"  {name}: {counts.documents - counts.empty:,} documents, {tokens:,} tokens, "
                f"{counts.bytes / tokens:.2f} bytes of JSON per token")
