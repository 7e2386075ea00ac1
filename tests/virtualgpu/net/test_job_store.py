"""The rank that serves the store leaves last, and every store has a board of its own."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from virtualgpu.net import backend
from virtualgpu.net.job_store import JobStore


def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_whoever_serves_the_store_waits_until_all_ranks_have_ended():
    served = store()
    boards = [JobStore(served, rank, [0, 1]) for rank in range(2)]
    boards[0].end()
    with pytest.raises(dist.DistStoreError):
        boards[0].wait_for_ends(timedelta(milliseconds=10))
    boards[1].end()
    boards[1].end()  # a second time: nothing happens
    boards[0].wait_for_ends(timedelta(seconds=60))


def test_which_rank_serves_the_store(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    served = store()
    assert backend.serves(served, 0) and not backend.serves(served, 1)
    assert not backend.serves(dist.HashStore(), 0)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # torchrun serves it
    assert not backend.serves(served, 0)
