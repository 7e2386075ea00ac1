"""Test the pieces of lab 09: two ranks that share a model must match a rank that has all of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from lab.mytrainer import pieces
from lab.mytrainer.single_process import RANKS, Wrong, short

# Two query heads share the only key and value head, and the vocabulary is not divisible by two.
SHAPE = SimpleNamespace(vocab_size=9, hidden_size=8, layers=2, heads=2, kv_heads=1, head_dim=4,
                        inner_size=6, rotary_base=10000.0, epsilon=1e-5, flash=False, dropout=0.0)
Run = Callable[[nn.Module], torch.Tensor]


def shared(region: type) -> tuple[object, object]:
    """Return a Region of both ranks, of the given class, and one of this rank alone."""
    whole = pieces.load("tensor_parallel").Region
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return region(dist.group.WORLD), whole(alone)


def require_same(make: Callable[[object], nn.Module], run: Run, region: type | None = None,
                 finish: Callable | None = None) -> None:
    """Raise Wrong unless two ranks that share a module and one that has all of it agree.

    Args:
        make: returns the module, given its Region.
        run: returns its output, of which the same part is compared on both.
        region: the class of the shared Region; None for that of tensor_parallel.py.
        finish: completes the gradients after the backward pass, given the parameters and Region.
    """
    region = region or pieces.load("tensor_parallel").Region
    regions = shared(region)
    parallel, single = (make(one) for one in regions)
    generator, names = torch.Generator().manual_seed(1), [name for name, _ in
                                                          single.named_parameters()]
    with torch.no_grad():
        for mine, full in zip(parallel.parameters(), single.parameters(), strict=True):
            full.normal_(generator=generator)
            mine.copy_(full[mine.part])
    outputs = [run(one) for one in (parallel, single)]
    compare("the output", *outputs)
    for output in outputs:
        output.square().mean().backward()
    if finish is not None:
        finish(list(parallel.parameters()), regions[0])
    for name, mine, full in zip(names, parallel.parameters(), single.parameters(), strict=True):
        compare(f"the gradient of {name}", mine.grad, full.grad[mine.part])


def compare(text: str, found: torch.Tensor | None, right: torch.Tensor) -> None:
    """Raise Wrong, with `text` for what is compared, unless two tensors are equal."""
    if found is None or found.shape != right.shape or not torch.allclose(
            found, right, rtol=1e-3, atol=1e-6):
        shown = "None" if found is None else short(found)
        raise Wrong(f"on {RANKS} ranks that share a module, {text} on rank {dist.get_rank()} is "
                    f"{shown} instead of {short(right)}")


def hidden(seed: int, length: int = 4) -> torch.Tensor:
    """Return hidden states [length, 3, 8]."""
    return torch.randn(length, 3, 8, generator=torch.Generator().manual_seed(seed))


def test_tensor_parallel(module: ModuleType) -> None:
    """Run an MLP, and a pair of linear layers with biases, which begin as 0 elsewhere."""
    require_same(lambda region: module.MLP(8, 6, region), lambda mlp: mlp(hidden(2)))

    def pair(region: object) -> nn.Module:
        layers = nn.ModuleDict({"first": module.ColumnParallelLinear(8, 6, region, bias=True),
                                "second": module.RowParallelLinear(6, 8, region, bias=True)})
        layers.region = region
        return layers

    def run(layers: nn.Module) -> torch.Tensor:
        return layers["second"](layers.region.columns(hidden(2), layers["first"])[0])

    require_same(pair, run)


def test_heads(module: ModuleType) -> None:
    """Run attention whose ranks share a key and value head."""
    require_same(lambda region: module.Attention(8, 2, 1, 4, region),
                 lambda attention: attention(hidden(2)), finish=module.finish_gradients)


def test_vocabulary(module: ModuleType) -> None:
    """Embed tokens, and compute the cross-entropy of logits that are large."""
    tokens = torch.randint(9, (4, 3), generator=torch.Generator().manual_seed(1))
    require_same(lambda region: module.VocabParallelEmbedding(9, 8, region),
                 lambda embedding: embedding(tokens))

    def run(embedding: nn.Module) -> torch.Tensor:
        (logits,) = embedding.region.columns(1e3 * hidden(2), embedding)
        return module.cross_entropy(logits, tokens, embedding.first, embedding.region)

    require_same(lambda region: module.VocabParallelEmbedding(9, 8, region), run)


def test_randomness(module: ModuleType) -> None:
    """Initialize layers, and draw masks."""
    layers = pieces.load("tensor_parallel")
    parallel, single = (layers.MLP(8, 6, one) for one in shared(layers.Region))
    for model in (parallel, single):
        module.initialize(model, 1)
    for (name, mine), full in zip(parallel.named_parameters(), single.parameters(), strict=True):
        compare(f"the initial value of {name}", mine, full[mine.part])
    both = nn.ModuleList(module.Dropout(0.5, one) for one in shared(layers.Region))
    module.begin_micro_batch(both, 1, 1, [7, 8, 9])
    x = torch.ones(4, 3, 8)
    both[1].key = both[0].key  # so that the names do not matter
    compare("the output of Dropout", *(one(x) for one in both))
    zeros = int((both[0](x) == 0).sum())
    if not 24 <= zeros <= 72:
        raise Wrong(f"Dropout(0.5) sets {zeros} of 96 elements to zero")


def losses_of(model: nn.Module) -> torch.Tensor:
    """Return the losses of three sequences of four tokens."""
    tokens, labels = torch.randint(9, (2, 4, 3), generator=torch.Generator().manual_seed(1))
    return model(tokens, labels)


def require_same_llama(region: type | None = None) -> None:
    """Compare the gradients of a Llama, given the class of its ranks' Region.

    A rank whose region is itself must not communicate with the other one, which is a replica.
    """
    llama, finish = pieces.load("llama"), pieces.load("heads").finish_gradients
    require_same(lambda one: llama.Llama(SHAPE, one), losses_of, region, finish)
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    region = region or pieces.load("tensor_parallel").Region
    own, whole = (llama.Llama(SHAPE, one(alone)) for one in (
        region, pieces.load("tensor_parallel").Region))
    generator = torch.Generator().manual_seed(dist.get_rank())
    with torch.no_grad():
        for mine, full in zip(own.parameters(), whole.parameters(), strict=True):
            mine.copy_(full.normal_(generator=generator))
    for model in (own, whole):
        losses_of(model).sum().backward()
    for (name, mine), full in zip(own.named_parameters(), whole.parameters(), strict=True):
        if mine.grad is None or not torch.allclose(mine.grad, full.grad, rtol=1e-3, atol=1e-6):
            raise Wrong(f"in a region of rank {dist.get_rank()} alone, the gradient of {name} "
                        "depends on the other rank, which has another model: pass the region's "
                        "group to every collective")


def test_llama(module: ModuleType) -> None:
    require_same_llama()


def test_sequence_parallel(module: ModuleType) -> None:
    require_same_llama(module.SequenceRegion)


def test_tp_overlap(module: ModuleType) -> None:
    require_same_llama(module.OverlapRegion)


def test_grad_norm(module: ModuleType) -> None:
    """Clip a gradient of norm 13: 3 and 12 on the ranks, and 4 on both."""
    for largest, factor in ((6.5, 0.5), (math.inf, 1.0), (20.0, 1.0)):
        own, both = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        own.copies, both.copies = 1, RANKS
        own.grad = torch.tensor([(3.0, 12.0)[dist.get_rank()]])
        both.grad, before = torch.tensor([4.0]), own.grad.clone()
        region = shared(pieces.load("tensor_parallel").Region)[0]
        norm = float(module.clip_grad_norm(iter([own, both]), largest, region))
        if not math.isclose(norm, 13.0, rel_tol=1e-5):
            raise Wrong("for gradients of 3 and 12 on ranks 0 and 1, and of 4 on both, "
                        f"clip_grad_norm returns {norm:g} instead of 13")
        if not torch.allclose(own.grad, factor * before, rtol=1e-5):
            raise Wrong(f"with a norm of 13 and a max_norm of {largest:g}, a gradient of "
                        f"{before.item():g} becomes {own.grad.item():g} instead of "
                        f"{factor * before.item():g}")


def test_layer_memory(module: ModuleType) -> None:
    """Compare what is predicted for a layer with what it saves."""
    region = shared(pieces.load("tensor_parallel").Region)[0]
    layer, s, b = pieces.load("llama").Layer(SHAPE, region), 4, 3
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1.0)
    known = {one.untyped_storage().data_ptr() for one in layer.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage
        return tensor

    x = hidden(2, s).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(x)  # its graph keeps the storages, so that no address is used twice
    size = sum(storage.nbytes() for storage in storages.values())
    del out
    predicted = module.saved_bytes(SHAPE, s, b, RANKS, False, False, x.itemsize)
    if not math.isclose(predicted, size, rel_tol=0.05):
        raise Wrong(f"saved_bytes predicts {predicted:,} bytes for a layer that {RANKS} ranks "
                    f"share; it saves {size:,}")
