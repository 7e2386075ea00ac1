"""Units of sharded data parallelism: which parameters travel together, and when each is used.

A unit is the embedding, one transformer layer, or the final norm with the output layer, as in FSDP
(Zhao et al. 2023, section 3.1). A call is a part of the forward pass that needs some units: usually
one, but a tied output layer also needs the word embedding. Both are data: names of parameters, and
positions in lists.

Only the sharding flags import this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from minimegatron.arguments import Config
from minimegatron.model.parameters import named_param_specs


@dataclass
class Call:
    """A part of the forward pass of one model chunk.

    Attributes:
        first: the module before whose forward pass the units must be complete.
        last: the module after whose forward pass they are no longer needed.
        names: the parameters that it uses.
        backward: whether its backward pass needs the parameters, too.
        stays: whether its backward pass usually follows at once, so that its units stay gathered.
        units: numbers of the units that hold its parameters.
        next_forward: number of the call that follows in the forward pass; None at the chunk's end.
        next_recompute: the one that follows when a group of layers is recomputed.
        next_backward: the one before it in the backward pass, or the first layer of the group of
            layers that is recomputed then; None if no other backward pass needs parameters.
    """

    first: nn.Module
    last: nn.Module
    names: list[str]
    backward: bool = True
    stays: bool = False
    units: tuple[int, ...] = ()
    next_forward: int | None = None
    next_recompute: int | None = None
    next_backward: int | None = None


def make_units(config: Config, model: nn.Module) -> tuple[list[Call], list[list[str]]]:
    """Return the calls of all model chunks, and the units: names of trained parameters.

    Units are in the order of the forward pass. A parameter that another pipeline stage holds, too,
    has a unit of its own, so both stages shard it alike.

    Args:
        config: for recomputation.
        model: a chunk (Stage), or several in an nn.ModuleList.
    """
    specs = named_param_specs(model)
    calls: list[Call] = []
    for chunk in model if isinstance(model, nn.ModuleList) else [model]:
        calls += _link(list(_calls_of(model, chunk)), len(calls), _group_size(config))
    units: list[list[str]] = []
    unit_of: dict[str, int] = {}
    for call in calls:
        trained = [name for name in call.names if specs[name].trained]
        new = [name for name in trained if name not in unit_of]
        for names in ([name for name in new if specs[name].tied],
                      [name for name in new if not specs[name].tied]):
            if names:
                unit_of |= dict.fromkeys(names, len(units))
                units.append(names)
        call.units = tuple(dict.fromkeys(unit_of[name] for name in trained))
    return calls, units


def _calls_of(model: nn.Module, chunk: nn.Module) -> Iterator[Call]:
    """Yield the calls of one chunk, in the order of its forward pass."""
    names = {parameter: name for name, parameter in model.named_parameters()}

    def used(*modules: nn.Module) -> list[str]:
        return [names[parameter] for module in modules for parameter in module.parameters()]

    if chunk.is_first:  # gradients of the rows that were looked up do not depend on the matrix
        yield Call(chunk.embedding, chunk.embedding, used(chunk.embedding), backward=False)
    for layer in chunk.decoder.layers.values():
        yield Call(layer, layer, used(layer))
    if chunk.is_last:
        norm = chunk.decoder.final_layernorm
        words = chunk.embedding.word_embeddings if chunk.is_tied else chunk.output_layer
        yield Call(norm, chunk, used(norm, words), stays=True)


def _group_size(config: Config) -> int:
    """Return how many layers are recomputed together before their backward passes."""
    uniform = config.recompute_granularity == "full" and config.recompute_method == "uniform"
    return config.recompute_num_layers if uniform else 1


def _link(calls: list[Call], offset: int, size: int) -> list[Call]:
    """Fill in which call follows which, in one chunk whose first call has the number `offset`."""
    layers = [at for at, call in enumerate(calls) if call.backward and not call.stays]
    for at, call in enumerate(calls):
        if at + 1 < len(calls):
            call.next_forward = offset + at + 1
        if not call.backward or not layers:
            continue
        if call.stays:  # the output layer, before which the last group of layers was run
            group = len(layers)
        else:
            place = at - layers[0]
            group = place - place % size
            if place + 1 < min(group + size, len(layers)):
                call.next_recompute = offset + at + 1
        before = (group - 1) // size * size  # the first layer of the group before
        if group > 0:
            call.next_backward = offset + layers[before]
    return calls
