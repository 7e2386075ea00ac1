"""Run a function on the real GPU, or on the virtual GPU of the same model, in a process of its own.

The calling process never touches CUDA, so every process that it forks can.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
import torch._dynamo  # optimizers do, and every fork would again

import virtualgpu
from virtualgpu.core import cards
from virtualgpu.core.card import Card

LIMIT = 180.0  # seconds of a function


class Failed(Exception):
    """The function raised an error, or took too long; the text says which."""


def product() -> str:
    """Return the name of this machine's first GPU. Raises Failed without one."""
    return on_cuda(_name)


def _name() -> str:
    if not torch.cuda.is_available():
        raise RuntimeError("this machine has no GPU that CUDA can use")
    return torch.cuda.get_device_name()


def model_of(name: str) -> Card:
    """The GPU model to compare with. Raises Failed where there is none."""
    card = cards.card_of(name)
    if card is None:
        raise Failed(f"virtualgpu has no model of {name!r}; it has {', '.join(cards.CARDS)}")
    return card


class Running:
    """A function that runs in a forked process, which may use CUDA."""

    def __init__(self, function: Callable[[], object]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe(duplex=False)
        self.child = context.Process(target=_child, args=(function, there))
        self.child.start()
        there.close()

    def result(self, limit: float = LIMIT) -> object:
        """Wait so many seconds for what the function returns. Raises Failed."""
        try:
            if not self.pipe.poll(limit):
                raise Failed(f"it took longer than {limit:.0f} s")
            succeeded, value = self.pipe.recv()
        except EOFError:
            self.child.join(5)
            raise Failed(f"its process ended with status {self.child.exitcode}") from None
        finally:
            self.child.join(5)
            if self.child.is_alive():
                self.child.kill()
                self.child.join()
        if not succeeded:
            raise Failed(value)
        return value


def on_cuda(function: Callable[[], object], limit: float = LIMIT) -> object:
    """Run a function in a process that may use CUDA, and return its result. Raises Failed.

    Args:
        function: what to run; its result must be picklable.
        limit: seconds until the process is ended.
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
    """Run a function on one virtual GPU.

    Args:
        function: what to run.
        card: the GPU model.
        values: the largest tensor whose values are computed.

    Raises Failed.
    """
    def hidden() -> object:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # only the model is used
        return function()

    (rank,) = virtualgpu.run(hidden, card.name, values=values)
    if rank.error:
        raise Failed(rank.error)
    return rank.value
