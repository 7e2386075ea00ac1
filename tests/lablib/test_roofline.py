"""GEMMs under the roofline: what is read, modeled, and drawn."""

import pytest

from labcore.errors import LabError
from lablib import roofline
from virtualgpu.core.cards import find
from virtualgpu.core.rules.gemm import UNALIGNED, UNALIGNED_DEFAULT

TEXT = """2 threads
copy of 1000000 bytes: 100.0 us
fp32 GEMM [100, 1] x [1, 100]: 20.0 us
fp32 GEMM [100, 50] x [50, 100]: 100.0 us
"""


@pytest.fixture
def put(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))

    def write(text):
        (tmp_path / "out.txt").write_text(text)
        return "out.txt"

    return write


def test_a_measurement_is_read(put):
    cpu = roofline.read(put(TEXT))
    assert cpu.bandwidth == pytest.approx(2e10)  # what is copied is read and written
    small, large = cpu.gemms
    assert (large.m, large.n, large.k, large.dtype) == (100, 100, 50, "fp32")
    assert large.rate == cpu.peak == pytest.approx(2 * 100 * 100 * 50 / 100e-6)
    assert small.intensity == pytest.approx(20_000 / (4 * 10_200))
    assert cpu.ridge == pytest.approx(cpu.peak / 2e10)


@pytest.mark.parametrize("text", ["", "copy of 10 bytes: 1.0 us\n", "2 threads\nKilled\n"])
def test_half_a_measurement_is_refused(put, text):
    with pytest.raises(LabError, match="contains no complete measurement"):
        roofline.read(put(text))


def test_a_file_that_is_not_there_is_refused(put):
    with pytest.raises(LabError, match="run the cell that measures first"):
        roofline.read("other.txt")


def test_a_virtual_card_stays_below_its_data_sheet_and_comes_near():
    card = find("a100")
    shapes = [(4096, 4096, 2**power) for power in range(13)]
    machine = roofline.virtual("a100", "fp16", shapes)
    assert machine.peak == card.tflops["fp16"] * 1e12 and machine.bandwidth == card.bandwidth
    for one in machine.gemms:
        assert one.rate < min(machine.peak, one.intensity * machine.bandwidth)
    assert machine.gemms[-1].rate > 0.6 * machine.peak
    assert machine.gemms[0].rate > 0.6 * machine.gemms[0].intensity * machine.bandwidth


@pytest.mark.parametrize(("card", "share"), [
    ("v100", UNALIGNED_DEFAULT[0]), ("a100", UNALIGNED_DEFAULT[0]),
    ("h100", UNALIGNED["hopper"][0])])
def test_odd_rows_slow_tensor_cores_down(card, share):
    odd, even = roofline.virtual(card, "fp16", [(4096, 4095, 4096), (4096, 4096, 4096)]).gemms
    assert odd.rate / even.rate == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize(("card", "dtype", "said"), [
    ("v101", "fp16", "nearest: v100"), ("v100", "bf16", "has no bf16; nearest: fp32, fp16"),
    ("a100", "tf32", "has no tf32; nearest: fp32, ")])
def test_what_is_not_known_is_refused_with_the_nearest(card, dtype, said):
    with pytest.raises(LabError, match=said):
        roofline.virtual(card, dtype, [(8, 8, 8)])


def test_the_figures_say_in_words_what_they_show():
    machine = roofline.virtual("v100", "fp16", [(4096, n, 4096) for n in (4088, 4092, 4096)])
    assert "virtual v100-sxm2-16gb, fp16: the roof rises to 1.25e+14" in roofline.plot(machine).alt
    assert "the multiples of 8 reach at least" in roofline.plot_sizes(machine, every=8).alt
    assert "multiples" not in roofline.plot_sizes(machine).alt
