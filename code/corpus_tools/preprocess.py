"""Tokenize JSON lines into token files, `{prefix}_{key}_document.bin/.idx`.

The command line, the progress messages, and the bytes are those of Megatron-LM's
`tools/preprocess_data.py`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from corpus_tools.foreign_flags import PREPROCESS
from corpus_tools.indexed_dataset_writer import IndexedDatasetWriter, token_dtype
from corpus_tools.jsonl import read_documents, require_readable
from minimegatron.arguments.data import GPT2_BPE, HUGGING_FACE
from minimegatron.arguments.parse import Parser
from minimegatron.arguments.unknown import harmless_line, sort_out, sort_out_or_refuse
from minimegatron.data.tokenizer import Tokenizer, build_tokenizer
from minimegatron.errors import UserError

# Documents are tokenized in batches of at most this many documents, or about this many bytes.
BATCH_DOCUMENTS = 256
BATCH_BYTES = 1 << 20


@dataclass
class PreprocessCounts:
    """Progress of preprocessing.

    Attributes:
        documents: documents read.
        empty: texts without tokens, which are skipped.
        bytes: bytes of JSON read.
        tokens: tokens written, by key.
    """

    documents: int = 0
    empty: int = 0
    bytes: int = 0
    tokens: dict[str, int] = field(default_factory=dict)


def preprocess(
    inputs: Sequence[str | os.PathLike[str]], output_prefix: str | os.PathLike[str],
    tokenizer: Tokenizer, keys: Sequence[str] = ("text",), append_eod: bool = True,
    progress: Callable[[PreprocessCounts], object] = lambda counts: None,
) -> PreprocessCounts:
    """Tokenize the documents of `inputs`, in order, into one .bin/.idx pair per key.

    A document without tokens is skipped, as in Megatron-LM. The pairs appear at the end; until
    then, and after any error, older pairs stay.

    Args:
        inputs: files with JSON lines.
        output_prefix: the start of the paths to write.
        tokenizer: converts text to tokens.
        keys: the keys of the texts in each JSON object.
        append_eod: end each document with the tokenizer's end-of-document token.
        progress: is called after every document.

    Raises:
        UserError: the input is invalid (with file and line), or the files cannot be written.
    """
    paths = [Path(path) for path in inputs]
    for path in paths:
        require_readable(path)  # now rather than after hours of work
    counts = PreprocessCounts(tokens=dict.fromkeys(keys, 0))
    prefixes = [f"{output_prefix}_{key}_document" for key in keys]
    _require_folder(output_prefix)
    try:
        with ExitStack() as stack:
            writers = [stack.enter_context(IndexedDatasetWriter(
                prefix, token_dtype(tokenizer.vocab_size))) for prefix in prefixes]
            for batch in _batches(paths, keys):
                _write_batch(batch, writers, keys, tokenizer, append_eod, counts, progress)
            if not any(counts.tokens.values()):
                names = ", ".join(str(path) for path in paths)
                raise UserError(f"--input {names} contains no text "
                                f"({counts.documents} documents, all empty): nothing was written")
    except OSError as error:
        raise UserError(
            f"cannot write {prefixes[0]}.bin ({error.strerror or error}): nothing was left behind; "
            "free some space, or write elsewhere with --output-prefix") from error
    return counts


def _require_folder(prefix: str | os.PathLike[str]) -> None:
    folder = Path(prefix).parent
    if not folder.is_dir():
        raise UserError(f"--output-prefix {prefix}: there is no folder {folder}; "
                        f"create it with `mkdir -p {folder}`")


Batch = list[tuple[list[str], int]]


def _batches(paths: Sequence[Path], keys: Sequence[str]) -> Iterator[Batch]:
    batch: Batch = []
    size = 0
    for path in paths:
        for texts, length in read_documents(path, keys):
            batch.append((texts, length))
            size += length
            if len(batch) == BATCH_DOCUMENTS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    yield batch


def _write_batch(batch: Batch, writers: Sequence[IndexedDatasetWriter], keys: Sequence[str],
                 tokenizer: Tokenizer, append_eod: bool, counts: PreprocessCounts,
                 progress: Callable[[PreprocessCounts], object]) -> None:
    columns = [tokenizer.tokenize_batch([texts[k] for texts, _ in batch])
               for k in range(len(keys))]
    for row, (_, length) in enumerate(batch):
        for key, column, writer in zip(keys, columns, writers, strict=True):
            tokens = column[row]
            if not tokens:
                counts.empty += 1
                continue
            if append_eod:
                tokens.append(tokenizer.eod)
            writer.add_sequence(tokens)
            writer.end_document()
            counts.tokens[key] += len(tokens)
        counts.documents += 1
        counts.bytes += length
        progress(counts)


def build_parser() -> Parser:
    top = Parser(prog="preprocess_data.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    group = top.add_argument_group("input data")
    group.add_argument("--input", required=True, metavar="FILE",
                       help="file with JSON lines, optionally compressed with gzip, xz, or bzip2")
    group.add_argument("--json-keys", nargs="+", default=["text"], metavar="KEY",
                       help="keys to tokenize, each into its own pair of files (default: text)")
    group.add_argument("--split-sentences", action="store_true", help="not supported")
    group.add_argument("--keep-newlines", action="store_true", help="not supported")
    group = top.add_argument_group("tokenizer")
    group.add_argument("--tokenizer-type", default=GPT2_BPE, metavar="TYPE",
                       help=f"{GPT2_BPE} (the default) or {HUGGING_FACE}")
    group.add_argument("--vocab-file", metavar="FILE", help="GPT-2's vocab.json")
    group.add_argument("--merge-file", metavar="FILE", help="GPT-2's merges.txt")
    group.add_argument("--tokenizer-model", metavar="FOLDER",
                       help=f"folder with the tokenizer.json of {HUGGING_FACE}")
    group.add_argument("--append-eod", action="store_true",
                       help="end each document with the end-of-document token, such as "
                            "<|endoftext|>")
    group = top.add_argument_group("output data")
    group.add_argument("--output-prefix", required=True, metavar="PREFIX",
                       help="write PREFIX_KEY_document.bin and .idx")
    group.add_argument("--dataset-impl", default="mmap", metavar="IMPL",
                       help="must be mmap")
    group = top.add_argument_group("run time")
    group.add_argument("--workers", type=int, default=1, metavar="N",
                       help="number of tokenizer threads (default: 1)")
    group.add_argument("--log-interval", type=int, default=100, metavar="N",
                       help="documents between two progress lines (default: 100)")
    return top


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line.

    Raises:
        UserError: something is wrong; a line for each problem.
    """
    parser = build_parser()
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    _, harmless, _ = sort_out(argv, parser, PREPROCESS)
    if harmless:
        _print(harmless_line(harmless))
    arguments = parser.parse_args(sort_out_or_refuse(argv, parser, required, PREPROCESS))
    check(arguments)
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Raise UserError for a value that Megatron-LM's program accepts and this one does not."""
    if arguments.split_sentences or arguments.keep_newlines:
        flag = "--split-sentences" if arguments.split_sentences else "--keep-newlines"
        raise UserError(f"{flag} is not supported: sentences are for BERT and T5; GPT reads whole "
                        f"documents, so leave {flag} out")
    if arguments.dataset_impl != "mmap":
        raise UserError(f"--dataset-impl {arguments.dataset_impl} is not supported: use mmap (the "
                        "only format that Megatron-LM still has)")
    for flag in ("workers", "log_interval"):
        if (value := getattr(arguments, flag)) < 1:
            raise UserError(f"--{flag.replace('_', '-')} {value}: less than 1; nearest: 1")
    if len(set(arguments.json_keys)) < len(arguments.json_keys):
        raise UserError(f"--json-keys {' '.join(arguments.json_keys)}: a key is repeated; name "
                        "each key once")


def run(arguments: argparse.Namespace) -> None:
    """Run the program. Raises UserError."""
    started = time.perf_counter()
    # The library reads these when it creates its thread pool, at the first batch.
    os.environ["RAYON_NUM_THREADS"] = str(arguments.workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    _print("Opening", arguments.input)
    _print(f"> building {arguments.tokenizer_type} tokenizer ...")
    tokenizer = build_tokenizer(arguments.tokenizer_type, arguments.vocab_file,
                                arguments.merge_file, arguments.tokenizer_model)
    _print(f"Vocab size: {tokenizer.vocab_size}")
    _print(f"Output prefix: {arguments.output_prefix}")
    ready = time.perf_counter()
    _print("Time to startup:", ready - started)

    def report(counts: PreprocessCounts, interval: int = arguments.log_interval) -> None:
        if counts.documents % interval == 0:
            seconds = time.perf_counter() - ready
            _print(f"Processed {counts.documents} documents "
                   f"({counts.documents / seconds} docs/s, {counts.bytes / seconds / 2**20} MB/s).")

    counts = preprocess([arguments.input], arguments.output_prefix, tokenizer,
                        arguments.json_keys, arguments.append_eod, report)
    if counts.documents % arguments.log_interval:
        report(counts, interval=1)
    if counts.empty:
        _print(f"Skipped {counts.empty} empty texts.")


def _print(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the program, and return its exit code; errors are printed as `error: TEXT` on stderr."""
    # Exit as on Ctrl-C, so that temporary files are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run(parse(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
