"""The machine of a result: GPUs, driver, libraries, and topology."""

from __future__ import annotations

import os
import platform
import re
import subprocess

QUERY = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit",
         "--format=csv,noheader"]


def cuda_problem() -> str | None:
    """Return why PyTorch cannot use a GPU here, or None if it can."""
    import torch

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    return f"torch {torch.__version__} finds no CUDA device"


def describe() -> dict[str, str]:
    """Return the header of a result, in display order."""
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available(
        ) else "none"
    return {
        "GPUs": ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)),
        "nvidia-smi (name, driver, memory, power limit)": output(QUERY),
        "compute capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "torch": torch.__version__, "CUDA (of torch)": str(torch.version.cuda), "NCCL": nccl,
        "Python": platform.python_version(), "kernel": platform.release(),
        "CPU cores": str(len(os.sched_getaffinity(0))),
        "topology (nvidia-smi topo -m)": output(["nvidia-smi", "topo", "-m"]),
    }


def output(command: list[str]) -> str:
    """Return the output of a command, or "unknown" with the reason why it did not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({error})"
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout or done.stderr).strip()
