"""Run a function on the real GPU, or on a virtual GPU of the same model, in its own process.

The calling process never initializes CUDA, so the processes that it forks can use CUDA.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
import torch._dynamo  # optimizers import it; importing it here saves time in every fork

import virtualgpu
from virtualgpu.core import cards
from virtualgpu.core.card import Card

LIMIT = 180.0  # time limit of a function in seconds
# Errors that refuse arithmetic that a GPU lacks. Any other error is a bug in the benchmark.
REFUSALS = ("RuntimeError", "NotImplementedError", "NoValue")


class Failed(Exception):
    """The function raised an error or timed out; the message says which."""


def refused(error: str) -> bool:
    """Return whether "TYPE: MESSAGE" may be a GPU's refusal of arithmetic that it lacks."""
    return error.partition(":")[0] in REFUSALS


def product() -> str:
    """Return the name of this machine's first GPU; raise Failed if there is none."""
    return on_cuda(_name)


def _name() -> str:
    if not torch.cuda.is_available():
        raise RuntimeError("this machine has no GPU that CUDA can use")
    return torch.cuda.get_device_name()


def model_of(name: str) -> Card:
    """Return the GPU model of a product; raise Failed if there is none."""
    card = cards.card_by_product(name)
    if card is None:
        raise Failed(f"virtualgpu has no model of {name!r}; it has {', '.join(cards.CARDS)}")
    return card


class Running:
    """A function that is running in a forked process, where it may use CUDA."""

    def __init__(self, function: Callable[[], object]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe(duplex=False)
        self.child = context.Process(target=_child, args=(function, there))
        self.child.start()
        there.close()

    def result(self, limit: float = LIMIT) -> object:
        """Wait for the function's result; raise Failed on an error or after `limit` seconds."""
        try:
            if not self.pipe.poll(limit):
                raise Failed(f"still running after {limit:.0f} s")
            succeeded, value = self.pipe.recv()
        except EOFError:
            self.child.join(5)
            raise Failed(f"the process ended with exit code {self.child.exitcode}") from None
        finally:
            self.child.join(5)
            if self.child.is_alive():
                self.child.kill()
                self.child.join()
        if not succeeded:
            raise Failed(value)
        return value


def on_cuda(function: Callable[[], object], limit: float = LIMIT) -> object:
    """Run a function in a process that may use CUDA, and return its result.

    Args:
        function: returns something picklable.
        limit: time limit in seconds.

    Raises:
        Failed: The function raised an error or timed out.
    """
    return Running(function).result(limit)


def _child(function: Callable[[], object], pipe: Connection) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    try:
        pipe.send((True, function()))
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send((False, f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"))


def on_virtual(function: Callable[[], object], card: Card, values: str = "1MiB") -> object:
    """Run a function on one virtual GPU, and return its result.

    Args:
        function: returns something picklable.
        card: the GPU model.
        values: size of the largest tensor whose values are computed.

    Raises:
        Failed: The function raised an error.
    """
    def hidden() -> object:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hide the real GPU
        return function()

    (rank,) = virtualgpu.run(hidden, card.name, values=values)
    if rank.error:
        raise Failed(rank.error)
    return rank.value
