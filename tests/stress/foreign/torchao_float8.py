"""torchao replaces linear layers' matrix multiplications by scaled ones in FP8."""

import sys

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

model = nn.Sequential(nn.Linear(2048, 4096, bias=False), nn.GELU(),
                      nn.Linear(4096, 2048, bias=False)).to("cuda", torch.bfloat16)
convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(sys.argv[1]))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    x = torch.randn(4096, 2048, device="cuda", dtype=torch.bfloat16)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}")
