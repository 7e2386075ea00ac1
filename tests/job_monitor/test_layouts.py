"""Runs of one training in several layouts, side by side."""

from types import SimpleNamespace

import pytest

from job_monitor import layouts
from labcore.colors import IN_NOTEBOOKS
from labcore.errors import LabError
from tests.job_monitor.test_bytes_sent import message, put

BLUE = "\033[38;2;" + ";".join(map(str, IN_NOTEBOOKS["blue"])) + "m"
STACK = ("software stack megatron-2021 (Megatron-LM of 2021); mean error on published runs on "
         "v100-sxm2-16gb: step time 7% (1 run)")
LOG = STACK + """
virtual links: within a node NVLink 25 GB/s; times and memory are modeled; no training happens: \
tensors have shapes but no values
 > number of parameters on (tensor, pipeline) model parallel rank (0, 1): 700
 > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 900
[Rank 1] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 512.0 | reserved: 9.0
[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2048.0 | reserved: 9.0
 iteration  1/  2 | elapsed time per iteration (ms): 900.0 | global batch size:     8 |
 iteration  2/  2 | elapsed time per iteration (ms): 500.0 | global batch size:     8 |
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    folder = tmp_path / "megatron" / "tensorboard" / "mine" / "run_default"
    folder.mkdir(parents=True)
    for rank, size in ((0, 250_000), (1, 500_000)):
        put(folder, [message("nccl:send 0->1", [size])] * 2, rank)
    log = tmp_path / "mine.txt"
    log.write_text(LOG)
    return SimpleNamespace(job=7, name="mine", log=log)


def test_a_run_is_what_log_and_profile_say(job):
    run = layouts.read("two stages", job, sequence_length=100)
    assert (run.milliseconds, run.tokens_per_second, run.modeled) == (500.0, 1600.0, True)
    assert run.software == STACK
    assert run.parameters == {(0, 1): 700, (0, 0): 900}
    assert run.memory == {1: 0.5, 0: 2.0} and run.peak == 2.0
    assert run.sent == {0: 1e6, 1: 2e6} and run.megabytes == 2.0


def test_the_table_marks_the_best_and_the_figure_says_all(job, capsys):
    run = layouts.read("two stages", job, sequence_length=100)
    slow = layouts.LayoutRun("slow", 800.0, 1000.0, {(0, 0): 900}, {0: 3.0}, {0: 0.0}, True)
    layouts.show([run, slow])
    head, software, _, first, second = capsys.readouterr().out.splitlines()
    assert "virtual" in head and software == STACK
    assert first.startswith("two stages") and first.count(BLUE) == 4
    assert second.count(BLUE) == 1  # as many parameters
    picture = layouts.plot([run, slow])
    assert "two stages 500 ms, 2.0 GiB, 2 MB; slow 800 ms, 3.0 GiB, 0 MB" in repr(picture)
    assert "(virtual)" in repr(picture) and picture.png().startswith(b"\x89PNG")


@pytest.mark.parametrize(("without", "said"), [
    ("elapsed", "no iteration"), ("max allocated", "max allocated"), ("number of", "number of")])
def test_what_is_missing_in_the_log_is_named(job, without, said):
    job.log.write_text("\n".join(line for line in LOG.splitlines() if without not in line))
    with pytest.raises(LabError, match=said):
        layouts.read("broken", job, sequence_length=100)


def test_what_does_not_grow_with_the_layers_is_kept():
    assert layouts.extrapolate({8: 50.0, 4: 30.0}, 36) == 10 + 36 * 5
