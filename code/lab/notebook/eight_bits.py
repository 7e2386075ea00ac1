"""A language model small enough to train in seconds, and the cost of linear layers, for lab 13."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minite as te
from minite.module import Module
from minite.state import BACKWARD
from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu

VOCABULARY, HIDDEN, SEQUENCE, BATCH = 128, 128, 16, 8  # 128x128 blocks fit
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class TinyModel(nn.Module):
    """An embedding, one Transformer layer, and a linear layer over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layer = te.TransformerLayer(HIDDEN, HIDDEN, 4, hidden_dropout=0, attention_dropout=0)
        self.head = te.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [s, b, vocabulary] of tokens [s, b]."""
        return self.head(self.layer(self.embedding(tokens)))


def batches(steps: int) -> Iterator[Tensor]:
    """Yield tokens [s + 1, b]: the next is 5 t + 3 of the last, but one in ten is random."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (SEQUENCE + 1, BATCH), generator=generator)
        noise = torch.rand(tokens.shape, generator=generator) < 0.1
        for i in range(SEQUENCE):
            tokens[i + 1] = torch.where(noise[i + 1], tokens[i + 1],
                                        (5 * tokens[i] + 3) % VOCABULARY)
        yield tokens


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token, for tokens [s + 1, b]."""
    return F.cross_entropy(model(tokens[:-1]).float().flatten(0, 1), tokens[1:].flatten())


def train(recipe: te.recipe.Recipe | None, steps: int = 60,
          before_step: Callable[[TinyModel, int], None] = lambda model, step: None
          ) -> tuple[TinyModel, list[float]]:
    """Train with bf16 parameters and fp32 master weights; return the model and its losses.

    Args:
        recipe: the FP8 recipe; None trains in bf16.
        steps: of training.
        before_step: called with the model and the step's index.
    """
    torch.manual_seed(0)
    model = TinyModel().bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer, losses = torch.optim.Adam(masters, lr=3e-3), []
    for step, tokens in enumerate(batches(steps)):
        before_step(model, step)
        with te.autocast(recipe is not None, recipe=recipe):
            loss = loss_of(model, tokens)
        loss.backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data.copy_(master.detach())
        losses.append(loss.item())
    return model, losses


def stuck_gradient_scale(scale: float) -> Callable[[TinyModel, int], None]:
    """Return a `before_step` of `train` that sets the scale of all gradients, whatever their amax.

    Args:
        scale: a power of two.
    """
    def before_step(model: TinyModel, step: int) -> None:
        for module in model.modules():
            if isinstance(module, Module) and BACKWARD in module.fp8_state.scalings:
                scaling = module.fp8_state.scalings[BACKWARD]
                scaling.scale = torch.full_like(scaling.scale, scale)

    return before_step


@dataclass(frozen=True)
class LinearTimes:
    """Modeled times of a linear layer's forward and backward pass on a virtual GPU, in us.

    Attributes:
        bf16: three GEMMs in bf16.
        gemms: the same GEMMs in FP8.
        casts: amax, cast, and copy of the transpose of input, weight, and gradient.
    """

    bf16: float
    gemms: float
    casts: float

    @property
    def speedup(self) -> float:
        """The time in bf16 over the time in FP8 with one scale per tensor."""
        return self.bf16 / (self.gemms + self.casts)


def linear_times(tokens: int, inputs: int, outputs: int, gpu: str = "h100-80gb") -> LinearTimes:
    """Run all kernels of a linear layer on a virtual GPU.

    Args:
        tokens: rows of the input.
        inputs: columns of the input.
        outputs: columns of the output.
        gpu: the GPU model.
    """
    def new(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    one = new(dtype=torch.float)
    times = []
    with VirtualGpu(CARDS[gpu]) as card:
        x, w, g = new(tokens, inputs), new(outputs, inputs), new(tokens, outputs)
        x @ w.t(), g @ w, g.t() @ x
        times.append(card.computing)
        pairs = []
        for tensor, dtype in ((x, E4M3), (w, E4M3), (g, E5M2)):
            tensor.amax()
            data = tensor.to(dtype)
            pairs.append((data, data.t().contiguous()))
        times.append(card.computing)
        (x8, x8_t), (w8, w8_t), (g8, g8_t) = pairs
        for a, b in ((x8, w8), (g8, w8_t), (g8_t, x8_t)):
            torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)
        times.append(card.computing)
    bf16, casts, gemms = (1e6 * (end - start) for start, end in
                          zip([0.0, *times[:-1]], times, strict=True))
    return LinearTimes(bf16, gemms, casts)
