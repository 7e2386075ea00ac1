"""Trains the cases with megatron-core on the CPU and prints what it logs, as JSON.

    pip install --no-deps --target /tmp/core megatron-core==0.16.1 einops packaging
    PYTHONPATH=/tmp/core:code:. python -m tests.oracles.make_megatron_core \
        > tests/oracles/megatron_core.json

The library asks for CUDA in every corner though nothing it computes here needs it; `no_cuda`
answers with the CPU.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from unittest import mock

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from tests.oracles.cases import CASES, STEPS, VOCABULARY, configuration, samples, trainer_of


class OnCpu(TorchFunctionMode):
    """device="cuda.." becomes the CPU, .cuda() the tensor itself, "torch.cuda.X" "torch.X"."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.")
        return function(*args, **kwargs)


@contextlib.contextmanager
def no_cuda() -> Iterator[None]:
    from megatron.core.tensor_parallel import random

    tracker = random.CudaRNGStatesTracker
    nothing = {name: mock.Mock() for name in (
        "synchronize", "empty_cache", "set_device", "Stream", "Event", "current_stream",
        "default_stream", "reset_peak_memory_stats")}
    with contextlib.ExitStack() as stack:
        for name, value in nothing.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(
            torch.cuda, "current_device", lambda: torch.device("cpu")))
        stack.enter_context(mock.patch.object(
            tracker, "fork", lambda self, name="": contextlib.nullcontext()))
        stack.enter_context(OnCpu())
        yield


def train(case: str) -> dict[str, list[float]]:
    """{"loss", "norm"} of every step."""
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
    from megatron.core.transformer import TransformerConfig

    config = configuration(case)
    settings = TransformerConfig(
        num_layers=config.num_layers, hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads, kv_channels=config.kv_channels,
        ffn_hidden_size=config.ffn_hidden_size, layernorm_epsilon=config.layernorm_epsilon,
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        persist_layer_norm=False, gradient_accumulation_fusion=False,
        activation_func=lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        pipeline_dtype=torch.float32)
    model = GPTModel(settings, get_gpt_layer_local_spec(), VOCABULARY,
                     config.max_position_embeddings, share_embeddings_and_output_weights=True)
    ours = trainer_of(case).ddp.params
    theirs = dict(model.named_parameters())
    assert set(ours) == set(theirs)
    for name, weight in theirs.items():
        weight.data.copy_(ours[name].data)
    wrapped = DistributedDataParallel(settings, DistributedDataParallelConfig(), model)
    settings.finalize_model_grads_func = finalize_model_grads
    settings.grad_scale_func = None
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=config.lr, weight_decay=config.weight_decay,
        adam_beta1=config.adam_beta1, adam_beta2=config.adam_beta2, adam_eps=config.adam_eps,
        clip_grad=config.clip_grad, use_distributed_optimizer=False), [wrapped])
    for group in optimizer.param_groups:  # what the learning rate's scheduler does at every step
        group["weight_decay"] = config.weight_decay * group["wd_mult"]
    return steps(config, wrapped, optimizer, forward_backward_no_pipelining)


def steps(config, wrapped, optimizer, schedule) -> dict[str, list[float]]:
    texts = [torch.from_numpy(sample["text"]) for sample in samples(config)]
    size, out = config.micro_batch_size, {"loss": [], "norm": []}
    s = config.seq_length
    hidden = torch.ones(1, 1, s, s, dtype=torch.bool).triu(1)

    def forward(batches, model):
        text = next(batches)
        positions = torch.arange(s).expand(len(text), s)
        losses = model(text[:, :-1], positions, hidden, labels=text[:, 1:].contiguous())
        # The schedule divides what it is given in place.
        return losses, lambda losses: (losses.mean(), losses.mean().detach().clone())

    for step in range(STEPS):
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        start = step * config.global_batch_size
        batches = [torch.stack(texts[at:at + size])
                   for at in range(start, start + config.global_batch_size, size)]
        losses = schedule(
            forward_step_func=forward, data_iterator=iter(batches), model=wrapped,
            num_microbatches=len(batches), seq_length=s, micro_batch_size=size,
            forward_only=False)
        ok, norm, _ = optimizer.step()
        assert ok
        out["loss"].append(float(torch.stack(losses).mean()))
        out["norm"].append(float(norm))
    return out


def traces() -> dict:
    """{case: trace} of megatron-core. Raises ImportError where it is not installed."""
    from megatron.core import __version__, parallel_state

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with no_cuda():
        parallel_state.initialize_model_parallel()
        results = {case: train(case) for case in CASES}
        parallel_state.destroy_model_parallel()
    return {"megatron-core": __version__, "torch": torch.__version__, "traces": results}


if __name__ == "__main__":
    print(json.dumps(traces(), indent=1))
