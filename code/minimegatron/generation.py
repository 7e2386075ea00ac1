"""Generate text with a trained model, token by token (generate.py is the program).

A model predicts the next token from all tokens so far, but their keys and values do not change when
another one follows. So they are kept: `CachedAttention` replaces core attention, and a forward pass
reads one new token instead of the whole text. Everything else of the model is as in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from minimegatron.arguments import Config
from minimegatron.checkpoint.load import on_all_ranks
from minimegatron.checkpoint.saved_model import SavedModel, empty_stage
from minimegatron.context import Context, MicroBatch
from minimegatron.data.tokenizer import Tokenizer
from minimegatron.errors import UserError
from minimegatron.model import ops
from minimegatron.model.attention import Attention
from minimegatron.model.parameters import named_param_specs

ROOM = 4096  # tokens by which a cache grows at a time, at most


class CachedAttention:
    """Core attention that keeps the keys and values of all tokens so far.

    Per layer and rank, they take 2 n G/t d elements for n tokens, with the letters of attention.py.
    """

    def __init__(self, attention: Attention) -> None:
        self.sharing, self.count = attention.sharing, 0
        self.keys = self.values = None

    def __call__(self, dropout: None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
                 ) -> torch.Tensor:
        """Return the attention [s, a/t, d] of the next s tokens of one text to all tokens so far.

        Args:
            dropout: always None; training draws masks from it.
            query: the new tokens' queries, [s, a/t, d].
            key: their keys, [s, G/t, d].
            value: their values, [s, G/t, d].
        """
        start, end = self.count, self.count + len(query)
        if self.keys is None or end > len(self.keys):
            self.keys, self.values = (self._grown(cache, end, new) for cache, new in (
                (self.keys, key), (self.values, value)))
        self.keys[start:end], self.values[start:end] = key, value
        self.count = end
        keys, values = (each[:end].repeat_interleave(self.sharing, 1) if self.sharing > 1
                        else each[:end] for each in (self.keys, self.values))
        # A new token sees itself and all before it.
        mask = query.new_full((1, len(query), end), ops.MASKED).triu_(start + 1)
        return ops.attention(query, keys, values, mask, None, 0.0)

    def _grown(self, cache: torch.Tensor | None, size: int, new: torch.Tensor) -> torch.Tensor:
        """Return a cache for at least `size` tokens like `new`, with what is in it so far."""
        larger = new.new_empty(size + min(size, ROOM), *new.shape[1:])
        if cache is not None:
            larger[:self.count] = cache[:self.count]
        return larger


class TextModel:
    """A model on its tensor-parallel ranks, all of which make the same calls."""

    def __init__(self, ctx: Context, saved: SavedModel, rows: int) -> None:
        """Load the model, with `rows` rows of the vocabulary. Raises UserError on all ranks."""
        self.ctx, self.stage, self.count = ctx, empty_stage(ctx, rows), 0
        specs = named_param_specs(self.stage)

        def read() -> dict[str, torch.Tensor]:
            try:
                return {name: ctx.tensor(saved.part(ctx.grid.tp, name, spec))
                        for name, spec in specs.items()}
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise UserError(f"--load {saved.source} does not hold the model that it describes "
                                f"({error})") from error

        self.stage.load_state_dict(on_all_ranks(ctx, read), assign=True)
        self.restart()

    def restart(self) -> None:
        """Begin another text: forget all tokens."""
        self.count = 0
        for layer in self.stage.decoder.layers.values():
            layer.self_attention.core_attention = CachedAttention(layer.self_attention)

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Read the next tokens of the text, and return the logits [V] of the one after them.

        They are fp32, and have the same bits on all ranks.
        """
        batch = MicroBatch(self.ctx.tensor(torch.tensor([tokens])), None, None, None, self.count)
        self.count += len(tokens)
        x = self.stage.embedding(batch)
        for layer in self.stage.decoder.layers.values():
            x = layer(x, batch)
        return self.ctx.grid.tp.all_gather(self.stage.logits(x[-1:]).float().flatten())


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the most probable one (greedy), or at random.

    Attributes:
        temperature: divides the logits; None for greedy.
        top_k: choose among the top_k most probable tokens; 0 for all.
        top_p: choose among the smallest set of most probable tokens whose probabilities sum to
            at least top_p (nucleus sampling, Holtzman et al. 2020); 0 for all.
        seed: seed of the random numbers, the same for every text.
    """

    temperature: float | None = None
    top_k: int = 0
    top_p: float = 0.0
    seed: int = Config.seed

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return the ID of a token, one element, from logits [V]."""
        if self.temperature is None:
            return logits.argmax()
        logits, ids = (logits / self.temperature).sort(descending=True, stable=True)
        probabilities = logits[:self.top_k or None].softmax(-1)
        if self.top_p:
            before = probabilities.cumsum(-1) - probabilities
            probabilities = probabilities.masked_fill(before >= self.top_p, 0.0)
        return ids[torch.multinomial(probabilities, 1, generator=generator)]


def generate(model: TextModel, prompt: Sequence[int], count: int, tokenizer: Tokenizer,
             sampling: Sampling) -> Iterator[int]:
    """Yield at most `count` tokens that follow a prompt; stop early where the document ends.

    Each rank draws the same random numbers and has the same logits, so all ranks choose the same
    tokens. Rows that pad the vocabulary are never chosen.
    """
    generator = torch.Generator(model.ctx.device.torch_device).manual_seed(sampling.seed)
    model.restart()
    tokens = list(prompt)
    for _ in range(count):
        logits = model.logits(tokens)[:tokenizer.vocab_size]
        token = int(model.ctx.read(sampling.choose(logits, generator)))
        if token == tokenizer.eod:
            return
        yield token
        tokens = [token]
