"""From flags to what a run needs: the model's size, its first weights, and batches of text."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

import options
import text_batches
from gpt_layers import Size
from labcore.errors import LabError
from minimegatron.data.tokenizer import GPT2BPETokenizer
from pretrained import Pretrained


@dataclass(frozen=True)
class Setting:
    """size: of the model. samples: all there are, (tokens, labels) of [n, seq_length]."""

    size: Size
    seq_length: int
    samples: text_batches.Batch
    seed: int
    pretrained: Pretrained | None

    def load(self, layer: nn.Module, index: int) -> nn.Module:
        """Give layer `index` its trained weights, if the run starts from any."""
        if self.pretrained:
            layer.load_state_dict(self.pretrained.layer(index))
        return layer

    def batches(self, samples: int) -> Iterator[text_batches.Batch]:
        return text_batches.batches(*self.samples, samples, self.seed)


def read(arguments: argparse.Namespace) -> Setting:
    """Raises LabError or UserError for flags and files that do not fit."""
    preset = options.PRESETS[arguments.preset]
    prefix, *vocabulary = preset.files
    loaded = Pretrained(arguments.pretrained) if arguments.pretrained else None
    own = None if loaded and arguments.dataset else GPT2BPETokenizer(*vocabulary)
    tokenizer = loaded.tokenizer if loaded else own
    size = loaded.size if loaded else replace(preset.size, vocabulary=tokenizer.vocab_size)
    if tokenizer.vocab_size > size.vocabulary:
        raise LabError(f"--pretrained {arguments.pretrained}: its tokenizer knows "
                       f"{tokenizer.vocab_size} tokens, its model {size.vocabulary}")
    length = options.seq_length(arguments.seq_length, size)
    samples = (text_batches.questions(arguments.dataset, tokenizer, length) if arguments.dataset
               else text_batches.running_text(prefix, own, tokenizer, length))
    return Setting(size, length, samples, arguments.seed, loaded)
