"""The state of the optimizer, the loss scaler, and the learning rate, under Megatron's names."""

from __future__ import annotations

import torch

from minimegatron.arguments import Config
from minimegatron.checkpoint.files import frozen_when_saved
from minimegatron.errors import UserError
from minimegatron.optim import MOMENTS, LearningRate, LossScaler, Optimizer
from minimegatron.parallel.ddp import length

MAIN = "fp32_from_fp16_params"  # Megatron's name, also under --bf16
SHARDED = (*MOMENTS, MAIN)  # the states that the distributed optimizer shards


def optimizer_state(optimizer: Optimizer, divided: bool = False) -> dict:
    """Return the state that all replicas have alike: everything but, if `divided`, SHARDED."""
    ddp, scaler = optimizer.ddp, optimizer.scaler
    state = {"step": optimizer.steps}
    if not divided:
        state |= {kind: ddp.named_views(shard)
                  for kind, shard in optimizer_shards(optimizer).items()}
    if scaler is not None:
        state["grad_scaler"] = scaler_state(scaler)
    return state


def owned_state(optimizer: Optimizer) -> dict[str, list[tuple[str, int, torch.Tensor]]]:
    """Return what this rank owns of SHARDED, by kind: parameters, in each the number of the first
    element that it owns, and the values [..] from there on, without a copy."""
    ddp, places, offset = optimizer.ddp, [], 0
    for owned in ddp.owned:
        for name, place in ddp.places.items():
            start, stop = max(place.start, owned.start), min(place.stop, owned.stop)
            if start < stop:
                places.append((name, offset + start - owned.start, stop - start,
                               start - place.start))
        offset += length(owned)
    return {kind: [(name, first + max(0, begin - at), part[max(0, at - begin):at + size - begin])
                   for name, at, size, first in places for begin, part in parts
                   if max(at, begin) < min(at + size, begin + len(part))]
            for kind, parts in shard_parts(optimizer).items()}


def load_optimizer_state(optimizer: Optimizer, saved: dict) -> None:
    """Restore the state of whole parameters.

    Raises UserError if its precision is different, or if it lacks a parameter.
    """
    scaler = optimizer.scaler
    for part, wanted in ((MAIN, optimizer.main_params), ("grad_scaler", scaler)):
        if (part in saved) != (wanted is not None):
            raise UserError(
                f"the checkpoint's optimizer has {'a' if part in saved else 'no'} {part}: it "
                "was saved in another precision; nearest: the --fp16 or --bf16 of that run, or "
                "--no-load-optim")
    optimizer.steps.copy_(torch.as_tensor(saved["step"]))
    for kind, parts in owned_state(optimizer).items():
        for name, first, values in parts:
            if name not in saved[kind]:
                raise frozen_when_saved(name)
            whole = saved[kind][name].expand_as(optimizer.ddp.params[name])  # checks the shape
            values.copy_(whole.reshape(-1)[first:first + len(values)])
    if scaler is not None and scaler.dynamic:
        for name, tensor in scaler_state(scaler).items():
            tensor.copy_(saved["grad_scaler"][name])


def optimizer_shards(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Return this rank's moments and master weights, fp32 [m] each; copies, if some of the state is
    in host memory."""
    return {kind: (parts[0][1] if len(parts) == 1 else
                   torch.cat([part.to("cpu") for _, part in parts]))
            for kind, parts in shard_parts(optimizer).items()}


def shard_parts(optimizer: Optimizer) -> dict[str, list[tuple[int, torch.Tensor]]]:
    """Return the moments and master weights as they are in memory, by kind: on the device and with
    --optimizer-cpu-offload on the host, each with the shard's element where it begins."""
    parts: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for holder in filter(None, (optimizer, optimizer.host)):
        main = {} if holder.main_params is None else {MAIN: holder.main_params}
        for kind, part in {**holder.moments, **main}.items():
            begin = 0 if holder is optimizer else holder.first
            parts.setdefault(kind, []).append((begin, part))
    return parts


def scaler_state(scaler: LossScaler) -> dict[str, torch.Tensor]:
    """Return the loss scaler's three tensors, of one element each."""
    return {"scale": scaler.scale, "growth_tracker": scaler.growth,
            "hysteresis_tracker": scaler.hysteresis}


def learning_rate_state(learning_rate: LearningRate) -> dict:
    """Return settings and progress of the learning-rate schedule."""
    return {**learning_rate.settings, "num_steps": learning_rate.samples}


def load_learning_rate_state(config: Config, learning_rate: LearningRate, saved: dict) -> None:
    """Resume; raises UserError if the saved schedule differs and no flag says which to use."""
    for name, value in learning_rate.settings.items():
        if config.use_checkpoint_lr_scheduler:
            learning_rate.settings[name] = saved[name]
        elif not config.override_lr_scheduler and saved[name] != value:
            # The missing space is Megatron-LM's.
            raise UserError(
                f"AnnealingLR: class input value {value} and checkpointvalue {saved[name]} "
                f"for {name} do not match; --override-lr-scheduler takes the command line's, "
                "--use-checkpoint-lr-scheduler the checkpoint's")
    learning_rate.samples = saved["num_steps"]
