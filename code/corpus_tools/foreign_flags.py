"""Flags of Megatron-LM's preprocess_data.py that ours does not implement, old ones among them."""

from __future__ import annotations

from minimegatron.arguments.unknown import ForeignFlags, values_of

NAMES = {
    "0": "--keep-sequential-samples --find-optimal-num-workers --legacy-tokenizer "
         "--trust-remote-code --keep-empty --ftfy",
    "1": "--partitions --lang --max-documents --performance-dir --vocab --vocab-size "
         "--padded-vocab-size --vocab-extra-ids --tokenizer-metadata "
         "--tiktoken-pattern --tiktoken-num-special-tokens --chunk-size --num-docs "
         "--tokenizer-name-or-path --make-vocab-size-divisible-by --pad-vocab-size-to",
    "*": "--workers-to-check --tiktoken-special-tokens",
}
PREPROCESS = ForeignFlags(
    values_of(NAMES),
    no_effect={
        "documents always keep their order": "--keep-sequential-samples --chunk-size",
        "it is for --split-sentences": "--lang",
        "the trainer pads the vocabulary, not the data":
            "--make-vocab-size-divisible-by --padded-vocab-size --pad-vocab-size-to --vocab-size",
        "documents are counted as they are read": "--num-docs",
        "tokenizers are read as data, never as code": "--legacy-tokenizer --trust-remote-code",
    },
    harmless_values={"--partitions": "1", "--vocab-extra-ids": "0"},
    refused={
        "another name": "--vocab",
        "the tokenizer is GPT-2's byte-level BPE, or one in Hugging Face's format":
            "--tokenizer-metadata --tiktoken-* --tokenizer-name-or-path --vocab-extra-ids",
        "one program reads the whole input, with the threads of --workers": "--partitions",
        "the number of threads is not searched for":
            "--find-optimal-num-workers --workers-to-check --max-documents --performance-dir",
        "texts are tokenized as they are, and empty ones are skipped": "--ftfy --keep-empty",
    },
    instead={
        "--vocab": "--vocab-file",
        "--tokenizer-name-or-path": "--tokenizer-type HuggingFaceTokenizer --tokenizer-model",
        "--partitions": "--workers", "--find-optimal-num-workers": "--workers",
    })
