"""The program that docs/virtualrun.md begins with."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
layer = nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, norm_first=True)
model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
model = DistributedDataParallel(model, device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    begin = time.perf_counter()
    x = torch.randn(4, 2048, 2048, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - begin:.3f} s")
