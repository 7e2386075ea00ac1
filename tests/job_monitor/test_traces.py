"""The memory curve of a GPU's profile, and what the GPU does where it is flat."""

import json
import re

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


def test_the_longest_flat_stretch_and_what_ran_in_it():
    trace = traces.parse(0, [*reversed(HILL), *WORK])
    assert trace.peak == 4.0 and trace.memory[0] == (0.0, 1.0)
    flat = trace.plateau
    assert (flat.start, flat.end, flat.freed) == (2.0, 12.0, 1.0)
    assert flat.shares == pytest.approx({"GEMMs": 0.2, "communication": 0.3,
                                         "other kernels": 0.1})
    assert flat.busy == pytest.approx(0.5)  # product and message overlap for 1 ms


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


def test_what_is_shown_says_it_all(capsys):
    trace = traces.parse(3, HILL + WORK)
    traces.show([trace])
    said = re.sub("\033\\[[0-9;]*m", "", capsys.readouterr().out)
    assert "rank 3: flat from 2 to 12 ms near 4.00 GiB (virtual), then 1.000 GiB are freed" in said
    assert "communication 30%" in said and "idle 50%" in said
    picture = traces.memory([trace, trace])
    assert "rank 3 between 1.0 and 4.0 GiB, flat near the peak from 2 to 12 ms" in repr(picture)
    assert len(picture.figure.axes) == 2 and picture.png().startswith(b"\x89PNG")


def test_the_latest_profile_of_each_rank_is_read(tmp_path):
    for number, mib in ((1, 1024), (2, 2048)):
        (tmp_path / f"run_a_gpu1.{number}.pt.trace.json").write_text(
            json.dumps({"traceEvents": [level(0, mib), level(1, mib)]}))
    (tmp_path / "run_a_gpu11.3.pt.trace.json").write_text("not this one")
    (found,) = traces.read(tmp_path, 1)
    assert (found.rank, found.peak) == (1, 2.0)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(LabError, match=r"no profile of rank 2 .*--profile-execution yes"):
        traces.read(tmp_path, 2)
    (tmp_path / "run_a_gpu2.1.pt.trace.json").write_text(json.dumps({"traceEvents": WORK}))
    with pytest.raises(LabError, match="no GPU memory events"):
        traces.read(tmp_path, 2)
