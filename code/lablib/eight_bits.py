"""A language model small enough to train in seconds, and the cost of linear layers, for lab 13."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minite as te
from minite.module import Module
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


class Training(NamedTuple):
    """A trained model, and the loss and the gradient norm of each step."""

    model: TinyModel
    losses: list[float]
    gradient_norms: list[float]


Change = Callable[[TinyModel, int], TinyModel]  # from the model and the step's index to the model


def train(recipe: te.recipe.Recipe | None, steps: int = 60,
          before_step: Change = lambda model, step: model, micro_batches: int = 1) -> Training:
    """Train with bf16 parameters and fp32 master weights.

    Args:
        recipe: the FP8 recipe; None trains in bf16.
        steps: of training.
        before_step: called with the model and the step's index; returns the model to go on with.
        micro_batches: by which the loss is divided before the backward pass, as in Megatron-LM.
            Only the first micro-batch of a step is run: Adam's updates do not depend on the
            gradients' magnitude.
    """
    torch.manual_seed(0)
    model = TinyModel().bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer, losses, norms = torch.optim.Adam(masters, lr=3e-3), [], []
    for step, tokens in enumerate(batches(steps)):
        model = before_step(model, step)
        with te.autocast(recipe is not None, recipe=recipe):
            loss = loss_of(model, tokens)
        (loss / micro_batches).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float() * micro_batches
            parameter.grad = None
        norms.append(nn.utils.get_total_norm([master.grad for master in masters]).item())
        optimizer.step()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data.copy_(master.detach())
        losses.append(loss.item())
    return Training(model, losses, norms)


def without_scales(model: TinyModel, step: int) -> TinyModel:
    """Cast as a program without scales does: set all of them to 1 (a `before_step` of `train`)."""
    for module in model.modules():
        if isinstance(module, Module):
            for scaling in module.fp8_state.scalings.values():
                scaling.scale = torch.ones_like(scaling.scale)
    return model


def resumed(at: int, extra_state: bool) -> Change:
    """Return a `before_step` of `train` that saves the model, and resumes from the checkpoint.

    Args:
        at: the step before which the run ends and is resumed.
        extra_state: whether the checkpoint has the `_extra_state` of FP8 layers.
    """
    def before_step(model: TinyModel, step: int) -> TinyModel:
        if step != at:
            return model
        saved = {name: value for name, value in model.state_dict().items()
                 if extra_state or not name.endswith("_extra_state")}
        new = TinyModel().bfloat16()
        new.load_state_dict(saved, strict=extra_state)
        return new

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
