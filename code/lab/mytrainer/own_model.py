"""The student's Llama (lab 09) in my_trainer.py: its ranks, its initial values, and its gradients.

Nothing in the model is the course's. With --own-init, randomness.py initializes it; otherwise each
parameter has the values of the same parameter in pretrain_gpt.py, so losses can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from lab.mytrainer import pieces
from lab.mytrainer.flags import LoopConfig
from minimegatron.checkpoint.saved_model import empty_stage
from minimegatron.context import Context, MicroBatch, params_dtype
from minimegatron.errors import UserError
from minimegatron.grid import GROUPS, Grid, Group, axis_sizes, groups_along, make_group
from minimegatron.model.parameters import draw, named_param_specs

# The parameters of llama.py that pretrain_gpt.py has under other names: those of the model, of each
# layer, and those that are parts of a larger matrix there.
NAMES = {"embedding.weight": "embedding.word_embeddings.weight",
         "norm.weight": "decoder.final_layernorm.weight", "head.weight": "output_layer.weight"}
LAYER = {"attention_norm": "input_layernorm", "mlp_norm": "pre_mlp_layernorm",
         "attention.out": "self_attention.linear_proj", "mlp.down": "mlp.linear_fc2"}
FUSED = {"attention.query": "self_attention.linear_qkv", "mlp.gate": "mlp.linear_fc1",
         "attention.key": "self_attention.linear_qkv", "mlp.up": "mlp.linear_fc1",
         "attention.value": "self_attention.linear_qkv"}


@dataclass(frozen=True)
class OwnGrid(Grid):
    """The process grid, and the groups of a pipeline's sends and receives.

    Attributes:
        links: the ranks of this pipeline in the order of its stages, as two groups: "F" for hidden
            states, and "B" for their gradients; empty without a pipeline.
        ends: the first and the last of these ranks; None on other stages.
    """

    links: Mapping[str, dist.ProcessGroup] = field(default_factory=dict)
    ends: dist.ProcessGroup | None = None


def connect_grid(config: LoopConfig) -> OwnGrid:
    """Return this rank's grid: neighboring ranks share a stage, and the others have other samples
    or, furthest apart, other stages.

    With a pipeline, your grid.py creates the groups, if it exists. All ranks call this function,
    after they have joined the default process group.
    """
    rank, ranks, sizes = dist.get_rank(), dist.get_world_size(), axis_sizes(config)
    alone = Group((rank,), 0, None)
    made = pieces.load("grid") if sizes["pp"] > 1 else None
    if made is not None:
        return grid_of(made.Grid(sizes["tp"], sizes["pp"]), sizes)

    def along(axis: str) -> Group:
        groups = groups_along(axis, sizes)
        if len(groups[0]) == 1:
            return alone
        if len(groups) == 1:  # the default group is one, and another would connect again
            return Group(tuple(range(ranks)), rank, dist.group.WORLD)
        return make_group(groups, backend=None)

    tp, dp, pp, model = (along(axis) for axis in ("tp", "dp", "pp", "model"))
    named = dict.fromkeys(GROUPS, alone) | {"tp": tp, "model": model, "dp": dp, "replicas": dp,
                                            "pp": pp}
    if pp.size == 1:
        return OwnGrid(rank, ranks, **named)
    pipelines = groups_along("pp", sizes)
    ends = make_group([(stages[0], stages[-1]) for stages in pipelines], backend=None)
    links = {"F": pp.process_group, "B": make_group(pipelines, backend=None).process_group}
    return OwnGrid(rank, ranks, **named, links=links,
                   ends=None if ends is None else ends.process_group)


def grid_of(made: object, sizes: Mapping[str, int]) -> OwnGrid:
    """Return the grid of your grid.py. Raises UserError if it has groups of other ranks.

    Args:
        made: your Grid.
        sizes: the number of ranks along each axis.
    """
    rank, right = dist.get_rank(), {}
    for axis in ("tp", "dp", "pp", "model"):
        right[axis] = next(group for group in groups_along(axis, sizes) if rank in group)
    found = {"tp": made.tensor, "dp": made.data, "pp": made.links["F"], "model": made.model}
    names = {"tp": "tensor", "dp": "data", "pp": 'links["F"]', "model": "model"}
    named = {}
    for axis, group in (*found.items(), ("pp", made.links["B"])):
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks != right[axis]:
            raise UserError(f"mytrainer/grid.py: {names[axis]} of Grid({sizes['tp']}, "
                            f"{sizes['pp']}) has the ranks {listed_ranks(ranks)} on rank {rank} "
                            f"instead of {listed_ranks(right[axis])}")
        named[axis] = Group(ranks, ranks.index(rank), group)
    alone = Group((rank,), 0, None)
    return OwnGrid(rank, dist.get_world_size(), **(dict.fromkeys(GROUPS, alone) | named | {
        "replicas": named["dp"]}), links=made.links, ends=made.ends)


def listed_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text."""
    return ", ".join(map(str, ranks))


@contextmanager
def default_group(group: dist.ProcessGroup) -> Iterator[None]:
    """Make a process group the default one.

    ddp.py and train.py average over the default group, so they run with the data-parallel group,
    and so do backward passes. Your model's forward pass runs with that of all ranks. PyTorch's
    dist.get_rank(group) would then work for that group only; in this context, it works for any.
    """
    before, get_rank = dist.group.WORLD, dist.get_rank
    distributed_c10d._update_default_pg(group)
    dist.get_rank = rank_in
    try:
        yield
    finally:
        distributed_c10d._update_default_pg(before)
        dist.get_rank = get_rank


def rank_in(group: dist.ProcessGroup | None = None) -> int:
    """Return this rank's number in a group, by default in the default one, as dist.get_rank does.
    """
    return (group or dist.group.WORLD).rank()


def group_of(group: Group) -> dist.ProcessGroup:
    """Return a process group, also for a group of this rank alone."""
    return group.process_group or dist.new_group(group.ranks, use_local_synchronization=True)


class OwnLlama(nn.Module):
    """Your Llama, with the interface of lab.mytrainer.model.GPT.

    Attributes:
        region: the ranks that share the model, as your class for the flags.
        llama: your model.
        scaler: your LossScaler, if any.
    """

    def __init__(self, ctx: Context, vocab_size: int, world: dist.ProcessGroup) -> None:
        """Create the model on this rank's device, and initialize it.

        Args:
            ctx: this rank.
            vocab_size: the number of tokens, padded.
            world: the process group of all ranks.
        """
        super().__init__()
        config, self.ctx, self.world = ctx.config, ctx, world
        with (default_group(world), torch.device(ctx.device.torch_device),
              default_dtype(params_dtype(config))):
            self.region = region_class(config)(group_of(ctx.grid.tp))
            self.llama = self._build(shape_of(config, vocab_size))
        for one in self.parameters():
            one.sharing_ranks = one.copies  # before your tied.py counts the other end, too
        self.scaler: SharedScaler | None = None
        if ctx.device.has_values:
            self._initialize(vocab_size)
        self._save_memory()
        with default_group(world):
            self._compare_memory()

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.llama.layers)

    def _build(self, shape: SimpleNamespace) -> nn.Module:
        return pieces.load("llama").Llama(shape, self.region)

    @property
    def parts(self) -> list[nn.Module]:
        """The modules whose parameters have the names of the whole model's."""
        return [self.llama]

    def _initialize(self, vocab_size: int) -> None:
        config = self.ctx.config
        if config.own_init:
            for part in self.parts:
                pieces.load("randomness").initialize(part, config.seed, config.init_method_std)
            return
        full = ReferenceValues(self.ctx, vocab_size)
        with torch.no_grad():
            for part in self.parts:
                for name, parameter in part.named_parameters():
                    parameter.copy_(full[name][parameter.part])

    def _save_memory(self) -> None:
        save_memory(self.ctx.config, self.blocks)

    def _compare_memory(self) -> None:
        """Print what your saved_bytes predicts for a layer, next to what your SavedBytes counts."""
        config, predict, meter = self.ctx.config, pieces.load("layer_memory"), pieces.load("saved")
        if predict is None or meter is None or config.hidden_dropout or (
                config.recompute_granularity == "full") or not self.blocks:
            return
        s, b, dtype = config.seq_length, config.micro_batch_size, params_dtype(config)
        sharing = self.region.size if config.sequence_parallel else 1
        x = torch.zeros(s // sharing, b, config.hidden_size, dtype=dtype, requires_grad=True,
                        device=self.ctx.device.torch_device)
        with meter.SavedBytes(self.llama.parameters()) as saved:
            out = self.blocks[0](x)  # its graph holds what is saved
        size = saved.bytes
        del out
        predicted = predict.saved_bytes(
            shape_of(config, 0), s, b, self.region.size, config.sequence_parallel,
            config.recompute_granularity == "selective", dtype.itemsize)
        self.ctx.print_rank_0(f"a layer saves {size / 1e6:.2f} MB per micro-batch; "
                              f"mytrainer/layer_memory.py predicts {predicted / 1e6:.2f} MB")

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """Return the mean loss over the tokens of a micro-batch (fp32, one element)."""
        if batch.dropout is not None:
            begin_dropout(self.llama, batch)
        with default_group(self.world):
            losses = self.llama(batch.tokens.t(), batch.labels.t())
        return (losses * batch.loss_mask.t()).sum() / batch.loss_mask.sum()

    def end_step(self, ranks: Group) -> None:
        """Do nothing: no state but the parameters' changes from step to step."""

    def share(self, scaler: object | None) -> SharedScaler | None:
        """Return your LossScaler, which then finds overflows on all ranks; None without one."""
        self.scaler = None if scaler is None else SharedScaler(scaler, self.world)
        return self.scaler

    def finish_gradients(self) -> None:
        """Sum the gradients that are terms, with your finish_gradients."""
        with default_group(self.world):
            pieces.load("heads").finish_gradients(self.parameters(), self.region)

    def clip(self, parameters: Iterable[nn.Parameter], largest: float) -> torch.Tensor:
        """Complete the gradients, and clip all of them with your clip_grad_norm.

        Args:
            parameters: those of the model, or with ZeRO this rank's shards of them, whose gradients
                are complete.
            largest: the largest norm.

        Returns the norm before clipping, one element.
        """
        parameters, sharing = list(parameters), self.sharing
        if self.ctx.config.zero_stage:  # an element is on as many ranks of all as it has copies
            for shard, one in zip(parameters, self.parameters(), strict=True):
                shard.copies = one.copies
            sharing = sharing_of(self.world)
        else:
            self.finish_gradients()
        with default_group(self.world):
            return pieces.load("grad_norm").clip_grad_norm(parameters, largest, sharing)

    @property
    def sharing(self) -> object:
        """The ranks that share the model, with the attributes of a region."""
        return self.region


class SharedScaler:
    """Your LossScaler; ranks that share a model skip a step together."""

    def __init__(self, scaler: object, world: dist.ProcessGroup) -> None:
        self.scaler, self.world = scaler, world

    @property
    def scale(self) -> float:
        return self.scaler.scale

    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        with default_group(self.world):
            return self.scaler.unscale(parameters)

    def update(self, overflow: bool) -> None:
        self.scaler.update(overflow)


def sharing_of(group: dist.ProcessGroup) -> SimpleNamespace:
    """Return a group with the attributes of a region."""
    return SimpleNamespace(group=group, rank=group.rank(), size=group.size())


def finish_first(gpt: OwnLlama, model: nn.Module) -> None:
    """Let a class of lab 08 complete the gradients that are terms before it reduces any.

    The ranks' sums and the replicas' mean commute, and a shard does not know its part of a matrix.
    """
    reduce = model.finish

    def finish() -> None:
        gpt.finish_gradients()
        reduce()

    model.finish = finish


def begin_dropout(model: nn.Module, batch: MicroBatch) -> None:
    """Give your Dropout layers the key and the samples of a micro-batch."""
    pieces.load("randomness").begin_micro_batch(
        model, batch.dropout.seed, batch.dropout.iteration, batch.dropout.samples.tolist())


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create new floating-point tensors in a dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def region_class(config: LoopConfig) -> type:
    """Return your class that the flags choose."""
    if config.sequence_parallel:
        return pieces.load("sequence_parallel").SequenceRegion
    if config.async_tensor_model_parallel_allreduce:
        return pieces.load("tp_overlap").OverlapRegion
    return pieces.load("tensor_parallel").Region


def shape_of(config: LoopConfig, vocab_size: int) -> SimpleNamespace:
    """Return what your Llama asks for."""
    heads = config.num_attention_heads
    return SimpleNamespace(
        vocab_size=vocab_size, hidden_size=config.hidden_size, layers=config.num_layers,
        heads=heads, kv_heads=config.num_query_groups if config.group_query_attention else heads,
        head_dim=config.kv_channels, inner_size=config.ffn_hidden_size,
        rotary_base=float(config.rotary_base), epsilon=config.layernorm_epsilon,
        flash=config.use_flash_attn, dropout=config.hidden_dropout)


class ReferenceValues:
    """The initial values of pretrain_gpt.py, as whole tensors, by the names of your parameters."""

    def __init__(self, ctx: Context, vocab_size: int) -> None:
        config, alone = ctx.config, Group((ctx.grid.rank,), 0, None)
        single = replace(config, sequence_parallel=False, tensor_model_parallel_size=1)
        grid = Grid(ctx.grid.rank, 1, **dict.fromkeys(GROUPS, alone))
        stage = empty_stage(Context(single, grid, ctx.device), vocab_size)
        self.specs, self.seed = named_param_specs(stage), config.seed
        groups = config.num_query_groups if config.group_query_attention else (
            config.num_attention_heads)
        self.sharing = config.num_attention_heads // groups
        self.head_dim = config.kv_channels

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a whole tensor. Raises UserError if pretrain_gpt.py has no such parameter."""
        if name == "head.weight" and NAMES[name] not in self.specs:
            name = "embedding.weight"  # tied
        if name in NAMES:
            return self._whole(NAMES[name])
        start, number, rest = (*name.split(".", 2), "", "")[:3]
        module = rest.removesuffix(".weight")
        if start != "layers" or module not in LAYER | FUSED:
            known = ", ".join((*NAMES, *(f"layers.0.{one}.weight" for one in (
                *LAYER, *FUSED))))
            raise UserError(f"mytrainer/llama.py: pretrain_gpt.py has no parameter that "
                            f"corresponds to {name}; its parameters are {known}; nearest: "
                            "--own-init")
        path = f"decoder.layers.{number}."
        if module in LAYER:
            return self._whole(f"{path}{LAYER[module]}.weight")
        fused = self._whole(f"{path}{FUSED[module]}.weight")
        if module.startswith("mlp"):
            return fused.chunk(2)[module == "mlp.up"]
        d = self.head_dim  # per group: its queries, its key, and its value
        parts = fused.unflatten(0, (-1, self.sharing + 2, d)).split([self.sharing, 1, 1], 1)
        which = ("attention.query", "attention.key", "attention.value").index(module)
        return parts[which].reshape(-1, fused.shape[1])

    def _whole(self, name: str) -> torch.Tensor:
        return draw(name, self.specs[name], self.seed)


def save_memory(config: LoopConfig, layers: list[nn.Module]) -> None:
    """Run the core of attention, or whole layers, in your `checkpoint`, as the flags request."""
    if config.recompute_granularity is None:
        return
    checkpoint: Callable = pieces.load("checkpointing").checkpoint
    if config.recompute_granularity == "selective":
        for layer in layers:
            layer.attention.core = partial(checkpoint, layer.attention.core)
        return
    count = config.recompute_num_layers if config.recompute_method == "block" else len(layers)
    for layer in layers[:count]:
        layer.forward = partial(checkpoint, layer.forward)
