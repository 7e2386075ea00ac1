"""Learn byte-pair merges from text, for a vocabulary in GPT-2's format."""

from __future__ import annotations

import json
from collections.abc import Iterable

from minimegatron.data.tokenizer import END_OF_DOCUMENT


def train_merges(texts: Iterable[str], count: int) -> list[tuple[str, str]]:
    """The `count` most frequent merges in order; fewer when the text does not hold as many.

    Deterministic: the same texts give the same merges, whatever the number of threads. The
    vocabulary of n merges is the first n of any larger one trained on the same text.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count, min_frequency=1, show_progress=False, special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    merges, seen = [], {END_OF_DOCUMENT}
    for pair in json.loads(tokenizer.to_str())["model"]["merges"]:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        # Two merges may spell the same token; GPT-2's format has one entry for each.
        if left + right not in seen:
            seen.add(left + right)
            merges.append((left, right))
    return merges[:count]
