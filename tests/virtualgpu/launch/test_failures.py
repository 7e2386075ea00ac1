"""virtualrun's messages about programs that fail; it leaves nothing running."""

import io
import re
from pathlib import Path

import pytest

import virtualgpu
from virtualgpu.launch import command, failures

pytestmark = pytest.mark.slow  # ranks that run whole programs

DECIDES = """
import torch
loss = torch.randn(2**20, device="cuda").square().mean()
if loss > 1:
    print("high")
"""
FULL = """
import os, torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.empty(2**35, device=f"cuda:{torch.cuda.current_device()}")
"""
ONE_FAILS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
for turn in range(2):
    assert turn == 0 or dist.get_rank() != 1, "only rank 1"
    dist.all_reduce(torch.ones(3, device="cuda"))
    torch.cuda.synchronize()
"""


@pytest.fixture
def virtualrun(tmp_path, capfd, monkeypatch):
    """Run a program, given as its text; returns the exit status and what was printed on stderr."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    path = tmp_path / "program.py"

    def run(text, *options):
        path.write_text(text)
        status = command.main([*options, str(path)])
        return status, capfd.readouterr().err
    return run


def test_an_error_that_all_ranks_raise_is_printed_once(virtualrun):
    status, text = virtualrun(DECIDES, "--gpus", "h100:4")
    assert status == 1 and text.count("branches on a value") == 1
    assert re.search(r"ranks 0 to 3: .*program.py, line 4: `if loss > 1:` branches", text)
    assert "ranks 0 to 3 failed: NoValue: " in text


def test_a_program_that_fails_before_it_uses_a_gpu_has_no_figures(virtualrun):
    status, text = virtualrun("raise KeyError('early')", "--gpus", "h100:2")
    assert status == 1 and "KeyError: 'early'" in text and "peak memory" not in text
    assert text.endswith("virtualrun: there are no figures: nothing had run on a virtual GPU\n")


def test_an_out_of_memory_error_names_the_gpu_of_the_local_rank():
    ranks = virtualgpu.run(lambda: exec(FULL, {}), "h100:2")
    for index, rank in enumerate(ranks):
        assert f"Tried to allocate 128.00 GiB. GPU {index} has a total capacity of" in rank.error


def test_tracebacks_that_differ_by_the_gpu_are_printed_once(virtualrun):
    _, text = virtualrun(FULL, "--gpus", "h100:2")
    assert text.count("Traceback") == text.count("CUDA out of memory") == 1
    assert "virtualrun: ranks 0 and 1:\nTraceback" in text and "runpy" not in text
    assert str(Path(virtualgpu.__file__).parent) not in text  # as on a real GPU


def test_the_ranks_that_waited_for_one_that_failed(virtualrun):
    _, text = virtualrun(ONE_FAILS, "--gpus", "h100:3")
    assert re.search(r"virtualrun: rank 1:\nTraceback.*AssertionError: only rank 1", text, re.S)
    assert re.search(r"virtualrun: ranks 0 and 2: ", text)
    assert "rank 1 failed: AssertionError: only rank 1; the figures cover the run up to" in text
    assert "peak memory" in text and "mark_step" not in text


def test_lines_of_several_ranks_do_not_mix(monkeypatch):
    """Even if PYTHONUNBUFFERED makes print write its arguments one by one."""
    class Written(io.RawIOBase):
        def __init__(self):
            self.pieces = []

        def writable(self):
            return True

        def write(self, piece):
            self.pieces.append(bytes(piece))
            return len(piece)

    written = Written()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, write_through=True))

    def program():
        print("loss", 1.5)
        return written.pieces

    (rank,) = virtualgpu.run(program, "h100")
    assert rank.value == [b"loss 1.5\n"]


def test_the_headline_names_the_rank_that_caused_the_failure():
    errors = [(0, "Stopped: still running"), (8, "ValueError: bad sample\nline 7")]
    assert failures.headline(errors) == "rank 8 failed: ValueError: bad sample"
    long = failures.headline([(0, f"OutOfMemoryError: {'word ' * 50}")])
    assert long.endswith("word ...") and len(long) < 100


@pytest.mark.parametrize("ranks, words", [
    ([3], "rank 3"), ([1, 0], "ranks 0 and 1"), ([*range(8)], "ranks 0 to 7"),
    ([0, 2], "ranks 0 and 2"), ([0, 1, 2, 5, 7, 8, 9], "ranks 0 to 2, 5, and 7 to 9")])
def test_ranks_in_words(ranks, words):
    assert failures.spans(ranks) == words
