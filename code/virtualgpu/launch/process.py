"""Turn this process into one rank of a job on virtual GPUs, and run the program."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from virtualgpu.core.eager import EagerHost
from virtualgpu.export import files
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.trace import RankPlacement
from virtualgpu.launch import failures, nvidia_smi
from virtualgpu.launch.cluster import Cluster
from virtualgpu.launch.result import Rank, measure
from virtualgpu.launch.settings import Settings
from virtualgpu.net import backend
from virtualgpu.packages import finder
from virtualgpu.pytorch import facade, fsdp1, process_groups, tokens
from virtualgpu.pytorch.assumptions import Decisions
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.replay.journal import Journal

FAILED, INTERRUPTED = 1, 128 + signal.SIGINT


def variables(cluster: Cluster, rank: int) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a rank, without the rendezvous."""
    local = rank % cluster.per_node
    return {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(cluster.world),
            "LOCAL_WORLD_SIZE": str(cluster.per_node),
            "GROUP_RANK": str(rank // cluster.per_node),
            "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
            "MASTER_PORT": os.environ.get("MASTER_PORT", "0")}


def become(cluster: Cluster, rank: int, settings: Settings, present: Sequence[int] | None = None,
           store: dist.Store | None = None) -> CudaGpu:
    """Install a virtual GPU in this process permanently.

    Args:
        cluster: the job's GPUs.
        rank: this process's rank.
        settings: the user's settings.
        present: the ranks that are processes; None for all ranks.
        store: the rendezvous store, if some ranks are absent.
    """
    os.environ.update(variables(cluster, rank))
    torch.set_num_threads(1)
    gpu = CudaGpu(cluster.card_of(rank), rank % cluster.per_node, cluster.per_node, settings.values,
                  Decisions(settings.answers, settings.typical is None), settings.typical)
    if cluster.per_node > 1:
        gpu.current = None  # the program has to choose
    gpu.fuses = settings.fuses
    gpu.has_cudnn_attention = finder.CUDNN_ATTENTION not in settings.without
    if settings.eager_host and not settings.record:
        gpu.eager = EagerHost(gpu)
    facade.install(gpu)
    finder.install(gpu.assumptions, settings.without)
    tokens.install(gpu, settings.output_tokens)
    process_groups.install(gpu, cluster.topology(), present, store)
    if cluster.world > 1:
        fsdp1.install()
        # DDP's own timing knows CUDA and the CPU only, and every rank would warn about that.
        dist.Logger.set_runtime_stats_and_log = lambda _self: None
    if settings.record:
        Journal(gpu, rank, cluster.world)
    failures.explain_elsewhere(rank)
    if settings.smi is not None:
        nvidia_smi.install(gpu, cluster, rank, settings.smi)
    ledger = Ledger(gpu, settings.steps)
    if settings.trace is not None:
        place = RankPlacement(rank, cluster.world, rank % cluster.per_node, cluster.per_node)
        gpu.trace_files = files.TraceFiles(settings.trace, ledger, place)
    ledger.start()
    return gpu


def script(path: str, arguments: Sequence[str], is_module: bool = False) -> Callable[[], None]:
    """Return a function that runs a program as `python PATH ARGUMENTS` would.

    Args:
        path: the program's file, or with is_module, the name of its module.
        is_module: whether it runs as with `python -m`.
    """
    def run() -> None:
        sys.argv = [path, *arguments]
        if is_module:
            sys.path[0] = os.getcwd()
            runpy.run_module(path, run_name="__main__", alter_sys=True)
            return
        sys.path[0] = str(Path(path).resolve().parent)
        runpy.run_path(path, run_name="__main__")
    return run


def execute(gpu: CudaGpu, rank: int, program: Callable[[], object]) -> Rank:
    """Run a program to its end; return its result, or its error.

    Args:
        gpu: this process's virtual GPU.
        rank: this process's rank.
        program: the function that runs the program.
    """
    value = None
    try:
        try:
            with exits_raised(), interrupts_repeated():
                value = program()
        except SystemExit as stop:
            if stop.code not in (None, 0):
                return exited(gpu, rank, stop.code)
        backend.check_complete()
        torch.set_default_device(None)  # measuring creates tensors, too
        return measure(gpu, rank, value)
    except KeyboardInterrupt:
        torch.set_default_device(None)
        result = measure(gpu, rank, error=f"KeyboardInterrupt: {failures.INTERRUPTED}")
        result.message, result.status = failures.INTERRUPTED, INTERRUPTED
        return result
    except BaseException as error:  # the program may raise anything
        torch.set_default_device(None)
        result = measure(gpu, rank, error=f"{type(error).__name__}: {error}")
        result.message, result.status = failures.explain(error), FAILED
        return result


@contextmanager
def exits_raised() -> Iterator[None]:
    """Let `os._exit(0)` in this thread raise SystemExit, so that such a program is measured.

    In other threads, in processes that the program forks, and after errors, it exits as usual.
    """
    exit_at_once, process, thread = os._exit, os.getpid(), threading.current_thread()

    def leave(status: int) -> NoReturn:
        if (status, os.getpid(), threading.current_thread()) == (0, process, thread):
            raise SystemExit(0)
        exit_at_once(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = exit_at_once


@contextmanager
def interrupts_repeated() -> Iterator[None]:
    """Send Ctrl-C's signal again if Python ignored its KeyboardInterrupt.

    It does so in finalizers, and every tensor has one, so the program would go on.
    """
    usual, main = sys.unraisablehook, threading.main_thread().ident

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt or main is None:
            usual(unraisable)
        else:  # not at once: an exception in this hook would be ignored, too
            threading.Timer(0.01, signal.pthread_kill, (main, signal.SIGINT)).start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = usual


def exited(gpu: CudaGpu, rank: int, code: object) -> Rank:
    """Return the result of a program that called sys.exit with an error.

    Args:
        gpu: this process's virtual GPU.
        rank: this process's rank.
        code: the argument of sys.exit.
    """
    message = f"the program exited with {code!r}"
    result = measure(gpu, rank, error=f"SystemExit: {message}")
    result.message, result.status = message, code if isinstance(code, int) else FAILED
    return result
