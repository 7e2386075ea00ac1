"""Features of CUDA that programs use, one per argument."""

import sys
import time

import torch
from torch import nn

GIB = 2**30


def oom():
    """Halve the batch until it fits."""
    batch = 2**22
    while True:
        try:
            x = torch.empty(batch, 2**15, device="cuda")
            break
        except torch.cuda.OutOfMemoryError as error:
            assert "CUDA out of memory. Tried to allocate" in str(error)
            torch.cuda.empty_cache()
            batch //= 2
    print(f"batch {batch}, {x.nbytes / GIB:.0f} GiB")
    del x
    assert torch.cuda.memory_allocated() == 0


def streams():
    a = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    one = a @ a
    end.record()
    try:
        start.elapsed_time(end)
        raise AssertionError("nobody waited for the end")
    except RuntimeError as error:
        assert "device not ready" in str(error)
    while not end.query():  # asking takes time, so this ends
        pass
    single = start.elapsed_time(end)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    begin = time.perf_counter()
    with torch.cuda.stream(side):
        two = a @ a
    one = a @ a
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    both = 1e3 * (time.perf_counter() - begin)
    assert two.shape == one.shape
    print(f"one {single:.3f} ms, two streams {both:.3f} ms")
    assert both < 1.5 * single


def memory():
    x = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    y = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    del y
    free, total = torch.cuda.mem_get_info()
    assert free < total - 2 * GIB and x.is_cuda
    print(torch.cuda.memory_allocated() // GIB, torch.cuda.max_memory_allocated() // GIB)
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary" in text and "2048 MiB" in text, text
    print(torch.cuda.get_device_name(), torch.cuda.get_device_capability(),
          torch.cuda.device_count())


def inference():
    model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)).cuda().half()
    with torch.inference_mode():
        y = model(torch.randn(64, 4096, device="cuda", dtype=torch.half))
    print(tuple(y.shape), y.dtype, y.is_inference())


def devices():
    a, b = torch.ones(3, 3, device="cuda"), torch.ones(3, 3)
    for what in (lambda: a * b, lambda: a @ b, lambda: torch.cat([a, b])):
        try:
            what()
        except RuntimeError as error:
            print(error)
    print((a * 2).sum().item(), (a * torch.tensor(3.0)).sum().item())
    try:
        a.numpy()
    except TypeError as error:
        print(error)


def scaled():
    a = torch.randn(1024, 2048, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(512, 2048, device="cuda").to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    y = torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    print(tuple(y.shape), y.dtype)


def values():
    x = torch.arange(6.0, device="cuda").view(2, 3)
    print(x @ x.T, x[x > 2], x.tolist(), int(x.max()), x.cpu().device, f"{x.sum():.1f}")
    if x.sum() > 14:
        print("decided")
    big = torch.ones(2**20, device="cuda")
    print(big.sum(), f"{big.sum().item():.3f}", torch.nonzero(x).shape)


def decides():
    best = float("inf")
    loss = torch.randn(2**20, device="cuda").square().mean()
    if loss.item() < best:
        print("saved")
    else:
        print("kept")


def finite():
    """Checks for NaN and infinity pass; what is written of an unknown number can be read."""
    import json
    import math
    import os
    import tempfile

    import numpy as np

    y = torch.randn(2**20, device="cuda", requires_grad=True)
    loss = y.square().mean()
    value = loss.item()
    nan = [math.isnan(value), np.isnan(value), value != value, value == math.inf,
           bool(torch.isnan(loss)), bool(loss != loss), bool(torch.isnan(y).any()),
           bool((y.isnan() | y.isinf()).any(dim=0)), bool((~torch.isfinite(y)).any()),
           bool(torch.isnan(loss.cpu()))]
    fine = [math.isfinite(value), np.isfinite(value), value == value, bool(torch.isfinite(loss)),
            bool(torch.isfinite(y).all()), bool(torch.isfinite(y.cpu()).all())]
    print(any(nan), all(fine), json.dumps({"loss": value}), "%.3f" % value)  # noqa: UP031
    print(torch.tensor([value, 1.0]), value * torch.ones(2, device="cuda"))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "loss.pt")
        torch.save({"loss": value}, path)
        print(torch.load(path))


def pinned():
    x = torch.ones(4)
    y, z = x.pin_memory(), torch.empty(4, pin_memory=True)
    print(x.is_pinned(), y.is_pinned(), z.is_pinned(), y.pin_memory() is y, y.cuda().sum().item())
    try:
        y.cuda().pin_memory()
    except RuntimeError as error:
        print(error)


def profiler():
    from torch.profiler import ProfilerActivity, profile

    model = nn.Linear(512, 512).cuda()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        model(torch.randn(8, 512, device="cuda")).sum().backward()
    print(len(found.key_averages()) > 0)


def checkpoint_file():
    import os
    import tempfile

    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ckpt.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1},
                   path)
        result = torch.load(path, map_location="cuda")
    other = nn.Linear(64, 64).cuda()
    other.load_state_dict(result["model"])
    print(next(other.parameters()).device, bool(torch.equal(other.weight, model.weight)),
          result["step"])


def deepcopy():
    import copy

    model = nn.Linear(1024, 1024).cuda()
    before = torch.cuda.memory_allocated()
    other = copy.deepcopy(model)
    print(torch.cuda.memory_allocated() == 2 * before, other.weight is not model.weight)


def loader():
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(64, 8), torch.arange(64))
    seen = 0
    for x, y in DataLoader(data, batch_size=16, num_workers=2, pin_memory=True):
        x, y = x.to("cuda", non_blocking=True), y.cuda()
        seen += int(y.sum())
    print(seen, x.device)


def convolution():
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
                          nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16 * 16, 10)).cuda()
    x = torch.randn(32, 3, 32, 32, device="cuda")
    loss = nn.functional.cross_entropy(model(x), torch.randint(10, (32,), device="cuda"))
    loss.backward()
    print(tuple(model[0].weight.grad.shape), loss)


def graphs():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(3, device="cuda")


def triton():
    import triton

    print(triton)


def dcp():
    """Tensors with values are saved and loaded, and nothing else is written."""
    import os
    import tempfile

    import torch.distributed.checkpoint as dcp

    with tempfile.TemporaryDirectory() as folder:
        small, other = (nn.Linear(64, 64).cuda() for _ in range(2))
        dcp.save({"model": small.state_dict()}, checkpoint_id=folder)
        state = {"model": other.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        print(other.weight.device, torch.equal(other.weight, small.weight))
        before = sorted(os.listdir(folder))
        try:
            dcp.save({"model": nn.Linear(2048, 2048).cuda().state_dict()}, checkpoint_id=folder)
        except ValueError as error:
            print(error)
        print(before == sorted(os.listdir(folder)))


def host():
    """Values that nobody computed reach tensors of the CPU."""
    import copy
    import io

    log = torch.arange(4.0)
    log[1] = torch.randn(2**20, device="cuda").mean()
    print(log, log.sum().item(), log.to("cuda").sum().item(), (log + 1).device)
    file = io.BytesIO()
    torch.save(log, file)
    file.seek(0)
    print(torch.load(file), copy.deepcopy(log)[0].item())
    print(log.numpy())
    try:
        torch.randn(2**20, device="cuda").cpu().numpy()
    except ValueError as error:
        print(error)
    log.zero_()
    print(log, log.numpy())


def offload():
    """Parameters in the host's memory, large ones and small ones, are copied for every step."""
    layer = nn.Linear(1024, 1024)
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(2):
        x = torch.randn(64, 1024, device="cuda")
        weight, bias = (one.to("cuda", non_blocking=True) for one in layer.parameters())
        nn.functional.linear(x, weight, bias).square().mean().backward()
        print(weight.device, *(one.grad.device for one in layer.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    print(layer.bias, layer.weight.device)
    # A fused step in the host's memory, with known moments and a gradient that was not computed.
    weight, *moments = torch.zeros(3, 2**20)
    grad = torch.randn(2**20, device="cuda").cpu()
    torch.optim._functional.adamw(
        [weight], [grad], *([moment] for moment in moments), [], [step := torch.zeros(())],
        fused=True, amsgrad=False, beta1=0.9, beta2=0.95, lr=1e-3, weight_decay=0.1, eps=1e-8,
        maximize=False)
    print(weight.device, step.item())


def leaves():
    sys.exit(3)


globals()[sys.argv[1]]()
