"""Train a model of timm on one GPU, as timm's `benchmark.py --bench train --amp` of 2022 does.

    python benchmarks/timm_train.py resnet50 --batch 512 --channels-last

It needs the package timm, which is not part of this repository's environment. It knows nothing of
virtual GPUs, and prints the milliseconds of a step.
"""

from __future__ import annotations

import argparse
import time

import torch


def train(size: argparse.Namespace) -> float:
    """Return the seconds of a step."""
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(False)  # PyTorch had no fused attention then
    torch.backends.cudnn.benchmark = True
    layout = {"memory_format": torch.channels_last} if size.channels_last else {}
    model = timm.create_model(size.model).to("cuda", **layout).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    compute_loss = torch.nn.CrossEntropyLoss()
    images = torch.randn(size.batch, 3, size.image, size.image).to("cuda", **layout)
    labels = torch.zeros(size.batch, dtype=torch.long, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = compute_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    step()
    begin = time.perf_counter()
    for _ in range(size.steps):
        step()
    return (time.perf_counter() - begin) / size.steps


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="of timm")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image", type=int, default=224, help="height and width")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=1, help="timed steps, after one of warm-up")
    return parser.parse_args(arguments)


def run(arguments: list[str] | None = None) -> float:
    return train(parse(arguments))


if __name__ == "__main__":
    print(f"{1000 * run():.1f} ms per step")
