"""Put an `nvidia-smi` on the program's PATH that shows the virtual GPUs, and a CUDA_HOME beside it.

Programs read the version of CUDA from CUDA_HOME/bin/nvcc, even if they compile nothing.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from virtualgpu.export.saving import save
from virtualgpu.launch.cluster import Cluster
from virtualgpu.pytorch.cuda import CUDA_VERSION, busy_share
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.smi import job

NVCC = f"""#!/bin/sh
case "$1" in
-V | --version) echo "nvcc: NVIDIA (R) Cuda compiler driver
Cuda compilation tools, release {CUDA_VERSION}, V{CUDA_VERSION}.0 (virtualrun)" ;;
*) echo "virtualrun: this nvcc only prints its version: CUDA kernels cannot run on virtual GPUs" >&2
   exit 1 ;;
esac
"""


@contextmanager
def folder_for(cluster: Cluster) -> Iterator[Path]:
    """Create the folder that `nvidia-smi` reads, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="virtualrun-", ignore_cleanup_errors=True) as name:
        ranks = range(cluster.world)
        nodes = [[cluster.card_of(rank).name for rank in ranks[first:first + cluster.per_node]]
                 for first in ranks[::cluster.per_node]]
        (Path(name) / job.CLUSTER).write_text(json.dumps(nodes))
        yield Path(name)


def install(gpu: CudaGpu, cluster: Cluster, rank: int, folder: Path) -> None:
    """Let the programs that this rank starts find `nvidia-smi`, and know the rank's state.

    Sets CUDA_HOME unless it or CUDA_PATH is set.

    Args:
        gpu: this process's virtual GPU.
        cluster: the job's GPUs.
        rank: this process's rank.
        folder: as from folder_for.
    """
    node = rank // cluster.per_node
    commands = folder / job.node_name(node)  # on the PATH
    commands.mkdir(exist_ok=True)
    program = Path(job.__file__).with_name("__main__.py")
    words = [sys.executable, "-I", "-S", str(program), str(folder), str(node)]
    text = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    save(commands / "nvidia-smi", text, 0o755)  # other ranks of the node write it, too
    os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if not {"CUDA_HOME", "CUDA_PATH"} & os.environ.keys():
        (commands / "bin").mkdir(exist_ok=True)
        save(commands / "bin" / "nvcc", NVCC, 0o755)
        os.environ["CUDA_HOME"] = str(commands)
    publish = functools.partial(describe, gpu, rank, folder, os.getpid())
    publish()

    def after_publishing(start):
        @functools.wraps(start)
        def started(*args, **kwargs):
            publish()
            return start(*args, **kwargs)
        return started

    os.system = after_publishing(os.system)
    subprocess.Popen.__init__ = after_publishing(subprocess.Popen.__init__)


def describe(gpu: CudaGpu, rank: int, folder: Path, pid: int) -> None:
    """Write the state of a rank for `nvidia-smi`.

    Args:
        gpu: the rank's virtual GPU.
        rank: the rank in the job.
        folder: the run's folder, unless it has ended and is gone.
        pid: process ID of the rank.
    """
    memory = gpu.memory
    state = {"pid": pid, "used": memory.non_pytorch + memory.reserved, "total": memory.capacity,
             "utilization": busy_share(gpu)}
    with suppress(OSError):
        save(job.rank_file(folder, rank), json.dumps(state))
