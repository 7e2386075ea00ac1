"""Our tools read metrics.jsonl, and show the same numbers as from the log's lines."""

import json
import os

import pytest

from job_monitor import logs
from tests.job_monitor.samples import LINE, WORLD
from tests.minimegatron.conftest import dataset, train  # noqa: F401  fixtures

RUN = "20261123-154512-9f3c"


def without_name(lines):
    """The log of a trainer that writes no metrics."""
    return [line for line in lines if "writing metrics" not in line]


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["--fp16 --log-throughput", "--log-format core"])
def test_a_run_has_the_same_numbers_in_both(train, tmp_path, flags):  # noqa: F811
    out = train(f"--train-iters 5 --log-interval 2 --global-batch-size 4 --eval-iters 0 {flags} "
                f"--metrics {tmp_path}/metrics.jsonl", 2).out.splitlines()
    recorded, printed = logs.parse(out), logs.parse(without_name(out))
    assert len(recorded.iterations) == 2
    assert repr(recorded) == repr(printed)  # nan is not equal to itself


@pytest.fixture
def log(tmp_path):
    """A log of two iterations whose metrics.jsonl says another time, to tell them apart."""
    path = tmp_path / "metrics.jsonl"
    objects = [{"kind": "iteration", "run": RUN, "iteration": n, "elapsed_ms_per_iteration": 7.04,
                "lm_loss": None, "non_finite": {"lm_loss": "nan"}} for n in (1, 2)]
    path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    lines = [WORLD.format(1), f"> writing metrics of run {RUN} to {path}",
             *(LINE.format(n=n, ms=100.0, loss="", label="") for n in (1, 2))]
    return path, lines


def times(lines):
    return [one.milliseconds for one in logs.parse(lines).iterations]


def test_the_file_comes_before_the_lines(log):
    _, lines = log
    assert times(lines) == [7.0, 7.0]
    assert [str(one.loss) for one in logs.parse(lines).iterations] == ["nan", "nan"]


def test_each_start_of_a_trainer_in_a_log_has_its_own_source(log):
    _, lines = log
    assert times([*without_name(lines), *lines, *without_name(lines)]) == [
        100.0, 100.0, 7.0, 7.0, 100.0, 100.0]


def test_of_a_file_of_several_runs_only_the_logs_own_counts(log):
    path, lines = log
    other = path.read_text().replace(RUN, "20261123-160000-0000").replace("7.04", "9.0")
    path.write_text(other + path.read_text() + other)
    assert times(lines) == [7.0, 7.0]


@pytest.mark.parametrize("garbage", [
    "{", "[" * 100_000, "[]", "{}", '{"kind": "iteration", "run": []}', "\xff",
    *(json.dumps({"kind": "iteration", "run": RUN, "iteration": 3, **odd}) for odd in (
        {}, {"elapsed_ms_per_iteration": "x"}, {"elapsed_ms_per_iteration": True},
        {"iteration": 1.5}, {"elapsed_ms_per_iteration": 10**400},
        {"iteration": None, "elapsed_ms_per_iteration": 1.0, "non_finite": [3]}))])
def test_what_the_trainer_did_not_write_is_skipped(log, garbage):
    path, lines = log
    path.write_text(f"{garbage} {RUN}\n{garbage}\n" + path.read_text(), encoding="latin-1")
    assert times(lines) == [7.0, 7.0]


@pytest.mark.parametrize("break_it", [
    lambda path: path.unlink(), lambda path: (path.unlink(), path.mkdir()),
    lambda path: (path.unlink(), os.mkfifo(path))], ids=["gone", "a folder", "a pipe"])
def test_without_the_file_the_lines_are_read(log, break_it):
    path, lines = log
    break_it(path)
    assert times(lines) == [100.0, 100.0]


def test_after_a_full_disk_the_lines_are_read(log):
    path, lines = log
    full = f"WARNING: metrics of run {RUN} are incomplete: {path} cannot be written (No space)"
    assert times([*lines, full]) == [100.0, 100.0]
