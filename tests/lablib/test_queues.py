"""What the cluster's pending jobs ask for, as Slurm prints it."""

import pytest

from labcore.errors import LabError
from lablib import queues

SAID = {
    ("sinfo", "--noheader", "--Node"): "node1|idle\nnode2|drained*\nnode3|mixed\n",
    ("sinfo", "--noheader"): "1:00:00\n",
    ("squeue",): ("34|a|Dependency|10:00|(null)|afterok:29(failed),afterany:12(unfulfilled)\n"
                  "35|b|ReqNodeNotAvail|1-02:00:30|node[1-2]|(null)\n"
                  "38|c|JobHeldUser|UNLIMITED||(null)\n"),
    ("scontrol",): "node1\nnode2\n"}


def answered(*command):
    words = max((words for words in SAID if command[:len(words)] == words), key=len)
    return SAID[words].split("\n")[:-1]


def test_a_queue_is_read(monkeypatch):
    monkeypatch.setattr(queues, "_ask", answered)
    read = queues.read()
    assert (read["drained"], read["limit"], read["failed"]) == (["node2"], 60, [29])
    first, second, third = read["jobs"]
    assert first == {"job": 34, "name": "a", "held": False, "nodes": [], "minutes": 10,
                     "after": [["afterok", 29], ["afterany", 12]]}
    assert (second["nodes"], second["minutes"]) == (["node1", "node2"], 26 * 60 + 1)
    assert third["held"] and third["minutes"] == queues.NO_LIMIT


@pytest.mark.parametrize("command", [("no-such-program",), ("false",)])
def test_a_cluster_that_does_not_answer_is_named(command):
    with pytest.raises(LabError, match=f"^{command[0]}: .*is the cluster up"):
        queues._ask(*command)
