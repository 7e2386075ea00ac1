"""Bytes that ranks sent, counted from profiles."""

import json

import pytest

from job_monitor import bytes_sent
from labcore.errors import LabError

STEPS = [{"name": f"ProfilerStep#{number}", "args": {}} for number in (2, 3)]


def message(name, size, kind="float", **more):
    return {"name": name, "cat": "user_annotation",
            "args": {"Input Dims": [size], "Input type": [kind], **more}}


def put(folder, events, rank=0, at=1, world=2):
    (folder / f"run_x_gpu{rank}.{at}.pt.trace.json").write_text(json.dumps(
        {"traceEvents": [*STEPS, *events], "distributedInfo": {"world_size": world}}))


def test_each_kind_counts_what_a_rank_of_a_ring_sends(tmp_path):
    group = {"Group size": 4}
    put(tmp_path, [message("nccl:all_reduce", [100, 2], **group),
                   message("nccl:all_gather", [100], "c10::Half", **group),
                   message("nccl:reduce_scatter", [400], **group)], world=8)
    assert bytes_sent.read(tmp_path) == {0: {"all_reduce": 1.5 * 800 / 2, "all_gather": 3 * 200 / 2,
                                       "reduce_scatter": 0.75 * 1600 / 2}}


def test_a_message_counts_for_its_sender_only_and_by_iteration(tmp_path):
    put(tmp_path, [message("nccl:send 0->1", [50])] * 4)
    put(tmp_path, [message("gloo:recv", [50])] * 4 + [message("gloo:all_reduce", [])] * 2, rank=1)
    assert bytes_sent.read(tmp_path) == {0: {"send": 400}, 1: {"all_reduce": 4}}


def test_the_cards_own_records_of_the_same_messages_do_not_count_twice(tmp_path):
    put(tmp_path, [message("nccl:all_reduce", [10]),
                   message("nccl:all_reduce", [10]) | {"cat": "gpu_user_annotation"},
                   {"name": "aten::mm", "cat": "cpu_op"}])
    assert bytes_sent.read(tmp_path) == {0: {"all_reduce": 20}}


def test_the_newest_profile_of_each_rank_counts(tmp_path):
    put(tmp_path, [message("gloo:send", [1])] * 2, at=9)
    put(tmp_path, [message("gloo:send", [2])] * 2, at=10)
    put(tmp_path, [], rank=1, at=3)
    assert bytes_sent.read(tmp_path) == {0: {"send": 8}, 1: {}}


@pytest.mark.parametrize(("event", "world"), [
    (message("gloo:all_reduce", [4]), 4), (message("gloo:scatter", [4]), 2),
    (message("nccl:send", [4], "strange"), 2)], ids=["group", "kind", "type"])
def test_what_cannot_be_counted_is_an_error(tmp_path, event, world):
    put(tmp_path, [event], world=world)
    with pytest.raises(LabError, match="cannot count the bytes"):
        bytes_sent.read(tmp_path)


def test_no_profile_is_an_error_that_names_the_flag(tmp_path):
    with pytest.raises(LabError, match="--profile-execution"):
        bytes_sent.read(tmp_path)


def test_a_profile_without_an_iteration_is_an_error(tmp_path):
    put(tmp_path, [])
    (path,) = tmp_path.iterdir()
    path.write_text('{"traceEvents": [], "distributedInfo": {"world_size": 1}}')
    with pytest.raises(LabError, match="no complete iteration"):
        bytes_sent.read(tmp_path)
