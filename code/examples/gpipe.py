"""Train GPT with torchgpipe: GPipe's pipeline (Huang et al. 2019) in one process.

    python code/examples/gpipe.py                                        # [4, 3, 3, 4], 4 chunks
    python code/examples/gpipe.py --balance time --stages 2 --chunks 8 --checkpoint never
    python code/examples/gpipe.py --pretrained gpt2 --dataset squad      # needs a network

A mini-batch is cut into chunks (micro-batches), which go through the stages one behind the other.
Each stage is a device; here they are threads on CPU cores, unless --devices names GPUs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator

import psutil
import torch
from torch import nn
from torchgpipe import GPipe
from torchgpipe.balance import balance_by_size, balance_by_time
from torchgpipe.skip import pop, skippable, stash

import options
import setting
from gpt_layers import NO_LABEL, Embedding, Head, build, kinds, loss_sum
from labcore.errors import LabError
from lablib import torchgpipe_cpu  # noqa: F401  changes torchgpipe where it assumes GPUs
from lablib.saved import SavedTensors

BALANCE = "4,3,3,4"
ADAM_COPIES = 4.0  # of the weights: weight, gradient and Adam's two moments


# torchgpipe refuses a parameter that two stages own. The tied matrix goes from the first stage to
# the last as a skip connection instead: with each micro-batch, and its gradient comes back alike.
@skippable(stash=["words"])
class FirstLayer(Embedding):
    def forward(self, tokens: torch.Tensor) -> Iterator[stash]:
        yield stash("words", self.words.weight)
        return super().forward(tokens)


@skippable(pop=["words"])
class LastLayer(Head):
    def forward(self, x: torch.Tensor) -> Iterator[pop]:
        words = yield pop("words")
        return super().forward(x, words)


def sequential(run: setting.Setting) -> nn.Sequential:
    """The layers of gpt_layers.GPT with the same first weights, as torchgpipe wants them."""
    skips = {Embedding: FirstLayer, Head: LastLayer}
    layers = []
    for index, kind in enumerate(kinds(run.size)):
        layer = build(skips.get(kind, kind), run.size, run.seed + index)
        run.load(layer.module if kind in skips else layer, index)
        layers.append(layer)
    return nn.Sequential(*layers)


def choose_balance(how: str, model: nn.Sequential, sample: torch.Tensor, stages: int, chunks: int,
                   device: torch.device) -> list[int]:
    """Layers on each stage: as given, or so that the longest or the largest stage is smallest."""
    if how == "time":
        return balance_by_time(stages, model, sample, device=device)
    if how == "size":
        return balance_by_size(stages, model, sample, chunks=chunks, param_scale=ADAM_COPIES,
                               device=device)
    return options.parse_balance("--balance", how, len(model))


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Over the positions of the whole mini-batch that have a label: padding does not count."""
    return loss_sum(logits, labels) / (labels != NO_LABEL).sum()


def train(model: GPipe, run: setting.Setting, arguments: argparse.Namespace) -> None:
    """Train, and print a line for each iteration and what it took in the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    batches, first, last = run.batches(arguments.batch_size), model.devices[0], model.devices[-1]
    saved, seconds = SavedTensors(model.parameters()), []
    for iteration in range(1, arguments.iterations + 1):
        tokens, labels = next(batches)
        begin = time.perf_counter()
        with saved:
            with torch.autocast(last.type, torch.bfloat16, enabled=arguments.bf16):
                logits = model(tokens.to(first))  # all forwards, pipelined
            loss = mean_loss(logits, labels.to(last))
            loss.backward()  # all backwards, in the opposite order
        norm = nn.utils.clip_grad_norm_(model.parameters(), arguments.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        shown = f"loss {loss.item():.6f} | grad norm {norm.item():.6f}"
        seconds.append(time.perf_counter() - begin)
        print(f"iteration {iteration}/{arguments.iterations} | {shown} | "
              f"{1000 * seconds[-1]:.0f} ms", flush=True)
    report(statistics.median(seconds), tokens.numel(), saved.peak)


def report(seconds: float, tokens: int, activations: int) -> None:
    """The median of the iterations, which the first one, with its set-up, does not distort."""
    resident = psutil.Process().memory_info().rss
    print(f"speed: {1000 * seconds:.0f} ms an iteration (median), {tokens / seconds:,.0f} tokens/s")
    print(f"memory: {activations / 1e6:.1f} MB of activations at most, "
          f"{resident / 1e6:,.0f} MB in the process", flush=True)


def flags() -> argparse.ArgumentParser:
    parser = options.parser(__doc__)
    pipeline = parser.add_argument_group("pipeline")
    pipeline.add_argument("--balance", default=BALANCE, metavar="HOW",
                          help=f"layers of each stage, or time, or size (default: {BALANCE})")
    pipeline.add_argument("--stages", type=options.positive, metavar="N",
                          help="of --balance time and size (default: 4)")
    pipeline.add_argument("--devices", metavar="LIST",
                          help="one for each stage, as in cuda:0,cuda:1 (default: all cpu)")
    pipeline.add_argument("--chunks", type=options.positive, default=4, metavar="N",
                          help="micro-batches of a mini-batch (default: 4)")
    pipeline.add_argument("--checkpoint", choices=("always", "except_last", "never"),
                          default="except_last", help="which micro-batches keep no activations "
                          "and compute them again in the backward (default: except_last)")
    pipeline.add_argument("--batch-size", type=options.positive, default=16, metavar="N",
                          help="samples of a mini-batch (default: 16)")
    pipeline.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.set_defaults(lr=1e-3, clip_grad=1.0)
    return parser


def check(arguments: argparse.Namespace) -> None:
    """Raises LabError for flags that do not go together."""
    if arguments.batch_size % arguments.chunks:
        raise LabError(f"--batch-size {arguments.batch_size} cannot be cut into --chunks "
                       f"{arguments.chunks} micro-batches of the same size")
    if arguments.stages and arguments.balance not in ("time", "size"):
        raise LabError(f"--stages {arguments.stages} is for --balance time or size; --balance "
                       f"{arguments.balance} says it by itself")


def count_stages(arguments: argparse.Namespace, layers: int) -> int:
    if arguments.balance not in ("time", "size"):
        return len(options.parse_balance("--balance", arguments.balance, layers))
    stages = arguments.stages or 4
    if stages > layers:
        raise LabError(f"--stages {stages}: the model has {layers} layers to share out")
    return stages


def stage_devices(text: str | None, stages: int) -> list[torch.device]:
    names = text.split(",") if text else ["cpu"] * stages
    if len(names) != stages:
        raise LabError(f"--devices {text} names {len(names)} devices for {stages} stages")
    try:
        return [torch.empty(0, device=name).device for name in names]
    except (RuntimeError, AssertionError) as error:
        raise LabError(f"--devices {text}: {str(error).splitlines()[0]}") from error


def main() -> None:
    arguments = flags().parse_args()
    check(arguments)
    run = setting.read(arguments)
    model = sequential(run)
    stages = count_stages(arguments, len(model))
    devices = stage_devices(arguments.devices, stages)
    if "OMP_NUM_THREADS" not in os.environ:  # stages that share cores must share their threads
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // stages))
    sample, _ = next(run.batches(arguments.batch_size))
    balance = choose_balance(arguments.balance, model, sample, stages, arguments.chunks,
                             devices[0])
    gpipe = GPipe(model, balance, devices=devices, chunks=arguments.chunks,
                  checkpoint=arguments.checkpoint)
    parameters = sum(weight.numel() for weight in gpipe.parameters())
    print(f"torchgpipe: {parameters / 1e6:.1f}M parameters, balance {gpipe.balance}, "
          f"{arguments.chunks} chunks of {arguments.batch_size // arguments.chunks} x "
          f"{run.seq_length} tokens, checkpoint {arguments.checkpoint}, "
          f"{os.cpu_count()} CPU cores", flush=True)
    train(gpipe, run, arguments)


if __name__ == "__main__":
    raise SystemExit(options.explained(main))
