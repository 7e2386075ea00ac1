"""A program for virtual GPUs that trains with DDP, as anybody would write it."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = nn.Sequential(nn.Embedding(1024, 512), nn.Linear(512, 2048), nn.GELU(),
                      nn.Linear(2048, 512)).cuda()
model = DistributedDataParallel(model, gradient_as_bucket_view="views" in sys.argv)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    tokens = torch.zeros(4, 64, dtype=torch.int64, device="cuda")
    model(tokens).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none="views" not in sys.argv)
dist.destroy_process_group()
