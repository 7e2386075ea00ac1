"""NCCL's lines in a log, told apart by communicator."""

import pytest

from job_monitor import channels
from labcore.errors import LabError
from virtualgpu.core.cards import CARDS
from virtualgpu.net import nccl, network
from virtualgpu.net.topology import Topology

FOUR = Topology(("a", "a", "b", "b"), (CARDS["v100-sxm2-16gb"],) * 4,
                network.parse("ethernet:25gbit"))


def said(monkeypatch, ranks, processes):
    """Return the lines that `ranks` log about their communicator; `processes` are their PIDs."""
    lines = []
    for me, rank in enumerate(ranks):
        monkeypatch.setattr(nccl.os, "getpid", lambda rank=rank: processes[rank])
        lines.append(nccl.lines(FOUR, ranks, me, 2))
    return lines


def test_ranks_that_print_in_turn_are_told_apart(monkeypatch, tmp_path):
    processes = [10, 11, 10, 11]  # the nodes have processes of the same number
    groups = [said(monkeypatch, ranks, processes) for ranks in ([0, 2], [0, 1], [2, 3], [0, 2])]
    # Line by line, all ranks of the first three at once, then the same communicator once more.
    mixed = []
    for group in groups[1:3]:
        mixed += [line for pair in zip(*group, strict=False) for line in pair]
    text = ["starts", *[line for rank in groups[0] for line in rank], *mixed,
            *[line for rank in groups[3] for line in rank], "iteration 1"]
    log = tmp_path / "log.txt"
    log.write_text("\n".join(text))
    content = channels.read(log)
    assert list(content) == ["0,1", "0,2", "2,3"]
    for ranks, group in (("0,1", groups[1]), ("0,2", groups[0]), ("2,3", groups[2])):
        assert content[ranks] and set(content[ranks]) == {
            line for rank in group for line in rank if " via " in line and line in text}


def test_a_log_without_such_lines_says_which_setting_makes_them(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("slurmnode1:1:1 [0] NCCL INFO Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC\n")
    with pytest.raises(LabError, match="NCCL_DEBUG=INFO"):
        channels.read(log)
    with pytest.raises(LabError, match="has the job started"):
        channels.read(tmp_path / "none.txt")


def test_a_connection_counts_once_in_old_and_new_lines(monkeypatch):
    lines = [line for rank in said(monkeypatch, [0, 1, 2, 3], [10, 11, 10, 11]) for line in rank]
    assert channels.connections(lines) == [
        (0, 1, "P2P"), (1, 2, "NET"), (2, 3, "P2P"), (3, 0, "NET")]
    newer = ["gpu7:251:258 [0] NCCL INFO Channel 00/02 :    0   1",
             "gpu7:251:258 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
             "gpu7:251:258 [0] NCCL INFO Channel 00/0 : 0[4] -> 1[5] via P2P/direct pointer"]
    assert channels.connections(newer) == [(0, 1, "P2P")]
