"""DeepSpeed trains two linear layers with the given stage of ZeRO."""

import sys

import deepspeed
import torch
from torch import nn

deepspeed.init_distributed()
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(),
    config={"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
            "zero_optimization": {"stage": int(sys.argv[1])},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}})
for step in range(3):
    x = torch.randn(4, 1024, device=engine.device, dtype=torch.bfloat16)
    loss = engine(x).square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: {torch.cuda.max_memory_allocated() >> 20} MiB")
