"""Kernels of a profile: what is on Tensor Cores, as the profiler's tab counts it."""

import json
import os

import pytest
from torch_tb_profiler.profiler.kernel_parser import KernelParser
from torch_tb_profiler.profiler.trace import EventTypes

from job_monitor import kernels
from labcore.errors import LabError

TIMES = {"volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_nn": [200, 400], "volta_hgemm_64x64_nn": [300],
         "volta_sgemm_64x64_nn": [100], "void softmax_warp_forward<float>": [1000]}


@pytest.fixture
def put(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))

    def write(times, run="run_a", worker="run_a_gpu0.1", category="kernel"):
        events = [{"name": "ProfilerStep#2", "dur": 1}, {"name": "ProfilerStep#3", "dur": 1},
                  {"name": "aten::mm", "cat": "cpu_op", "dur": 7}]
        events += [{"name": name, "cat": category, "dur": dur}
                   for name, each in times.items() for dur in each]
        (tmp_path / run).mkdir(exist_ok=True)
        (tmp_path / run / f"{worker}.pt.trace.json").write_text(
            json.dumps({"virtualGpu": {"software": "a stack"}, "traceEvents": events}))
        return run

    return write


def test_times_are_of_a_step_by_kind(put, capsys):
    profile = kernels.read("mine", put(TIMES))
    assert profile.total == pytest.approx(1.0)  # 2 ms in two steps
    assert [profile.milliseconds_of(kind) for kind in kernels.KINDS] == pytest.approx(
        [0.3, 0.2, 0.5])
    profile.show(count=2)
    first, software, *rest = capsys.readouterr().out.splitlines()
    lines = [first, *rest]
    assert "30% on Tensor Cores" in first and len(lines) == 3
    assert software == "modeled; software stack a stack"
    assert lines[1].endswith("softmax_warp_forward<float>") and "Tensor" not in lines[1]
    assert "Tensor Cores" in lines[2]


@pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")  # theirs
def test_the_share_is_the_tab_s(put):
    class Event:
        def __init__(self, name, duration):
            self.name, self.duration, self.type = name, duration, EventTypes.KERNEL
            self.blocks_per_sm = self.occupancy = 0.0

    parser = KernelParser()
    parser.parse_events([Event(name, dur) for name, each in TIMES.items() for dur in each])
    assert kernels.read("a", put(TIMES)).tensor_core_share == pytest.approx(parser.tc_used_ratio)


def test_the_latest_profile_of_the_first_rank_counts(put, tmp_path):
    put({"volta_sgemm": [1]}, worker="run_a_gpu0.2")
    os.utime(tmp_path / "run_a" / "run_a_gpu0.2.pt.trace.json", ns=(1, 1))
    put({"softmax": [1]}, worker="run_a_gpu1.3")
    assert kernels.read("a", put(TIMES)).total == pytest.approx(1.0)


def test_what_is_no_profile_of_a_gpu_is_refused(put):
    with pytest.raises(LabError, match="--profile-name"):
        kernels.read("a", "run_b")
    with pytest.raises(LabError, match="--device cpu"):
        kernels.read("a", put(TIMES, category="cpu_op"))


def test_the_figure_says_in_words_what_it_shows(put):
    profile = kernels.read("fp16", put(TIMES))
    picture = kernels.plot(profile, profile)
    assert "fp16: GEMMs on Tensor Cores 0 ms, other GEMMs 0 ms" in repr(picture)
    assert picture.png().startswith(b"\x89PNG")
