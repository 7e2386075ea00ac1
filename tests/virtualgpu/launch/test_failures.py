"""What virtualrun prints about programs that fail, and that it leaves nothing running."""

import re

import pytest

from virtualgpu.launch import command, failures

pytestmark = pytest.mark.slow  # ranks that run whole programs

DECIDES = """
import torch
loss = torch.randn(2**20, device="cuda").square().mean()
if loss > 1:
    print("high")
"""
FULL = """
import torch
x = torch.empty(2**35, device=f"cuda:{torch.cuda.current_device()}")
"""
ONE_FAILS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
assert dist.get_rank() != 1, "only rank 1"
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
    assert status == 1 and text.count("decides by a value") == 1
    assert re.search(r"ranks 0 to 3: .*program.py, line 4: `if loss > 1:` decides", text)
    assert "the program failed; these figures end where it did:" in text


def test_tracebacks_that_differ_by_the_gpu_are_printed_once(virtualrun):
    _, text = virtualrun(FULL, "--gpus", "h100:2")
    assert text.count("Traceback") == text.count("CUDA out of memory") == 1
    assert "virtualrun: ranks 0 and 1:\nTraceback" in text and "runpy" not in text


def test_the_ranks_that_waited_for_one_that_failed(virtualrun):
    _, text = virtualrun(ONE_FAILS, "--gpus", "h100:3")
    assert re.search(r"virtualrun: rank 1:\nTraceback.*AssertionError: only rank 1", text, re.S)
    assert re.search(r"virtualrun: ranks 0 and 2: ", text)


@pytest.mark.parametrize("ranks, words", [
    ([3], "rank 3"), ([1, 0], "ranks 0 and 1"), ([*range(8)], "ranks 0 to 7"),
    ([0, 2], "ranks 0 and 2"), ([0, 1, 2, 5, 7, 8, 9], "ranks 0 to 2, 5, and 7 to 9")])
def test_ranks_in_words(ranks, words):
    assert failures.spans(ranks) == words
