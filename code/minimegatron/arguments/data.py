"""Flags of the data and the tokenizer, and which files a tokenizer needs.

Two kinds of tokenizer have the names that they have in Megatron-LM. GPT-2's has two files, each
with a flag of its own. A Hugging Face tokenizer is a folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from minimegatron.arguments.flag import NOTHING, RESULTS, STATE, flag
from minimegatron.errors import UserError

GPT2_BPE, HUGGING_FACE = "GPT2BPETokenizer", "HuggingFaceTokenizer"
TOKENIZERS = (GPT2_BPE, HUGGING_FACE)
OTHER_TOKENIZER = (HUGGING_FACE, "--tokenizer-model")  # words that ask for one
HINT = "`lab data` makes a pair in $LAB_HOME/data/GPT-2_assets"


@dataclass(frozen=True)
class Data:
    """Data."""

    data_path: str | None = flag(
        None, "prefix of the .bin and .idx files", affects=RESULTS, required=True, path=True,
        estimate_with="")
    data_impl: str = flag(
        "infer", "format of the data set", choices=("mmap", "infer"), affects=NOTHING)
    data_cache_path: str | None = flag(
        None, "folder of the index maps (default: beside the data)", affects=NOTHING)
    split: str = flag(
        "969, 30, 1", "proportions of training, validation, and test data", affects=RESULTS)
    tokenizer_type: str = flag(
        GPT2_BPE, "the tokenizer: GPT-2's, or one in Hugging Face's format", choices=TOKENIZERS,
        affects=RESULTS | STATE)
    vocab_file: str | None = flag(
        None, "GPT-2 vocab.json", affects=RESULTS, required=True, unless=OTHER_TOKENIZER, path=True,
        estimate_with="")
    merge_file: str | None = flag(
        None, "GPT-2 merges.txt", affects=RESULTS, required=True, unless=OTHER_TOKENIZER, path=True,
        estimate_with="")
    tokenizer_model: str | None = flag(
        None, f"folder with the tokenizer.json of --tokenizer-type {HUGGING_FACE}",
        affects=RESULTS, path=True, estimate_with="")
    eod_mask_loss: bool = flag(False, "no loss on end-of-document tokens", affects=RESULTS)
    num_workers: int = flag(
        2, "no effect: samples come straight from memory-mapped files", affects=NOTHING)


def check_tokenizer_files(kind: str, vocab_file: str | None, merge_file: str | None,
                          tokenizer_model: str | None) -> None:
    """Raise UserError unless the files of exactly one tokenizer are given.

    Args:
        kind: --tokenizer-type.
        vocab_file: --vocab-file; None if it is not given, like the next two.
        merge_file: --merge-file.
        tokenizer_model: --tokenizer-model.
    """
    if kind not in TOKENIZERS:
        raise UserError(f"--tokenizer-type {kind} is not supported: use {' or '.join(TOKENIZERS)}")
    pair = {"--vocab-file": vocab_file, "--merge-file": merge_file}
    if kind == GPT2_BPE:
        if tokenizer_model:
            raise UserError(f"--tokenizer-model {tokenizer_model} belongs to --tokenizer-type "
                            f"{HUGGING_FACE}, but the type is {kind}; nearest: --tokenizer-type "
                            f"{HUGGING_FACE} --tokenizer-model {tokenizer_model}")
        for name, path in pair.items():
            if path is None:
                raise UserError(f"--tokenizer-type {kind} needs {name}: {HINT}")
        return
    for name, path in pair.items():
        if path:
            raise UserError(f"{name} {path} belongs to --tokenizer-type {GPT2_BPE}, but the type "
                            f"is {kind}, whose vocabulary is in --tokenizer-model; leave {name} "
                            "out")
    if tokenizer_model is None:
        raise UserError(f"--tokenizer-type {kind} needs --tokenizer-model, a folder with "
                        "tokenizer.json, such as one that `tokenizer.save_pretrained` wrote")
