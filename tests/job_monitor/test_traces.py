"""The memory curve of a GPU's profile, and what the GPU does meanwhile."""

import json

import pytest

from job_monitor import traces
from labcore.errors import LabError


def level(milliseconds, mib):
    return {"ph": "C", "name": "memory (MiB)", "ts": 5000 + 1000 * milliseconds,
            "args": {"allocated": mib, "more reserved": 7}}


def kernel(name, start, end, **more):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 5000 + 1000 * start,
            "dur": 1000 * (end - start)} | more


HILL = [level(0, 1024), level(1, 2048), level(2, 4080), level(3, 4096), level(12, 3072),
        level(13, 1024), level(20, 4095), level(21, 1024)]
WORK = [kernel("volta_sgemm_64x64_nn", 0, 4), kernel("ncclDevKernel_SendRecv", 3, 6),
        kernel("exp_kernel", 11, 15), kernel("volta_sgemm_64x64_nn", 8, 9, cat="runtime")]


def test_what_ran_in_an_interval():
    trace = traces.parse(0, [*reversed(HILL), *WORK])
    assert trace.memory[0] == (0.0, 1.0)
    shares, busy = trace.during(2.0, 12.0)
    assert shares == pytest.approx({"GEMMs": 0.2, "communication": 0.3, "other kernels": 0.1})
    assert busy == pytest.approx(0.5)  # a GEMM and a collective overlap for 1 ms


def test_the_memory_events_of_a_real_gpu_give_the_same_curve():
    def measured(device, event):
        return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
                "pid": 1271, "tid": 1288, "ts": event["ts"],
                "args": {"Total Reserved": 301989888, "Device Id": 0, "Device Type": device,
                         "Bytes": 512, "Addr": 139904935721984,
                         "Total Allocated": event["args"]["allocated"] * 2**20}}

    gpu = [measured(1, event) for event in HILL]
    host = [measured(0, level(2, 999_999))]
    assert traces.parse(0, gpu + host + WORK) == traces.parse(0, HILL + WORK)
    with pytest.raises(LabError, match="--device cpu"):
        traces.parse(0, host)


def test_the_latest_profile_of_each_rank_is_read(tmp_path):
    for number, mib in ((1, 1024), (2, 2048)):
        (tmp_path / f"run_a_gpu1.{number}.pt.trace.json").write_text(
            json.dumps({"traceEvents": [level(0, mib), level(1, mib)]}))
    (tmp_path / "run_a_gpu11.3.pt.trace.json").write_text("not this one")
    (content,) = traces.read(tmp_path, 1)
    assert (content.rank, content.memory[-1]) == (1, (1.0, 2.0))


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(LabError, match=r"no profile of rank 2 .*--profile-execution yes"):
        traces.read(tmp_path, 2)
    (tmp_path / "run_a_gpu2.1.pt.trace.json").write_text(json.dumps({"traceEvents": WORK}))
    with pytest.raises(LabError, match="no GPU memory events"):
        traces.read(tmp_path, 2)
