"""Transfers between two ranks: what is read, fitted, modeled, and drawn."""

import pytest

from labcore.errors import LabError
from lablib import links
from virtualgpu.core.cards import find
from virtualgpu.net.network import parse

TEXT = """srun: job 3 queued
message of 4 bytes: 50.0 us
message of 16 bytes: 51.0 us
message of 64 bytes: 52.5 us
message of 1000000 bytes: 1050.0 us
message of 4000000 bytes: 4050.0 us
"""


@pytest.fixture
def put(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))

    def write(text):
        (tmp_path / "out.txt").write_text(text)
        return "out.txt"

    return write


def test_a_measurement_is_read_and_fitted(put):
    curve = links.read("mine", put(TEXT))
    assert curve.sizes == (4, 16, 64, 10**6, 4 * 10**6)
    assert curve.fit == pytest.approx((50e-6, 1e9), rel=3e-3)
    assert str(curve) == "mine: latency 50.0 us, bandwidth 1 GB/s"


@pytest.mark.parametrize(("last", "bandwidth"), [(99e-3, 1e9), (1e-3, 1e9)])
def test_a_message_that_met_a_busy_machine_does_not_spoil_the_fit(last, bandwidth):
    sizes, seconds = (4, 10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6), (5e-5, 1e-3, 2e-3, 3e-3, last)
    curve = links.Curve.of("noisy", list(zip(sizes, seconds, strict=True)))
    assert curve.fit.bandwidth == pytest.approx(bandwidth)


def test_where_nothing_grows_there_is_a_bandwidth_still():
    assert links.Curve.of("odd", [(4, 2e-3), (8, 1e-3)]).fit == pytest.approx((1e-3, 8000.0))


def test_of_several_measurements_of_a_size_the_fastest_counts():
    points = [(4, 3e-3), (4, 1e-3), (8, 2e-3), (4, 2e-3)]
    curve = links.Curve.of("repeated", points)
    assert (curve.sizes, curve.seconds) == ((4, 8), (1e-3, 2e-3))
    assert curve.points == tuple(points)


@pytest.mark.parametrize(("text", "said"), [
    ("", "nothing"), ("srun: error: no such node\n", "its last line is: srun: error: no such node"),
    ("message of 4 bytes: 50.0 us\nKilled\n", "Killed")])
def test_a_file_without_a_measurement_is_refused_with_its_last_line(put, text, said):
    with pytest.raises(LabError, match="no measurement") as refused:
        links.read("mine", put(text))
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_refused(put):
    with pytest.raises(LabError, match="run the cell that measures first"):
        links.read("mine", "other.txt")


def test_virtual_links_have_the_bandwidth_that_their_cards_and_networks_reach():
    card = find("v100")
    near, far = links.virtual("v100"), links.virtual("v100", "ethernet:25gbit")
    assert near.fit.bandwidth == pytest.approx(25e9 * card.efficiency.link, rel=1e-3)
    assert far.fit.bandwidth == pytest.approx(parse("ethernet:25gbit").effective, rel=1e-3)
    assert near.fit.latency < far.fit.latency
    assert near.name == "virtual NVLink of a v100-sxm2-16gb"
    assert far.name == "virtual ethernet 25 Gbit/s"
    assert links.virtual("t4").name == "virtual PCIe via host memory of a t4"


@pytest.mark.parametrize(("card", "network", "said"), [
    ("v101", None, "nearest: v100"), ("v100", "ethernet:fast", "ethernet:25gbit")])
def test_what_is_not_known_is_refused_with_the_nearest(card, network, said):
    with pytest.raises(LabError, match=said):
        links.virtual(card, network)


def test_an_all_reduce_on_an_unknown_gpu_model_is_refused():
    with pytest.raises(LabError, match="nearest: v100"):
        links.all_reduce("v101", [0, 1], 1000)


def test_the_figure_says_in_words_what_it_shows():
    alt = links.plot(links.virtual("v100"), links.virtual("t4")).alt
    assert "virtual NVLink of a v100-sxm2-16gb: latency" in alt
    assert "virtual PCIe via host memory of a t4: latency" in alt


def test_an_all_reduce_needs_gpus_that_form_a_ring_of_nvlinks():
    near, far = [links.all_reduce("v100", gpus, 10**9) for gpus in ([0, 1, 2, 3], [0, 1, 6, 7])]
    assert far > 5 * near
