"""Out-of-memory errors, profiles, status files, and signals of the trainer on a real GPU"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.gpu import mfu
from benchmarks.gpu.result import Result, Table
from benchmarks.gpu.trainer import SECONDS, Run, data_flags, small_model, start, train
from job_monitor import ranks

LIMIT = 400
VOCABULARY = 50304


class Wrong(Exception):
    """A run did not behave as documented; the message says how."""


def expect(condition: bool, wrong: str, run: Run | None = None) -> None:
    """Raise Wrong unless a condition holds.

    Args:
        condition: what must hold.
        wrong: message of the error.
        run: a run whose last log lines are appended to the message.
    """
    if not condition:
        raise Wrong("\n".join([wrong, *(run.text.splitlines()[-8:] if run else [])]))


def out_of_memory(folder: Path) -> str:
    """Check that a run that exceeds the memory reports PyTorch's error and exits with 1."""
    total = torch.cuda.get_device_properties(0).total_memory
    batch = total // (4 * mfu.LENGTH * VOCABULARY) + 1  # its fp32 logits alone are larger
    with data_flags() as data:
        run = train(f"{mfu.COMMON} {data} {mfu.SIZES['124M']} {mfu.FLASH} --bf16 "
                    f"{mfu.sequences(mfu.LENGTH, batch, batch, iterations=1)}", check=False,
                    RANK_STATUS=str(folder))
    expect(run.code == 1, f"exit code {run.code}, not 1", run)
    lines = [line for line in run.text.splitlines() if line.startswith("[rank 0]")]
    expect(len(lines) == 1 and "CUDA out of memory. Tried to allocate" in lines[0],
           "rank 0 did not print PyTorch's out-of-memory error on exactly one line", run)
    status = json.loads((folder / "0.json").read_text())
    expect(status["state"] == "failed", f"the status file has state {status['state']!r}")
    return lines[0]


def status_file(folder: Path) -> str:
    """Compare the status file that `lab top` reads with what PyTorch reports."""
    with small_model() as model:
        train(model, RANK_STATUS=str(folder))
    rank = ranks.read(folder)[0]
    total = torch.cuda.mem_get_info(0)[1]
    expect(rank.device == torch.cuda.get_device_name(0), f"device is {rank.device!r}")
    expect(rank.memory_total == total, f"memory_total is {rank.memory_total}, not {total}")
    expect(rank.on_card and rank.memory_peak < rank.memory_used < total,
           f"memory_used is {rank.memory_used}, the peak {rank.memory_peak}")
    expect(rank.state == "done" and rank.iteration == 10 and not rank.modeled,
           f"state {rank.state}, iteration {rank.iteration}, modeled {rank.modeled}")
    return (f"{rank.device}, {rank.memory_used / 1e9:.2f} of {rank.memory_total / 1e9:.2f} GB used "
            f"on the GPU, PyTorch's peak {rank.memory_peak / 1e9:.2f} GB")


def profile(folder: Path) -> str:
    """Check that --profile-execution writes a trace with kernels that the course's tools open."""
    with small_model() as model:
        train(f"{model} --tensorboard-dir {folder} --profile-execution yes --eval-iters 2 "
              "--eval-interval 5 --log-memory-to-tensorboard")
    found = list((folder / "run_default").glob("run_default_gpu0.*.pt.trace.json*"))
    expect(len(found) == 1, "expected one trace, found "
           f"{sorted(path.name for path in folder.rglob('*'))}")
    loaded = json.loads(found[0].read_text())
    events = loaded["traceEvents"]
    count = sum(event.get("cat") == "kernel" for event in events)
    expect(count > 0, "the trace has no event of category kernel")
    expect(bool(loaded.get("deviceProperties")), "the trace has no deviceProperties")
    from job_monitor import traces  # here, because the other checks need none of its packages

    # parse raises LabError if the trace has no GPU memory events.
    peak = max(allocated for _, allocated in traces.parse(0, events).memory)
    size = found[0].stat().st_size
    return (f"{count} kernels, peak memory {peak:.2f} GiB, a file of {size / 1e6:.1f} MB; "
            f"{opened(folder)}")


def opened(folder: Path) -> str:
    """Open the trace with torch_tb_profiler if it is installed."""
    try:
        from torch_tb_profiler.profiler.loader import RunLoader
        from torch_tb_profiler.run import RunProfile  # noqa: F401
    except ImportError:
        return "not opened with torch_tb_profiler, which is not installed"
    from torch_tb_profiler.io.cache import Cache

    run = RunLoader("run_default", str(folder / "run_default"), Cache()).load()
    expect(len(run.profiles) == 1, "torch_tb_profiler cannot open the trace")
    return "torch_tb_profiler opens it"


def kernel_table(folder: Path) -> str:
    """Check that the labs' kernel table can read a trace."""
    with small_model() as model:
        train(f"{model} --bf16 --tensorboard-dir {folder} --profile-execution yes")
    from job_monitor import kernels

    read = kernels.read("bf16", folder / "run_default")
    expect(sum(read.milliseconds.values()) > 0, "the table has no kernel time")
    return f"{len(read.milliseconds)} kernels, {sum(read.milliseconds.values()):.1f} ms per step"


def timeline(folder: Path) -> str:
    """Check that --timeline writes a figure, with all timers switched on."""
    with small_model() as model:
        run = train(f"{model} --timeline {folder} --timing-log-level 2 --log-params-norm "
                    "--log-num-zeros-in-grad")
    found = [line for line in run.text.splitlines() if "timeline of iteration" in line]
    expect(bool(found) and (folder / "timeline.svg").exists(), "no timeline was written", run)
    return found[0].partition(": ")[2] or found[0]


def sigterm(folder: Path) -> str:
    """Check that --exit-signal-handler saves a checkpoint on SIGTERM and exits with 0."""
    with small_model(iterations=100_000) as model:
        process, = start(f"{model} --exit-signal-handler --save {folder} --save-interval 100000 "
                         "--log-interval 1", "cuda")
        try:
            for line in process.stdout:
                if line.startswith(" iteration"):
                    process.send_signal(signal.SIGTERM)
                    break
            text = process.communicate(timeout=SECONDS)[0]
        finally:
            process.kill()
    expect(process.returncode == 0 and "exiting program after receiving SIGTERM." in text,
           f"exit code {process.returncode}:\n{text[-500:]}")
    saved = (folder / "latest_checkpointed_iteration.txt").read_text()
    return f"saved at iteration {saved}"


def no_such_gpu(folder: Path) -> str:
    """Check the error of a local rank that has no GPU."""
    count = torch.cuda.device_count()
    with small_model() as model:
        run = train(model, check=False, LOCAL_RANK=str(count))
    wanted = f"local rank {count} has no GPU: this node shows {count}"
    expect(run.code == 1 and wanted in run.text, f"the error is not {wanted!r}", run)
    return wanted


def instead_of_cpu(folder: Path) -> str:
    """Check that DEVICE_INSTEAD_OF_CPU=cuda and --device auto use the GPU."""
    with small_model() as model:
        run = train(model, "cpu", DEVICE_INSTEAD_OF_CPU="cuda", RANK_STATUS=str(folder))
        expect("CUDA is used instead" in run.text, "the log does not mention it", run)
        expect(ranks.read(folder)[0].on_card, "it ran on the CPU")
        train(model, "auto", RANK_STATUS=str(folder / "auto"))
    expect(ranks.read(folder / "auto")[0].on_card, "--device auto did not choose the GPU")
    return "both ran on the GPU"


CHECKS: dict[str, Callable[[Path], str]] = {
    "out of memory": out_of_memory, "status file": status_file, "profiler": profile,
    "kernels of a profile": kernel_table, "timeline and timers": timeline, "SIGTERM": sigterm,
    "a rank without a GPU": no_such_gpu, "--device cpu and auto": instead_of_cpu,
}
QUICK = ("out of memory", "status file", "SIGTERM")  # the checks that --quick keeps


def run(quick: bool) -> Result:
    """Run the checks, several at a time, because most of each is startup.

    Args:
        quick: run only the checks in QUICK.
    """
    result = Result()
    names = [name for name in CHECKS if not quick or name in QUICK]
    table = Table("Checks", ["check", "outcome", "elapsed time (s)"])
    result.tables.append(table)

    def one(name: str) -> tuple[str, float, str | None]:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                return CHECKS[name](Path(folder)), time.monotonic() - started, None
            except Exception as error:  # any failure: the other checks must still run
                wrong = f"{name}: {type(error).__name__}: {error}"
                return "FAILED", time.monotonic() - started, wrong

    with ThreadPoolExecutor(6) as pool:  # the first check runs alone: it fills the GPU's memory
        outcomes = [one(names[0]), *pool.map(one, names[1:])]
    for name, (found, seconds, wrong) in zip(names, outcomes, strict=True):
        table.add(name, found, seconds)
        if wrong:
            result.failures.append(wrong)
    return result
