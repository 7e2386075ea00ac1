"""Which ranks `nvidia-smi` shows, and on which card; what a job sees."""

import json
import os
import time
from pathlib import Path

import pytest

from job_monitor.nvidia_smi import cards, cli
from labcore import rankfiles

MIB = 2**20


def test_a_rank_sits_where_slurm_put_it(cluster):
    cluster.rank(job=7, gpu=0, slot=1)
    cluster.rank(job=8, gpu=0, slot=0)
    cluster.rank(job=7, gpu=0, node="slurmnode2", slot=1)
    assert cluster.look() == {0: (8, 0), 1: (7, 0)} and cluster.look("slurmnode2") == {1: (7, 0)}


def test_jobs_that_asked_for_no_gpu_take_free_cards_in_their_order(cluster):
    cluster.rank(job=12, gpu=0)
    cluster.rank(job=9, gpu=0)
    assert cluster.look() == {0: (9, 0), 1: (12, 0)}


def test_a_job_s_own_cards_come_first(cluster):
    cluster.rank(job=3, gpu=0)
    cluster.rank(job=4, gpu=0, slot=0)
    assert cluster.look() == {0: (4, 0), 1: (3, 0)}


def test_more_ranks_than_cards_have_cards_of_their_own(cluster, capsys):
    for gpu in range(4):
        cluster.rank(job=5, gpu=gpu, slot=gpu if gpu < 2 else None)
    assert cluster.look() == {gpu: (5, gpu) for gpu in range(4)}
    assert [row[0] for row in cluster.csv(capsys, "index", "--node", "slurmnode1")] == [*"0123"]


def test_a_job_s_own_choice_of_card_is_shown(make, capsys):
    cluster = make("a10:1,none")
    cluster.rank(job=5, gpu=0, node="slurmnode2", card="h200", memory_total=143_156 * MIB)
    rows = cluster.csv(capsys, "node,name,memory.total")
    assert rows == [["slurmnode1", "NVIDIA A10 (virtual)", "22557"],
                    ["slurmnode2", "NVIDIA H200 (virtual)", "143156"]]


def test_only_ranks_that_live_count(cluster):
    cluster.rank(job=5, gpu=0, alive=False)
    other = cluster.rank(job=6, gpu=1)
    (cluster.proc / str(other) / "environ").write_bytes(b"SLURM_JOB_ID=66\0")  # the number again
    zombie = cluster.rank(job=7, gpu=1)
    (cluster.proc / str(zombie) / "environ").write_bytes(b"")
    assert cluster.look() == {}


def test_where_processes_cannot_be_seen_those_that_wrote_lately_live(cluster):
    cluster.rank(job=5, gpu=0, alive=False)
    elsewhere = Path(rankfiles.ELSEWHERE)
    assert len(cards.running_processes(cluster.state / "ranks", elsewhere)) == 1
    for path in cluster.state.glob("ranks/*/*.json"):
        os.utime(path, (0, time.time() - 2 * cards.FRESH))
    assert cards.running_processes(cluster.state / "ranks", elsewhere) == []


@pytest.mark.parametrize("text", [
    "", "{", "[]", "7", '"x"', '{"node": "slurmnode1"}', "{\"pid\": null}",
    json.dumps({"node": "slurmnode1", "job": "5", "gpu": 0, "slot": None, "pid": 1001,
                "card": "v101", "memory_used": 1, "memory_total": 2, "utilization": 0}),
    json.dumps({"node": "slurmnode1", "job": None, "gpu": 0, "slot": None, "pid": 1001,
                "card": "a10", "memory_used": 1, "memory_total": 2, "utilization": 0})])
def test_a_file_of_another_kind_is_no_rank(cluster, text):
    """A run on the CPU may have written the file, for example, or a student."""
    cluster.rank(job=5, gpu=0)
    (cluster.state / "ranks" / "5" / "99.json").write_text(text)
    assert cluster.look() == {0: (5, 0)}


def test_a_rank_on_a_node_that_is_no_more_is_left_out(cluster):
    cluster.rank(job=5, gpu=0, node="slurmnode9")
    assert cluster.look() == {}


def test_a_job_sees_its_own_cards_from_zero(cluster, capsys, monkeypatch):
    cluster.rank(job=4, gpu=0, slot=0, memory_used=100 * MIB)
    cluster.rank(job=5, gpu=0, slot=1, memory_used=200 * MIB)
    for name, value in (("SLURMD_NODENAME", "slurmnode1"), ("SLURM_JOB_ID", "5"),
                        ("SLURM_JOB_GPUS", "1"), ("SLURM_GPUS_ON_NODE", "1")):
        monkeypatch.setenv(name, value)
    rows = cluster.csv(capsys, "index,pci.bus_id,memory.used")
    assert rows == [["0", "00000000:1C:00.0", "200"]]
    monkeypatch.setenv("SLURM_STEP_GPUS", "0")  # a step's count before the batch script's
    assert cluster.csv(capsys, "pci.bus_id") == [["00000000:1B:00.0"]] * 1 + [
        ["00000000:1C:00.0"]]  # its own rank's card stays in sight


def test_a_job_without_gpus_sees_its_node(cluster, capsys, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "slurmnode2")
    assert cluster.csv(capsys, "node,index") == [["slurmnode2", "0"], ["slurmnode2", "1"]]
    assert capsys.readouterr().err.count("of slurmnode1") == 0
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    assert cluster.csv(capsys, "index") == [["0"]]


def test_a_job_may_look_at_another_node(cluster, capsys, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "slurmnode2")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0")
    rows = cluster.csv(capsys, "node", "--node", "slurmnode1")
    assert rows == [["slurmnode1"], ["slurmnode1"]]


@pytest.mark.parametrize("fields", [
    {"utilization": float("nan")}, {"utilization": float("inf")}, {"memory_used": float("inf")},
    {"memory_used": 10**400}, {"utilization": 10**400}, {"pid": -1}, {"more": "x" * 2**16}],
    ids=["nan", "inf", "infinite bytes", "huge bytes", "huge", "below zero", "long"])
def test_numbers_that_cannot_be_are_no_rank(cluster, capsys, fields):
    cluster.rank(job=5, gpu=0, **fields)
    assert cluster.look() == {} and cluster.main() == 0


def test_deep_nonsense_is_no_rank(cluster):
    cluster.rank(job=5, gpu=0)
    (cluster.state / "ranks" / "5" / "99.json").write_text("[" * 60_000)
    assert cluster.look() == {0: (5, 0)}


def test_of_many_kept_jobs_only_those_written_last_are_read(cluster, monkeypatch):
    monkeypatch.setattr(cards, "MAX_JOBS", 2)
    for number, written in ((5, 300), (6, 100), (7, 200)):
        cluster.rank(job=number, gpu=0, slot=None)
        os.utime(cluster.state / "ranks" / str(number), (written, written))
    assert cluster.look() == {0: (5, 0), 1: (7, 0)}


def test_a_record_with_a_card_that_is_no_more_is_told(cluster, capsys):
    record = cluster.state / "running.json"
    record.write_text(record.read_text().replace("v100", "v101"))
    assert cluster.main() == cli.NO_DRIVER == 9
    assert "run lab cluster down, then" in capsys.readouterr().err
