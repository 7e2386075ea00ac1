"""Train a small language model with the DataParallel of mytrainer/ddp.py. From the workspace:

    torchrun --nproc_per_node 2 code/train_ddp.py --checkpoint FOLDER [--steps 400]

On SIGTERM, all ranks finish their step, rank 0 saves a checkpoint and leaves the empty file
FOLDER/stopped, and the program ends. The next run removes that file and resumes.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed as dist

if "LAB_HOME" not in os.environ:
    sys.exit("train_ddp.py: LAB_HOME is not set, so mytrainer/ and data/ cannot be found: start it "
             "from the workspace's terminal or in a job, or `export LAB_HOME=FOLDER`")
sys.path.insert(0, os.environ["LAB_HOME"])
from mytrainer.ddp import DataParallel

CONTEXT, WIDTH, VOCABULARY, BATCH = 8, 64, 4096, 64  # BATCH: samples of all ranks together


class LanguageModel(torch.nn.Module):
    """Predict a token from the 8 before it, [b, 8] to [b, 4096] (Bengio et al. 2003)."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(VOCABULARY, WIDTH)
        # With the default of 1, the tied output starts far above the loss of guessing, ln(4096).
        torch.nn.init.normal_(self.words.weight, std=0.1)
        self.hidden = torch.nn.Linear(CONTEXT * WIDTH, WIDTH)

    def forward(self, tokens):
        states = self.hidden(self.words(tokens).flatten(1)).tanh()
        return states @ self.words.weight.T  # tied with the embedding


def batch(text, step, rank, ranks):
    """Return this rank's part of the global batch of a step: contexts and next tokens."""
    starts = torch.randint(len(text) - CONTEXT, (BATCH,),
                           generator=torch.Generator().manual_seed(step))[rank::ranks]
    windows = torch.stack([text[start:start + CONTEXT + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, -1]


def save(state, path):
    """Write a checkpoint under a temporary name first, because SIGKILL may interrupt the writing.

    Args:
        state: what to save.
        path: the checkpoint, which is the old or the new one at any time, and always complete.
    """
    written = path.with_name(path.name + ".tmp")
    torch.save(state, written)
    os.replace(written, path)


def train(arguments):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    file = os.path.join(os.environ["LAB_HOME"], "data", "bpe-4096", "text_document.bin")
    text = torch.from_numpy(numpy.fromfile(file, dtype=numpy.uint16).astype(numpy.int64))
    saved, stopped = arguments.checkpoint / "model.pt", arguments.checkpoint / "stopped"
    if rank == 0:
        arguments.checkpoint.mkdir(parents=True, exist_ok=True)
        stopped.unlink(missing_ok=True)
    torch.manual_seed(rank)  # DataParallel makes the replicas equal
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    done = 0
    dist.barrier()
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    replica = DataParallel(model)
    if rank == 0:
        print(f"{ranks} ranks train from step {done} to {arguments.steps}", flush=True)
    for step in range(done, arguments.steps):
        tokens, following = batch(text, step, rank, ranks)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(replica(tokens), following)
        loss.backward()
        replica.finish()
        optimizer.step()
        # The mean loss, and on how many ranks the signal has arrived: all must stop together.
        shared = torch.tensor([loss.item() / ranks, float(bool(asked))])
        dist.all_reduce(shared)
        if rank == 0 and (step + 1) % arguments.log_interval == 0:
            print(f"step {step + 1}: loss {shared[0]:.4f}", flush=True)
        if shared[1] > 0 or step + 1 == arguments.steps:
            if rank == 0:
                save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                      "step": step + 1}, saved)
                if shared[1] > 0:
                    stopped.touch()
                    print(f"stopped by SIGTERM after step {step + 1}", flush=True)
            break
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--log-interval", type=int, default=20)
    arguments = parser.parse_args()  # before the rendezvous, so a mistake ends every rank at once
    if arguments.log_interval < 1:
        parser.error(f"--log-interval {arguments.log_interval}: give a number of steps from 1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
