"""DistributedDataParallel as people write it, and its variants."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "plain"
WIDTH = int(sys.argv[2]) if len(sys.argv) > 2 else 2048


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.spare = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.second(torch.relu(self.first(x)))
        return y if VARIANT == "unused" else y + self.spare(x)


def main():
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        Net().cuda(), device_ids=[local], gradient_as_bucket_view=VARIANT == "views",
        find_unused_parameters=VARIANT == "unused")
    if VARIANT == "hook":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        begin = time.time()
        x = torch.randn(64, WIDTH, device="cuda")
        if VARIANT == "no_sync":
            with model.no_sync():
                model(x).square().mean().backward()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} {1e3 * (time.time() - begin):.3f} ms")
    total = sum(p.double().sum() for p in model.parameters()).view(1)
    every = [torch.empty_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(every, total)
    if rank == 0:
        print("replicas", every)
    model.load_state_dict(start)
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    dist.destroy_process_group()


main()
