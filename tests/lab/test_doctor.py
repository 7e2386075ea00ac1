"""lab doctor: the processor, torch's kernels, and dtypes that are slow here."""

from __future__ import annotations

import re

import pytest

from lab import cli, doctor
from lab.doctor import Gemm

XEON = "processor : 0\nmodel name : Intel(R) Xeon(R)\nflags : fpu avx2 avx512f amx_tile amx_bf16\n"
EPYC = "processor : 0\nmodel name : AMD EPYC 7763\nflags : fpu avx2 sse4a\n"
ARM = "processor : 0\nFeatures : fp asimd fphp bf16 sve\nCPU part : 0xd40\n"


@pytest.mark.parametrize(("cpuinfo", "name", "has"), [
    (XEON, "Intel(R) Xeon(R), ", "AVX2, AVX-512, AMX"), (EPYC, "AMD EPYC 7763, ", "AVX2"),
    (ARM, " 0xd40, ", "NEON, SVE, BF16, FP16"), ("", ", ", "none of the vector instructions")])
def test_a_processor_is_named_with_its_vector_instructions(cpuinfo, name, has, tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    first, second = doctor.processor(path)
    assert name in first and re.search(r"\d+ CPUs for this process$", first)
    assert second.split(maxsplit=1)[1].startswith(has)


def test_a_dtype_slower_than_20_times_fp32_is_warned_of_with_what_to_do():
    lines = doctor.report([Gemm("fp32", 0.001), Gemm("bf16", 0.020), Gemm("fp16", 0.0651)])
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert len(warnings) == 1 and "fp16 GEMMs take 65 times as long as fp32 ones" in warnings[0]
    assert "or use fp32" in warnings[0]
    assert lines[2].split() == ["fp32", "1.00", "ms", "268.4", "1.0x"]


def test_there_is_advice_for_every_dtype_that_can_be_slow():
    assert set(doctor.INSTEAD) == set(doctor.gemms()) - {"fp32"}


def test_the_command_measures_every_dtype(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "SIZE", 32)
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert [out.count(f"\n{name} ") for name in ("fp32", "fp64", "bf16", "fp16", "fp8")] == [1] * 5
    assert re.search(r"^torch +\d\S+, kernels for \w+, \d+ threads$", out, re.M)
