"""Fill the layers of lab 09 with values, and train small and large models with them."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def sines(shape: tuple[int, ...], seed: float) -> torch.Tensor:
    """Return a tensor of sines, which is the same on every rank and machine.

    Args:
        shape: the shape of the tensor.
        seed: the seed of its values.
    """
    count = torch.Size(shape).numel()
    return (1.3 * torch.arange(count) + 0.7 * seed).sin().view(shape)


def fill(parameters: list[torch.nn.Parameter], seeds: list[float]) -> None:
    """Fill parameters with sines of half the usual size.

    Args:
        parameters: this rank's parts.
        seeds: one for each parameter.
    """
    with torch.no_grad():
        for parameter, seed in zip(parameters, seeds, strict=True):
            parameter.copy_(0.5 * sines(parameter.shape, seed))


def neighbors(size: int | None = None) -> object:
    """Divide the ranks into groups of neighboring ranks, and return this rank's process group.

    Args:
        size: the ranks of a group; None: all ranks.
    """
    if size is None:
        return torch.distributed.group.WORLD
    groups = [torch.distributed.new_group(list(range(first, first + size)))
              for first in range(0, torch.distributed.get_world_size(), size)]
    return groups[torch.distributed.get_rank() // size]


def projected(tensor: torch.Tensor) -> float:
    """Return the scalar product of a tensor with sines: one number that depends on all elements."""
    return (tensor.float() * sines(tensor.shape, 2.0)).sum().item()


def gradients(parameters: list[torch.nn.Parameter]) -> list[float]:
    """Return the projected gradient of each parameter."""
    return [projected(parameter.grad) for parameter in parameters]


def layer_step(hidden: int, inner: int, heads: int, kv_heads: int, length: int,
               is_gated: bool = True) -> None:
    """Train one transformer layer on one sequence for two steps, on a GPU.

    Parameters and activations are in bf16; gradients, master weights, and Adam's moments in fp32.

    Args:
        hidden: the hidden size h.
        inner: the inner size of the MLP.
        heads: query heads of the attention, which is a FlashAttention kernel.
        kv_heads: key and value heads.
        length: tokens of the sequence.
        is_gated: whether the MLP is SwiGLU, with three matrices, or has two and GELU.
    """
    size = hidden // heads
    shapes = [((heads + 2 * kv_heads) * size, hidden), (hidden, hidden), (inner, hidden),
              (hidden, inner), *([(inner, hidden)] if is_gated else [])]
    weights = [torch.nn.Parameter(torch.zeros(shape, device="cuda", dtype=torch.bfloat16))
               for shape in shapes]
    for weight in weights:
        weight.grad_dtype = torch.float32
    masters = [weight.detach().float() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    for _ in range(2):
        x = torch.zeros(length, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        layer_output(x, weights, heads, kv_heads).sum().backward()
        for weight, master in zip(weights, masters, strict=True):
            master.grad, weight.grad = weight.grad, None
        optimizer.step()
        for weight, master in zip(weights, masters, strict=True):
            weight.data.copy_(master)
            master.grad = None


def layer_output(x: torch.Tensor, weights: list[torch.nn.Parameter], heads: int, kv_heads: int
                 ) -> torch.Tensor:
    """Return a layer's output [s, h] for x [s, h].

    Args:
        x: the input.
        weights: the matrices of layer_step.
        heads: query heads.
        kv_heads: key and value heads.
    """
    joint, out, up, down, *gate = weights
    size = x.shape[-1] // heads
    made = F.linear(F.rms_norm(x, x.shape[-1:]), joint).unflatten(-1, (-1, size)).transpose(0, 1)
    query, key, value = made.split([heads, kv_heads, kv_heads])
    core = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True,
                                          enable_gqa=kv_heads < heads)[0]
    x = x + F.linear(core.transpose(0, 1).flatten(1), out)
    normed = F.rms_norm(x, x.shape[-1:])
    if gate:
        return x + F.linear(F.silu(F.linear(normed, gate[0])) * F.linear(normed, up), down)
    return x + F.linear(F.gelu(F.linear(normed, up)), down)


VOCABULARY, WIDTH, LENGTH, SAMPLES, RATE = 32, 32, 16, 32, 0.01
# The number that seeds a part of a matrix in each of the runs of lab 09, given the rank, and the
# number of the part.
RUNS = {"A": lambda rank, part: rank, "B": lambda rank, part: 0, "C": lambda rank, part: part}
Weights = dict[str, torch.Tensor]


class TinyModel(torch.nn.Module):
    """A language model of two layers, made of a student's files of lab 09."""

    def __init__(self, region: object) -> None:
        from mytrainer.heads import Attention
        from mytrainer.tensor_parallel import MLP
        from mytrainer.vocabulary import VocabParallelEmbedding

        super().__init__()
        self.region = region
        self.embedding = VocabParallelEmbedding(VOCABULARY, WIDTH, region)
        self.attentions = torch.nn.ModuleList(
            Attention(WIDTH, 4, 1, 8, region) for _ in range(2))
        self.mlps = torch.nn.ModuleList(MLP(WIDTH, 2 * WIDTH, region) for _ in range(2))
        self.output = VocabParallelEmbedding(VOCABULARY, WIDTH, region)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of tokens [s, b] with labels [s, b]."""
        from mytrainer.vocabulary import cross_entropy

        x = self.embedding(tokens)
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            x = x + attention(F.rms_norm(x, x.shape[-1:]))
            x = x + mlp(F.rms_norm(x, x.shape[-1:]))
        (logits,) = self.region.columns(F.rms_norm(x, x.shape[-1:]), self.output)
        return cross_entropy(logits, labels, self.output.first, self.region).mean()


def tiny_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and labels [s, b] in which a token depends on the two tokens before it.

    Args:
        number: the number of the batch.
    """
    table = torch.randint(VOCABULARY, (VOCABULARY, VOCABULARY),
                          generator=torch.Generator().manual_seed(0))
    dice = torch.Generator().manual_seed(number + 1)
    rows = list(torch.randint(8, (2, SAMPLES), generator=dice))
    for _ in range(LENGTH - 1):
        rows.append(table[rows[-2], rows[-1]])
    tokens = torch.stack(rows)
    return tokens[:-1], tokens[1:]


def tiny_run(name: str, steps: int) -> tuple[list[float], Weights, Weights]:
    """Train TinyModel on the ranks of the default process group.

    Args:
        name: a run of RUNS.
        steps: optimizer steps.

    Return the loss before each step and the one after the last step, each of another batch, and
    this rank's weights before and after the training.
    """
    from mytrainer.heads import finish_gradients
    from mytrainer.tensor_parallel import Region

    region = Region(torch.distributed.group.WORLD)
    model = TinyModel(region)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            seed = 1000 * number + RUNS[name](region.rank, region.rank // parameter.copies)
            parameter.normal_(0, 0.15, generator=torch.Generator().manual_seed(seed))
    first = weights_of(model)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=RATE), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(*tiny_batch(step))
        loss.backward()
        finish_gradients(model.parameters(), region)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(model(*tiny_batch(steps)).item())
    return losses, first, weights_of(model)


def weights_of(model: torch.nn.Module) -> Weights:
    """Return copies of this rank's weights by name."""
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def loss_of_one_process(ranks: list[Weights], number: int) -> float:
    """Return the loss of TinyModel with the weights of several ranks, in a group of one rank.

    Args:
        ranks: each rank's weights; of a weight that several ranks have, the first one's count.
        number: the number of the batch.
    """
    from mytrainer.tensor_parallel import Region

    model = TinyModel(Region(torch.distributed.group.WORLD))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parts, needed = [one[name] for one in ranks], parameter.shape
            dim = 1 if parts[0].shape[0] == needed[0] else 0
            parameter.copy_(parts[0] if parts[0].shape == needed else torch.cat(parts, dim))
        return model(*tiny_batch(number)).item()
